"""The `simulate` command of each row of a plan, and the width of tables."""

import shlex
from typing import Any

import msgspec
import pytest

from config.declaration import COMMAND
from tests.workbench.plan.test_plan import figures
from workbench.load.tables import MAX_WIDTH, markdown, wrap_last_column
from workbench.plan.command import run, shared_spec
from workbench.plan.plan_flags import make_parser
from workbench.runs import simulate

PLAN = ["--model", "qwen3-14b", "--device", "h100=2", "l40s=1", "-tp", "1", "2"]
PLAN += ["--processes", "1", "--max-model-len=32768", "--seconds", "6", "--input-tokens", "1500"]
PLAN += ["--slo", "ttft_p95=600ms,tpot_p95=24ms"]


def simulated(capsys: pytest.CaptureFixture[str], command: str) -> Any:
    assert command.startswith(f"{COMMAND} simulate ")
    words = shlex.split(command.removeprefix(f"{COMMAND} simulate "))
    assert simulate.run([*words, "--json", "-"]) == 0
    return msgspec.json.decode(capsys.readouterr().out)


@pytest.mark.parametrize(
    "flags",
    [
        ["--prefill-share", "0", "--rate", "9"],
        ["--prefill-share=0.4", "--rate", "20", "--transfer-latency", "1ms", "--device", "h100=2"],
        ["--prefill-share", "0", "--rate", "14", "--confidence", "80%", "--policy=round-robin"],
    ],
)
def test_command_of_a_row_repeats_its_figures(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    plan = figures(capsys, *PLAN, *flags)["loads"][0]
    fleets = [plan["cheapest"], *plan["front"]]
    for fleet in fleets:
        again = simulated(capsys, fleet["simulate_command"])
        for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s"):
            assert again[name] == pytest.approx(fleet["summary"][name], rel=0.01), name
        assert again["policy"] == fleet["summary"]["policy"]


def test_every_row_that_meets_the_slo_has_both_commands_and_intervals(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ["--model", "qwen3-14b", "--device", "h100=2", "h200=2.5", "-tp", "1", "--rate", "9"]
    argv += [*PLAN[8:], "--prefill-share", "0"]
    assert run(argv) == 0
    short = capsys.readouterr().out.splitlines()
    assert sum(line.startswith(f"repeat: {COMMAND} simulate ") for line in short) == 1
    assert run([*argv, "--why"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    rows = [line for line in lines if line.startswith("| h")]
    assert len(rows) == 2
    assert sum(": vllm serve Qwen/Qwen3-14B " in line for line in lines) == 2
    assert sum(line.startswith(f"repeat: {COMMAND} simulate ") for line in lines) == 2
    assert sum(line.startswith("80% intervals: TTFT ") for line in lines) == 2
    assert all(len(line) <= MAX_WIDTH for line in lines if line.startswith("|"))


def test_shared_job_leaves_out_the_flags_of_plan() -> None:
    argv = ["--device", "h100=2", "h200", "--seconds=5", "--rate", "1", "2", "-tp", "4"]
    argv += ["--goodput", "ttft:1", "tpot:2", "--together", "--json", "-", "--policy", "random"]
    argv += ["--model", "m"]
    parser = make_parser()
    shared = shared_spec(parser.parse_args(argv), parser.table_of(argv))
    assert shared.seconds == 5.0
    assert shared.tensor_parallel_size == 1
    assert shared.device is None
    assert shared.texts == {
        "seconds": "5",
        "goodput": ["ttft:1", "tpot:2"],
        "policy": "random",
    }


def test_wide_table_is_divided_and_every_part_has_the_names() -> None:
    rows = [["name", *(f"column {number}" for number in range(20))]]
    rows += [[f"row {row}", *(f"{row * number} ms" for number in range(20))] for row in range(3)]
    parts = markdown(rows).split("\n\n")
    assert len(parts) > 1
    for part in parts:
        lines = part.splitlines()
        assert [line[2:7] for line in lines[2:]] == ["row 0", "row 1", "row 2"]
        assert {len(line) for line in lines} == {len(lines[0])} and len(lines[0]) <= MAX_WIDTH
    assert sum(part.splitlines()[0].count("column") for part in parts) == 20


def test_long_text_in_the_last_column_is_continued_in_further_rows() -> None:
    rows = wrap_last_column([["", "price", ""], ["h100", "1.00", "word " * 40], ["b", "2", "x"]])
    assert all(len(line) <= MAX_WIDTH for line in markdown(rows).splitlines())
    assert " ".join(row[-1] for row in rows[1:-1]).split() == ["word"] * 40
    assert [row[:2] for row in rows[2:-1]] == [["", ""]] * (len(rows) - 3)


def test_sweep_fits_the_width(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--sweep", "rate=1:2:1", "--seconds", "5", "--slo", "itl_p99.9=1s,ttft_mean=1s"]
    assert simulate.run([*argv, "--processes", "1", "--goodput", "ttft:500"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert lines and all(len(line) <= MAX_WIDTH for line in lines)
