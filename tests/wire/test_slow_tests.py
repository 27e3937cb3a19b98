"""The stopwatch of tests without processes, in a run of pytest of its own; the commit of a draw."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.drawn import commit_of_checkout
from tests.running_server import ROOT

CONFTEST = """
from tests import slow_tests

slow_tests.LIMIT_S = 0.004
slow_tests.SLOW_TESTS = {"test_times.py": {"test_listed": "a reason"}}

def pytest_configure(config):
    config.addinivalue_line("markers", "wire: starts processes")
    config.pluginmanager.register(slow_tests.Stopwatch())
"""
TESTS = """
import time
import pytest

def compute():
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass

@pytest.fixture
def slow_fixture():
    compute()

@pytest.fixture(scope="module")
def shared_fixture():
    compute()

@pytest.mark.parametrize("number", [1])
def test_slow(number):
    compute()

def test_with_a_slow_fixture(slow_fixture):
    pass

def test_fast():
    pass

def test_listed():
    compute()

@pytest.mark.wire
def test_that_starts_processes():
    compute()

def test_that_waits():
    time.sleep(0.1)

def test_with_a_shared_fixture(shared_fixture):
    pass

times = []

def test_slow_the_first_time():
    times.append(1)
    if len(times) == 1:
        compute()

def test_that_fails():
    compute()
    assert not times, "failed"
"""


def test_only_slow_tests_that_no_list_names_fail(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_times.py").write_text(TESTS)
    variables = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    variables |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rA"],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        timeout=50,
    )
    failed = re.findall(r"(?m)^FAILED test_times.py::(\S+)", done.stdout)
    expected = ["test_slow[1]", "test_with_a_slow_fixture", "test_that_fails"]
    assert failed == expected, done.stdout
    message = "s, more than 0 s: shorten it, or list it with a reason in tests/slow_tests.py\n"
    assert done.stdout.count(message) == 2, done.stdout
    assert "3 failed, 6 passed" in done.stdout


def test_commit_of_a_draw_is_a_hash_or_unknown() -> None:
    assert len(commit_of_checkout()) in (0, 40, 64)
