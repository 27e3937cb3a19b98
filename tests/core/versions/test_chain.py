"""Versions of vLLM, each made from the newest one, and that no other code asks for a number."""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.engine.batch import SchedulerRules
from app.core.settings import load
from app.core.versions.chain import changes_of, played_version, simulated_version
from app.core.versions.change import Rules
from config.declaration import ConfigError
from vllm_facts.version import (
    NEWEST,
    PATCHES,
    PROVEN,
    Version,
    changing_versions,
    later_versions,
    level_of,
    parse_version,
    playable_version,
)

ROOT = Path(__file__).parents[3]
HOMES = (
    "app/core/versions",
    "app/extensions/*/releases",
    "config/default_version.py",
    *(
        f"vllm_facts/{name}.py"
        for name in ("history", "names", "registry", "version", "version_order")
    ),
    "vllm_facts/step_defaults.py",
)
"""Files that may know the number of a version, or which of two versions is the later one."""
ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
OPERAND = re.compile(
    r"\b(has_begun|parse_version|playable_version|release_numbers|version_number)\(|"
    r"vllm_version\b|(?<!\bself)(?<!\breq)\.(version|minor|patch)$"
)
"""Operand of a comparison that asks for an order of versions; those of HTTP are another matter."""
QUESTION = re.compile(r"\bversions?\.has$|\bhas_begun$")
"""Function of a call that asks a version what it has."""
VERSION_NUMBER = re.compile(rf"({'|'.join(map(re.escape, PATCHES))})(\.\d+)?")
FORMS_OF_KV_EVENTS = ("0.10.2", *("0.14", "0.17", "0.19", "0.20", "0.22"))
"""Values of the setting kv-events-layout, which names forms by versions."""


@pytest.mark.parametrize("name", PATCHES)
def test_vllm_version_setting_selects_the_played_version(name: str) -> None:
    version = simulated_version(load(["--vllm-version", name], {}).api)
    assert version.version.name == name
    assert version.release == PATCHES[name]


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("0.27", "0.27.1"),
        ("0.27.0", "0.27.0"),
        ("v0.27.1rc1", "0.27.1"),
        ("0.11.1+cpu", "0.11.1"),
        ("0.10.1.dev5+g12ab", "0.10.1"),
        ("nightly", PATCHES[NEWEST]),
        (" V0.33 ", "0.33.0"),
    ],
)
def test_versions_are_written_as_on_images_and_packages(text: str, release: str) -> None:
    assert playable_version(text).release == release


@pytest.mark.parametrize("text", ["0.9", "0.999", "1.0", "", "cu128", "0.27.1.", "0.²7", "v"])
def test_unknown_version_is_an_error_with_the_rule(text: str) -> None:
    with pytest.raises(
        ConfigError, match=re.escape(f"must be a version of vLLM from 0.10 to {NEWEST}")
    ):
        load(["--vllm-version", text], {})


@given(st.tuples(*[st.integers(0, 9999)] * 3))
def test_versions_compare_by_their_numbers(numbers: tuple[int, int, int]) -> None:
    version = Version(*numbers)
    assert parse_version(version.release) == version
    assert parse_version(f"v{version.release}") < Version(version.major, version.minor + 1, 0)


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("0.33", "names and proven behavior"),
        ("0.19.0", "names of 0.19.0, behavior as proven for 0.19.1"),
        ("0.10.2", "names and proven behavior"),
        ("0.10.0", "names of 0.10.0, behavior as proven for 0.10.2"),
        ("0.14", "names of 0.14, behavior as proven for 0.15"),
        ("0.18", "names of 0.18, behavior as proven for 0.19"),
    ],
)
def test_level_says_what_is_proven(name: str, level: str) -> None:
    assert level_of(played_version(name).version) == level


def test_each_version_undoes_the_changes_of_all_later_ones() -> None:
    for name in PATCHES:
        later = [
            change for each in later_versions(parse_version(name)) for change in changes_of(each)
        ]
        assert list(played_version(name).undone) == later


