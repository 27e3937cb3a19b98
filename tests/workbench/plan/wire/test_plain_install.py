"""`plan` after a plain `pip install .`: one process, and no pictures."""

import subprocess
import sys
from typing import Any

import pytest

from tests.running_server import ROOT
from tests.workbench.plan.test_plan import figures
from workbench.plan.command import run

ARGV = ["--model", "qwen3-14b", "--device", "h100=2", "-tp", "1", "--prefill-share", "0"]
ARGV += ["--max-num-seqs", "256", "--max-num-batched-tokens", "8192", "--rate", "4"]
ARGV += ["--seconds", "5", "--slo", "ttft_p95=1s"]
WITHOUT_EXTRAS = """\
import sys
for name in ("joblib", "matplotlib", "distributed", "numpy"):
    sys.modules[name] = None  # importing it raises ModuleNotFoundError
from workbench.plan.command import run
sys.exit(run(sys.argv[1:]))
"""


def plan(*argv: str) -> Any:
    command = [sys.executable, "-c", WITHOUT_EXTRAS, *ARGV, *argv]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_plan_without_extras_gives_the_same_result_and_one_line_about_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = plan("--processes", "4")
    assert done.returncode == 0, done.stderr
    assert run([*ARGV, "--processes", "1"]) == 0
    assert done.stdout == capsys.readouterr().out
    lines = [line for line in done.stderr.splitlines() if "in one process" in line]
    assert len(lines) == 1 and "for 4: pip install" in lines[0] and "[plan]" in lines[0]


def test_plan_of_one_process_says_nothing_about_extras() -> None:
    done = plan("--processes", "1")
    assert done.returncode == 0 and "pip install" not in done.stderr


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--plot", "x.png"], "error: --plot: requires matplotlib: pip install"),
        (["--backend", "dask=127.0.0.1:1"], "error: --backend: requires joblib: pip install"),
    ],
)
def test_missing_extra_is_named_in_one_line(flags: list[str], line: str) -> None:
    done = plan(*flags)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(line) and done.stderr.count("\n") == 1


def test_processes_do_not_change_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert figures(capsys, *ARGV, "--processes", "1") == figures(capsys, *ARGV, "--processes", "2")
