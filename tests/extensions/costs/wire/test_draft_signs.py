"""`python -m benchmarks.drafts`, which docs/accuracy.md names."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]


def test_drafts_benchmark_predicts_the_sign_of_every_measured_gain() -> None:
    command = [sys.executable, "-m", "benchmarks.drafts"]
    output = subprocess.check_output(command, cwd=ROOT, text=True)
    assert output.count("| right |") == 12 + 15 + 12
    assert "| wrong |" not in output
    assert "refused" not in output
