"""Simulations and fits in several processes."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running_server import ROOT
from tests.workbench.runs.test_command import figures


def test_number_of_processes_does_not_change_the_results_of_a_sweep(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ["--seconds", "5", "--sweep", "rate=2:4:2", "--processes"]
    assert figures(capsys, *argv, "2") == figures(capsys, *argv, "1")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_all_processes_of_a_sweep_without_writing_a_file(
    tmp_path: Path, number: signal.Signals
) -> None:
    load = ["--seconds", "10", "--sweep", "rate=1:1000:1", "--processes", "2"]
    command = [sys.executable, "-m", "app", "simulate", *load, f"--json={tmp_path / 'x.json'}"]
    with subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, text=True, process_group=0
    ) as process:
        assert process.stderr is not None
        progress = ""
        while "swept" not in progress:
            progress += process.stderr.read(1)
        process.send_signal(number)
        errors = process.stderr.read()  # ends when no process of it has the pipe any more
    if number == signal.SIGINT:
        assert errors.endswith("error: interrupted; nothing was written\n")
        assert "Traceback" not in errors
    assert process.returncode == (1 if number == signal.SIGINT else -number)
    assert list(tmp_path.iterdir()) == []
