"""The runs of the tests: the examples that they draw, the list of slow tests, and the sentence."""

import ast
import re
from collections import Counter
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.drawn import ALL, DRAW, SHARE, drawn, drawn_examples
from tests.hostile_files import VALUES, damaged_files, retyped_documents
from tests.parts import part_of, sentence
from tests.running_server import ROOT
from tests.slow_tests import SLOW_TESTS
from tests.syntax import statements

COMMIT = "f1da76df6d1c4cb4c5c80b1d6a5d3f1b0f7e7a11"
EXAMPLES = range(100)
REDIS = "a Redis server: apt-get install redis-server"
RECORDING = "the recording of a real vLLM: VLLM_RECORDING=folder, or ../shared/golden"


@pytest.fixture
def drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that draws by `COMMIT`."""
    monkeypatch.setenv(DRAW, COMMIT)


@pytest.mark.usefixtures("drawing")
def test_draw_is_a_quarter_of_the_examples_and_repeatable() -> None:
    examples = drawn(EXAMPLES)
    assert len(examples) == len(EXAMPLES) // SHARE
    assert examples == sorted(set(examples)) == drawn(EXAMPLES)
    assert len(drawn(range(3))) == 1 and drawn([]) == []


def test_draws_of_commits_and_of_tests_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = set()
    for commit, test in ((COMMIT, "a"), (COMMIT, "b"), (COMMIT[::-1], "a")):
        monkeypatch.setenv(DRAW, commit)
        monkeypatch.setenv("PYTEST_CURRENT_TEST", test)
        draws.add(tuple(drawn(EXAMPLES)))
    assert len(draws) == 3


def test_every_example_is_drawn_by_some_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: Counter[int] = Counter()
    for commit in range(60):
        monkeypatch.setenv(DRAW, f"{commit:040x}")
        counts.update(drawn(EXAMPLES))
    assert set(counts) == set(EXAMPLES)


@pytest.mark.parametrize("value", [ALL, None])
def test_run_without_a_draw_tries_all_examples(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    if value is None:
        monkeypatch.delenv(DRAW)
    else:
        monkeypatch.setenv(DRAW, value)
    assert drawn(EXAMPLES) == list(EXAMPLES)
    assert len(damaged_files(b'{"a": 1}\n')) > 50
    assert len(list(retyped_documents({"a": 1}))) == 2 * len(VALUES) + 1


def count_examples(count: int) -> list[int]:
    """Returns the examples that Hypothesis tries of a property with `count` examples."""
    tried: list[int] = []

    @drawn_examples(count)
    @given(st.integers())
    def property_of_numbers(number: int) -> None:
        tried.append(number)

    property_of_numbers()
    return tried


@pytest.mark.usefixtures("drawing")
def test_property_has_a_quarter_of_its_examples_and_the_same_ones_for_a_commit() -> None:
    tried = count_examples(60)
    assert len(tried) == 60 // SHARE
    assert tried == count_examples(60)


def test_property_has_all_examples_without_a_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DRAW, ALL)
    assert len(count_examples(60)) == 60


@pytest.mark.parametrize("file", SLOW_TESTS)
def test_slow_tests_of_the_list_exist_and_have_reasons(file: str) -> None:
    extension = re.match(r"tests/extensions/\w+(?=/)", file)
    if extension and not (ROOT / extension[0]).exists():
        return  # deleted with its tests
    source = (ROOT / file).read_text("utf-8")
    names = {
        node.name
        for node in statements(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    listed = {test.partition("::")[0] for test in SLOW_TESTS[file]}
    # Hypothesis makes the class of a state machine, which a variable names.
    assert {test for test in listed - names if f"{test} = " not in source} == set()
    assert all(SLOW_TESTS[file].values())


@pytest.mark.parametrize(
    ("test", "part"),
    [
        ("tests/core/clock/wire/test_a.py::test_b", "tests/core"),
        ("tests/workbench/plan/test_a.py::test_b[tests/x]", "tests/workbench"),
        ("tests/extensions/test_a.py::test_b", "tests/extensions"),
        ("tests/test_a.py::test_b", "tests"),
    ],
)
def test_part_of_a_test_is_its_folder_or_its_extension(test: str, part: str) -> None:
    assert part_of(test) == part


def reports(*names: str, count: int = 1) -> list[Any]:
    """Returns reports of tests with these markers."""
    return [SimpleNamespace(keywords=dict.fromkeys(names, 1))] * count


def skips(reason: str, count: int = 1) -> list[Any]:
    """Returns reports of tests that were skipped."""
    return [SimpleNamespace(longrepr=("test_a.py", 1, f"Skipped: {reason}"))] * count


@pytest.mark.usefixtures("drawing")
def test_sentence_says_what_passed_what_was_skipped_and_how_to_run_the_rest() -> None:
    stats: Mapping[str, Any] = {
        "passed": [*reports(count=1200), *reports("wire", count=30)],
        "skipped": [*skips(REDIS, count=2), *skips(RECORDING), *skips("no index of packages")],
    }
    assert sentence(stats, seconds=90) == (
        "Passed: 1,200 tests without processes and 30 of servers and commands, in 1.5 minutes; "
        "skipped: 1 for want of the recording of a real vLLM (VLLM_RECORDING=folder, or "
        "../shared/golden), 2 for want of a Redis server (apt-get install redis-server), 1 for "
        "reasons of their own (pytest -rs); to run the rest: make test-tools, make test-servers, "
        "make test-shared, make weekly (also the examples of hostile files, of which this run "
        "drew one in 4)."
    )


def test_sentence_of_a_failed_run_begins_with_the_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DRAW, ALL)
    stats = {"failed": reports(count=2), "error": reports(), "passed": reports()}
    assert sentence(stats, seconds=0) == (
        "FAILED: 3; Passed: 1 tests without processes and 0 of servers and commands, in 0.0 minutes; "
        "skipped: none; to run the rest: make test-servers, make weekly."
    )
