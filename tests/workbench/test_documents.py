"""The pages and pictures that the commands of the workbench print for the documents."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

from app.core.cli import main
from scripts.example_pages import PAGES as EXAMPLES
from scripts.example_pages import renewed
from scripts.reference_lab import lab_page
from tests.running_server import ROOT

PLANNING = "\n".join(
    (ROOT / "docs" / name).read_text("utf-8") for name in ("planning.md", "autoscaling.md")
)
PLANS = re.findall(r"```console\n\$ understudy (simulate (?:.*\\\n)*.*)\n((?:.*\n)*?)```", PLANNING)


PLAN_COMMANDS = re.findall(
    r"```console\n(?:\$ pip .*\n)?\$ understudy (plan (?:.*\\\n)*.*)\n((?:.*\n)*?)```", PLANNING
)
SEARCHES = [
    example
    for example in PLAN_COMMANDS
    if "--over-time" not in example[0] and "--together" not in example[0]
]
TOGETHER = [example for example in PLAN_COMMANDS if "--together" in example[0]]
SERIES = [example for example in PLAN_COMMANDS if "--over-time" in example[0]]
SIMULATE = (ROOT / "docs" / "simulate.md").read_text("utf-8")
SIMULATIONS = re.findall(
    r"```console\n\$ understudy (simulate (?:.*\\\n)*.*)\n((?:(?:[^$`\s].*)?\n)+)```", SIMULATE
)
"""Commands of docs/simulate.md with their whole output."""
EXAMPLE_LOADS = re.findall(r"^\$ understudy (simulate --trace examples/.*)", SIMULATE, re.M)
FEW_FLEETS = ["--seconds", "3", "--max-num-seqs", "256", "--max-num-batched-tokens", "8192"]
"""Flags that make a plan quick; later flags win."""


def _heading(lines: Sequence[str]) -> int:
    """Returns the number of the line above the table."""
    return next(number for number, line in enumerate(lines) if line.startswith("|")) - 1


def _shape(row: str) -> str:
    return row.replace(" ", "")


@pytest.mark.parametrize("page", EXAMPLES, ids=str)
def test_example_pages_match_the_current_console(page: Path) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert renewed(text) == text, "python -m scripts.example_pages"


@pytest.mark.parametrize(("command", "printed"), PLANS)
def test_planning_page_shows_the_output_of_its_commands(
    command: str, printed: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of each load, longer than a cold start, has the heading and the columns of the whole."""
    monkeypatch.chdir(ROOT)
    words = shlex.split(command.replace("\\\n", ""))
    if "--plot" in words:
        place = words.index("--plot")
        picture = ROOT / words[place + 1]
        assert picture.stat().st_size < 60_000 and f"]({picture.name})" in PLANNING
        del words[place : place + 2]
    seconds = "60" if "--autoscale" in words else "2"
    assert main([*words, "--seconds", seconds, "--processes", "1"]) == 0
    verdict, *lines = capsys.readouterr().out.splitlines()
    wanted_verdict, *wanted = printed.splitlines()
    answers = ("Yes: ", "No: ")
    assert verdict.startswith(answers) == wanted_verdict.startswith(answers)
    assert lines[0] == wanted[0]
    assert _shape(lines[1]) == _shape(wanted[1])


@pytest.mark.parametrize(("command", "printed"), SEARCHES)
def test_planning_page_shows_the_tables_of_its_plans(
    command: str, printed: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search of fewer fleets for a part of the load has the columns and lines of the whole."""
    monkeypatch.chdir(ROOT)
    words = shlex.split(command.replace("\\\n", ""))
    if "--plot" in words:
        place = words.index("--plot")
        del words[place : place + 2]
    quick = [*FEW_FLEETS, "--prefill-share", "0", "--processes", "1"]
    assert main([*words, *quick]) == 0
    lines = capsys.readouterr().out.splitlines()
    wanted = printed.splitlines()
    heading = _heading(lines)
    wanted_heading = _heading(wanted)
    assert lines[heading].partition(";")[2] == wanted[wanted_heading].partition(";")[2]
    assert _shape(lines[heading + 1]) == _shape(wanted[wanted_heading + 1])
    assert lines[0].startswith("Cheapest") and wanted[0].startswith("Cheapest")
    for beginning in ("runner-up: ", "repeat: "):
        assert any(line.startswith(beginning) for line in lines)
        assert any(line.startswith(beginning) for line in wanted)


def test_planning_page_shows_the_output_of_its_time_series_plan(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of the load, on one of the engines, has the columns and the last line of the whole."""
    monkeypatch.chdir(ROOT)
    [(command, printed)] = SERIES
    words = shlex.split(command.replace("\\\n", ""))
    engine = ["--device", "h100=2.5", "--tensor-parallel-size", "2"]
    assert main([*words, *engine, "--seconds", "60", "--over-time", "20s"]) == 0
    verdict, *lines = capsys.readouterr().out.splitlines()
    wanted_verdict, *wanted = printed.splitlines()
    assert verdict.split(",")[0] == wanted_verdict.split(",")[0]
    assert lines[0].partition(";")[2].replace("20 s", "60 s") == wanted[0].partition(";")[2]
    assert lines[1].replace(" ", "") == wanted[1].replace(" ", "")
    assert lines[-1].startswith("GPUs of h100 tp 2 over time: 0s=2")
    assert wanted[-1].startswith("GPUs of h100 tp 2 over time: 0s=2")


def test_planning_page_shows_the_fleets_of_models_planned_together(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search of fewer fleets has the columns of the whole, and the same price lists."""
    monkeypatch.chdir(ROOT)
    [(command, printed)] = TOGETHER
    words = shlex.split(command.replace("\\\n", ""))
    assert main([*words, *FEW_FLEETS, "--processes", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    wanted = printed.splitlines()
    assert lines[0].startswith("Cheapest together: ") and lines[0] == wanted[0]
    heading = wanted[2].replace(" ", "")
    assert heading in [line.replace(" ", "") for line in lines]
    assert [line.split("tp")[0] for line in lines[-2:]] == [
        line.split("tp")[0] for line in wanted[-2:]
    ]


def test_planning_page_has_plans_with_and_without_a_required_confidence() -> None:
    assert ["--confidence" in command for command, _ in SEARCHES] == [False, True]


@pytest.mark.parametrize(("command", "printed"), SIMULATIONS)
def test_simulate_page_shows_the_output_of_its_commands(
    command: str, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(command.replace("\\\n", ""))
    assert main([*words, "--processes", "1"]) == 0
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize("command", EXAMPLE_LOADS)
def test_simulate_page_commands_accept_the_example_loads(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    words = shlex.split(command)
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines()[1] == f"qwen3-14b-h100: trace {words[2]}"


def test_simulate_page_shows_a_run_a_sweep_and_two_examples() -> None:
    assert ["--sweep" in command for command, _ in SIMULATIONS] == [False, True]
    assert [Path(command.split()[2]).suffix for command in EXAMPLE_LOADS] == [".yml", ".jsonl"]


def test_options_page_equals_the_generated_page() -> None:
    page = lab_page()
    assert page.path.read_text("utf-8") == page.markdown(), "python -m scripts.reference_lab"