def test_newest_version_undoes_nothing() -> None:
    newest = played_version(NEWEST)
    assert newest.undone == []
    assert newest.rules(SchedulerRules) == SchedulerRules()


def test_release_after_the_newest_one_has_its_proven_behavior() -> None:
    """Such a release is in the table before it is described."""
    assert level_of(Version(0, 999, 0)) == f"names of 0.999, behavior as proven for {PROVEN[-1]}"


@pytest.mark.parametrize("name", changing_versions())
def test_rules_of_changes_are_fields_of_the_structs_that_they_name(name: str) -> None:
    """A struct that nobody asks for by this name would leave the newest behavior."""
    for change in changes_of(name):
        for form in change.forms:
            if isinstance(form, Rules):
                module, _, kind = form.kind.rpartition(".")
                values = form.values if isinstance(form.values, dict) else form.values()
                assert values.keys() <= set(getattr(import_module(module), kind).__struct_fields__)


def test_rules_of_an_older_version_are_those_before_the_change() -> None:
    assert not played_version("0.32").rules(SchedulerRules).spaces_prefill
    assert played_version("0.33").rules(SchedulerRules).spaces_prefill


def sources() -> Iterator[Path]:
    homes = {path for pattern in HOMES for path in ROOT.glob(pattern)}
    for folder in ("app", "config", "vllm_facts", "workbench", "vllm_understudy"):
        for path in (ROOT / folder).rglob("*.py"):
            if not homes.intersection((path, *path.parents)):
                yield path


def is_version_setting(node: ast.Attribute) -> bool:
    return node.attr == "vllm_version" and ast.unparse(node.value).endswith("api")


def uses_of_numbers(code: str) -> Iterator[str]:
    """Yields the places where code knows a version by its number."""
    words = ("version", "has_begun", "release_numbers", ".minor", ".patch")
    if VERSION_NUMBER.search(code) is None and not any(word in code for word in words):
        return  # as in most files, which need not be parsed
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if VERSION_NUMBER.fullmatch(node.value) and node.value not in FORMS_OF_KV_EVENTS:
                yield f"line {node.lineno}: {node.value!r}"
        elif isinstance(node, ast.Attribute) and is_version_setting(node):
            yield f"line {node.lineno}: vllm_version"
        elif isinstance(node, ast.Compare) and any(isinstance(op, ORDERS) for op in node.ops):
            operands = map(ast.unparse, (node.left, *node.comparators))
            if any(OPERAND.search(operand) for operand in operands):
                yield f"line {node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Call) and QUESTION.search(ast.unparse(node.func)):
            yield f"line {node.lineno}: {ast.unparse(node)}"


def test_only_the_homes_of_versions_know_their_numbers() -> None:
    places = [
        f"{path.relative_to(ROOT)}, {use}"
        for path in sources()
        for use in uses_of_numbers(path.read_text("utf-8"))
    ]
    assert places == []


def test_comparison_with_a_vllm_version_number_in_source_code_is_detected() -> None:
    code = "if name == '0.33' or settings.api.vllm_version > '0.32.1':\n    pass\n"
    assert sorted(uses_of_numbers(code)) == [
        "line 1: '0.32.1'",
        "line 1: '0.33'",
        "line 1: settings.api.vllm_version > '0.32.1'",
        "line 1: vllm_version",
    ]


@pytest.mark.parametrize(
    "code",
    [
        "played.version < other",
        "parse_version(old) >= parse_version(new)",
        "adjustment.version <= version",
        "1 < version_of(text).minor",
        "version.has('decisions')",
        "has_begun('0', text)",
        "settings.steps.profile_vllm_version > name",
    ],
)
def test_order_of_versions_in_source_code_is_detected(code: str) -> None:
    assert [*uses_of_numbers(code)] == [f"line 1: {code}"]


def test_order_of_other_numbers_is_no_order_of_versions() -> None:
    assert [*uses_of_numbers("self.version > MAX_HTTP_VERSION or len(versions) > 2")] == []
