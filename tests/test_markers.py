"""Which tests the fast ones leave out and catch, and what is said of those that are skipped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.needs import NEEDS, skipped_line
from tests.running_server import ROOT

SAMPLE = """
import subprocess, sys
import pytest
from hypothesis import given, strategies
from tests.running_server import running_server

def start():
    return subprocess.run([sys.executable, "-c", ""], check=True)

class Starter:
    @property
    def started(self):
        return start()

@pytest.fixture
def started():
    return Starter().started

def test_directly(): subprocess.run(["true"], check=True)
def test_in_a_function(): start()
def test_in_a_function_within(): (lambda: start())()
def test_in_a_method(): Starter().started
def test_in_a_fixture(started): pass
def test_in_a_shared_fixture(server): pass
def test_in_a_context_manager():
    with running_server():
        pass
@given(strategies.integers())
def test_in_what_hypothesis_calls(number): start()

def test_plain(): pass
def test_hidden():
    run = getattr(__import__("sub" + "process"), "run")
    with pytest.raises(Exception):
        run(["true"])

@pytest.mark.clients
def test_a_need(): pass
@pytest.mark.clients
def test_another_need(): pass
"""


def pytest_says(folder: Path, *options: str) -> list[str]:
    """The lines that pytest prints about SAMPLE, when it lies in a folder `tests` and has our conftest.py."""
    file = folder / "tests" / "test_sample.py"
    file.parent.mkdir()
    file.write_text(SAMPLE)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", "pyproject.toml", "-v", *options]
    where = ["--rootdir", str(folder), "-p", "no:cacheprovider", str(file)]
    done = subprocess.run([*command, *where], cwd=ROOT, capture_output=True, text=True, timeout=50)
    return (done.stdout + done.stderr).splitlines()


def test_fast_tests_start_no_process_and_one_that_was_not_found_fails(tmp_path: Path) -> None:
    said = pytest_says(tmp_path, "--fast")
    outcomes = dict(line.split("::")[1].split()[:2] for line in said if line.endswith("%]"))
    assert outcomes == {"test_plain": "PASSED", "test_hidden": "FAILED"}
    assert any("that is not marked `server` starts a process: subprocess.Popen" in line for line in said)
    assert "1 failed, 1 passed, 10 deselected" in said[-1]


def test_what_is_not_here_is_skipped_and_told_in_one_line(tmp_path: Path) -> None:
    said = pytest_says(tmp_path, "-m", "not server", "-k", "need")
    [need] = [need for need in NEEDS if need.marker == "clients"]
    line = f"Skipped: 2 for want of {need.thing} ({need.remedy})."
    assert (line in said) is not need.is_here
    assert ("2 passed" if need.is_here else "2 skipped") in said[-1]


def test_each_need_is_counted_in_the_line() -> None:
    line = skipped_line([["redis", "server"], ["redis"], ["shared"], ["parametrize"]])
    assert line.startswith("Skipped: 1 for want of the recording of a real vLLM (")
    assert line.endswith("; 2 for want of a Redis server (apt-get install redis-server).")
    assert skipped_line([["parametrize"]]) == ""
