"""The table of vLLM's versions, and that the rest of the code asks it by feature."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from app.core.protocol.features import Feature
from app.core.protocol.versions import RELEASES, VERSIONS, simulated_version
from app.core.settings import load
from config.sections.api import ApiSettings

ROOT = Path(__file__).parents[3]
PROTOCOL = ROOT / "app" / "core" / "protocol"
TABLES = (PROTOCOL / "features.py", PROTOCOL / "versions.py")
DECLARATION = ROOT / "config" / "sections" / "api.py"
"""Declares the setting with the names of the versions."""
SOURCES = [
    path
    for folder in ("app", "config", "vllm_understudy")
    for path in (ROOT / folder).rglob("*.py")
    if path not in (*TABLES, DECLARATION)
]
VERSION_NUMBER = re.compile(rf"({'|'.join(map(re.escape, RELEASES))})(\.\d+)?")


def test_vllm_version_setting_accepts_every_supported_release() -> None:
    assert get_args(get_type_hints(ApiSettings)["vllm_version"]) == tuple(RELEASES)


def test_two_consecutive_minor_versions_of_vllm_are_supported() -> None:
    minors = [int(name.partition(".")[2]) for name in RELEASES]
    assert minors == [minors[0], minors[0] + 1]


def test_every_version_feature_starts_after_the_oldest_supported_version() -> None:
    later_versions = list(RELEASES)[1:]
    assert [feature.name for feature in Feature if feature.since not in later_versions] == []


def test_each_vllm_version_adds_features_to_those_of_the_previous_one() -> None:
    features = [version.features for version in VERSIONS.values()]
    for earlier, later in zip(features, features[1:], strict=False):
        assert earlier < later


@pytest.mark.parametrize("name", RELEASES)
def test_vllm_version_setting_selects_the_simulated_version(name: str) -> None:
    version = simulated_version(load(["--vllm-version", name], {}).api)
    assert version.name == name
    assert version.release == RELEASES[name]


def is_version_setting(node: ast.Attribute) -> bool:
    return node.attr == "vllm_version" and ast.unparse(node.value).endswith("api")


def uses_of_numbers(code: str) -> Iterator[str]:
    """Yields the places where code knows a version by its number instead of its features."""
    if VERSION_NUMBER.search(code) is None and "vllm_version" not in code:
        return  # as in nine of ten files, which need not be parsed
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if VERSION_NUMBER.fullmatch(node.value):
                yield f"line {node.lineno}: {node.value!r}"
        elif isinstance(node, ast.Attribute) and is_version_setting(node):
            yield f"line {node.lineno}: vllm_version"


def test_source_code_compares_features_instead_of_version_numbers() -> None:
    comparisons = [
        f"{path.relative_to(ROOT)}, {use}"
        for path in SOURCES
        for use in uses_of_numbers(path.read_text("utf-8"))
    ]
    assert comparisons == []


def test_comparison_with_a_vllm_version_number_in_source_code_is_detected() -> None:
    code = "if name == '0.33' or settings.api.vllm_version > '0.32.1':\n    pass\n"
    assert sorted(uses_of_numbers(code)) == [
        "line 1: '0.32.1'",
        "line 1: '0.33'",
        "line 1: vllm_version",
    ]
