"""`python -m app dataset`, as a user runs it."""

from __future__ import annotations

import subprocess
import sys

from tests.running_server import ROOT


def test_help_of_the_process_tells_the_flags() -> None:
    command = [sys.executable, "-m", "app", "dataset", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "--input FILE.json" in done.stdout
