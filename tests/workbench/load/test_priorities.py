"""Priorities of classes in simulated engines."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from workbench.runs.simulate import run

BUSY = ["--rate", "18", "--seconds", "60", "--max-num-seqs", "32", "--json", "-"]
CLASSES = ["--priorities", "chat=0@25%", "batch=10@75%"]


def figures(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert run(argv) == 0
    return msgspec.json.decode(capsys.readouterr().out)


def test_higher_priority_class_waits_less_on_a_busy_engine(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = figures(capsys, *BUSY)
    chat, batch = figures(capsys, *BUSY, *CLASSES)["classes"]

    assert (chat["name"], batch["name"]) == ("chat", "batch")
    assert chat["requests"] + batch["requests"] == plain["requests"]
    assert chat["requests"] == pytest.approx(0.25 * plain["requests"], rel=0.2)
    assert 10 * chat["ttft_s"]["p99"] < plain["ttft_s"]["p99"] < batch["ttft_s"]["p99"]


def test_equal_priorities_give_the_same_figures_as_no_priorities(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = figures(capsys, *BUSY)
    equal = figures(capsys, *BUSY, "--priorities", "chat=5@50%", "batch=5@50%")

    del equal["classes"]
    assert equal == plain


def test_trace_class_with_a_higher_priority_is_served_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "load.csv"
    rows = [f"0.0,1000,100,{'chat' if number % 2 else 'batch'}" for number in range(200)]
    path.write_text("arrival_s,input_tokens,output_tokens,class\n" + "\n".join(rows) + "\n")
    trace = ["--trace", str(path), "--max-num-seqs", "8", "--json", "-"]

    chat, batch = figures(capsys, *trace, "--priorities", "chat=-1", "batch=0")["classes"]
    assert chat["requests"] == batch["requests"] == 100
    assert chat["e2e_s"]["p99"] < batch["ttft_s"]["p50"]


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--priorities", "chat"], "must be NAME=PRIORITY"),
        (["--priorities", "chat=0@0%"], "must have a share of more than 0%"),
        (["--priorities", "chat=0"], "a generated load requires a share for each class"),
        (
            ["--priorities", "chat=0@50%", "batch=1@40%"],
            "a share for each class, with a total of 100%",
        ),
        (["--priorities", "chat=0@50%", "chat=1@50%"], "each class must have a unique name"),
    ],
)
def test_invalid_priorities_are_rejected_with_a_one_line_error(
    flags: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--rate", "1", "--seconds", "2", *flags]) != 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and err.count("\n") == 1
    assert error in err
