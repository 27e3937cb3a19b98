"""Which tests may start processes, and the line about those that are skipped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.needs import skipped_line
from tests.running_server import ROOT

SAMPLE = """
import subprocess, sys
import pytest

def test_plain(): pass
def test_process():
    with pytest.raises(Exception):
        subprocess.run([sys.executable, "-c", ""], check=True)

@pytest.mark.clients
def test_a_need(): pass
@pytest.mark.clients
def test_another_need(): pass
"""


def pytest_says(folder: Path, *options: str) -> list[str]:
    """Returns the lines of pytest about SAMPLE, which lies in a folder `tests` and has our conftest.py."""
    file = folder / "tests" / "test_sample.py"
    file.parent.mkdir()
    file.write_text(SAMPLE)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", "pyproject.toml", "-v", *options]
    where = ["--rootdir", str(folder), "-p", "no:cacheprovider", str(file)]
    done = subprocess.run([*command, *where], cwd=ROOT, capture_output=True, text=True, timeout=50)
    return (done.stdout + done.stderr).splitlines()


def test_a_test_that_starts_a_process_elsewhere_fails(tmp_path: Path) -> None:
    said = pytest_says(tmp_path, "-k", "plain or process")
    outcomes = dict(line.split("::")[1].split()[:2] for line in said if line.endswith("%]"))
    assert outcomes == {"test_plain": "PASSED", "test_process": "FAILED"}
    assert any("outside the folders named wire starts a process: subprocess.Popen" in line for line in said)


def test_each_need_is_counted_in_the_line() -> None:
    line = skipped_line([["redis", "wire"], ["redis"], ["shared"], ["parametrize"]])
    assert line.startswith("Skipped: 1 for want of the recording of a real vLLM (")
    assert line.endswith("; 2 for want of a Redis server (apt-get install redis-server).")
    assert skipped_line([["parametrize"]]) == ""
