"""The calls that MCP servers append to a shared file, and the counts of their rules."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from vllm_understudy.mcp_script import CALL, ScriptFolder

Open = Callable[[Path], ScriptFolder]
MAX_RATIO = 10
"""Far below the ratio of reading 10,000 lines at each call, which is above 100."""


@pytest.fixture
def open_folder() -> Iterator[Open]:
    """Opens folders as processes of servers do, until the test ends."""
    with ExitStack() as resources:

        def opened(path: Path) -> ScriptFolder:
            return resources.enter_context(closing(ScriptFolder(path)))

        yield opened


def set_results(folder: ScriptFolder, *results: tuple[int, int | None, str]) -> None:
    """Sets results of the tool `w`, each with its id and its uses."""
    rules: list[dict[str, Any]] = []
    for number, times, result in results:
        rule = {"id": number, "method": CALL, "tool": "w", "when": {}, "times": times}
        rules.append({**rule, "result": result})
    folder.write({"tools": [], "results": rules, "faults": []})


def results_of(folder: ScriptFolder, count: int) -> list[str]:
    rules = [folder.next_result({"name": "w", "arguments": {}}) for _ in range(count)]
    return [rule["result"] for rule in rules if rule is not None]


def call_seconds(folder: ScriptFolder) -> float:
    durations_s = []
    for _ in range(30):
        start_s = time.perf_counter()
        results_of(folder, 1)
        durations_s.append(time.perf_counter() - start_s)
    return median(durations_s)


def test_call_costs_the_same_after_10_000_calls_as_after_10(
    tmp_path: Path, open_folder: Open
) -> None:
    folder = open_folder(tmp_path)
    set_results(folder, (1, None, "again"))
    results_of(folder, 10)
    few_s = call_seconds(folder)
    line = (tmp_path / "calls.jsonl").read_bytes().splitlines(keepends=True)[0]
    with (tmp_path / "calls.jsonl").open("ab") as file:
        file.write(line * 10_000)
    results_of(folder, 1)  # reads the lines of the other process
    assert call_seconds(folder) < MAX_RATIO * few_s
    assert len(folder.calls()) > 10_000


def test_processes_that_share_a_folder_count_uses_of_rules_together(
    tmp_path: Path, open_folder: Open
) -> None:
    first = open_folder(tmp_path)
    second = open_folder(tmp_path)
    set_results(first, (1, 2, "one"), (2, 1, "two"), (3, None, "again"))
    assert results_of(first, 1) + results_of(second, 2) == ["one", "one", "two"]
    assert results_of(first, 2) == ["again", "again"]
    second.clear_calls()
    assert results_of(first, 1) == ["one"]
    assert results_of(second, 1) == ["one"]
    assert [call["result"] for call in first.calls()] == ["one", "one"]
    first.clear_calls()
    results_of(second, 7)
    assert results_of(first, 1) == ["again"], "the file is as long as the removed one"


@pytest.mark.parametrize("half", ['{"arrived": "2026', '{"arrived": "\xff', "[1]", '"a'])
def test_half_line_at_the_end_of_the_calls_is_left_out_with_a_warning(
    tmp_path: Path, open_folder: Open, half: str
) -> None:
    folder = open_folder(tmp_path)
    set_results(folder, (1, 2, "one"), (2, None, "two"))
    results_of(folder, 1)
    with (tmp_path / "calls.jsonl").open("ab") as file:
        file.write(half.encode("latin-1"))
    with pytest.warns(RuntimeWarning, match=r"calls\.jsonl: line 2 is cut off, and left out"):
        assert len(folder.calls()) == 1
    with pytest.warns(RuntimeWarning, match="line 2"):
        assert results_of(folder, 2) == ["one", "two"]
    with pytest.warns(RuntimeWarning, match="line 2"):
        assert [call["result"] for call in folder.calls()] == ["one", "one", "two"]
    assert results_of(folder, 1) == ["two"], "the line is named once by each reader"
