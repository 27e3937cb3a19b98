"""The second tries of .ci/run: how many tests may need one, and what the last lines name."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running_server import ROOT

SCRIPT = (ROOT / ".ci" / "run").read_text("utf-8")
[LIMITS] = re.findall(r"(?m)^MAX_SECOND_TRIES=\d+\n\w+=\S+\n", SCRIPT)
FUNCTIONS = "".join(
    re.findall(rf"(?ms)^{name}\(\) {{\n.*?^}}\n", SCRIPT)[0]
    for name in ("stage", "stage_times", "needs_second_try", "twice", "not_tested", "summary")
)
[OPTIONS] = re.findall(r'(?m)^export AGAIN="(.*)"$', SCRIPT)
TESTS = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_that_passes_the_second_time(number):
    state = Path(f"state-{{number}}")
    is_second_try = state.exists()
    state.touch()
    assert is_second_try

def test_that_fails():
    assert not {always}

def test_that_passes():
    pass
"""


def run_twice(
    folder: Path, *, flaky_count: int, fails: bool = False, command: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs tests of which `flaky_count` fail only the first time, as a stage of .ci/run does."""
    (folder / "test_flaky.py").write_text(TESTS.format(count=flaky_count, always=fails))
    make = folder / "make"
    make.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pytest -q test_flaky.py\n')
    make.chmod(0o755)
    script = "\n".join(
        [
            "set -euo pipefail",
            LIMITS,
            f'export alone="$PWD" AGAIN="{OPTIONS}"',
            FUNCTIONS,
            "trap summary EXIT",
            "stage flaky tests",
            f"twice {command or make}",
        ]
    )
    variables = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    variables["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # their import takes most of the time
    return subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=50,
    )


def test_up_to_three_failed_tests_are_retried_and_listed(tmp_path: Path) -> None:
    done = run_twice(tmp_path, flaky_count=3)
    assert done.returncode == 0, done.stderr
    named = re.findall(r"(?m)^FAILED AT FIRST: (.*)$", done.stderr)
    name = "test_flaky.py::test_that_passes_the_second_time"
    assert named == [f"{name}[{number}]" for number in range(3)]
    assert "3 passed" in done.stdout
    times = re.findall(r"(?m)^ +\d+ s  (.*)$", done.stderr)
    assert times == ["flaky tests", "all stages"]


def test_four_failed_tests_fail_the_run_without_a_retry(tmp_path: Path) -> None:
    done = run_twice(tmp_path, flaky_count=4)
    assert done.returncode == 1 and "more than 3 tests failed" in done.stderr
    assert done.stderr.count("FAILED AT FIRST: ") == 4
    assert done.stdout.count(" failed") == 1


def test_second_failure_of_a_test_fails_the_run(tmp_path: Path) -> None:
    done = run_twice(tmp_path, flaky_count=1, fails=True)
    assert done.returncode == 1 and "1 failed, 1 passed" in done.stdout


def test_run_that_fails_without_a_failed_test_is_not_retried(tmp_path: Path) -> None:
    done = run_twice(tmp_path, flaky_count=0, command="false")
    assert done.returncode == 1 and done.stderr.startswith("failed without a failed test\n")


def test_functions_of_every_time_limited_stage_are_exported_to_bash() -> None:
    defined = re.findall(r"(?m)^(\w+)\(\) {$", SCRIPT)
    stages = re.findall(r"(?m)^within (\w+)", SCRIPT)
    [exported] = re.findall(r"(?m)^export -f (.*)$", SCRIPT)
    assert "image" in stages
    for name in ("needs_second_try", "not_tested", *stages):
        assert name in exported.split() or name not in defined, f"{name} is not exported"


@pytest.mark.parametrize("stage", ["docs", "engine", "servers"])
def test_stage_that_cannot_be_prepared_fails_the_run_at_the_end(stage: str) -> None:
    [body] = re.findall(rf"(?ms)^{stage}\(\) {{\n(.*?)^}}\n", SCRIPT)
    assert re.search(r"(?m)^    else\n        not_tested ", body)
    assert re.search(r'(?s)if \[ -s "\$alone/not-tested" \].*exit 1\nfi\n$', SCRIPT)
