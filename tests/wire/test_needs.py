"""What tests need (needs.py):

no group of it is forgotten by CI, and none is skipped where it is demanded.
"""

import os
import re
import subprocess
import sys

from tests.needs import GROUPS
from tests.running_server import ROOT

NOT_IN_CI = {"others"}
RECORDINGS = "recordings"
"""Not part of the repository, so `make test-shared` skips what is missing."""
RESTARTED = "import os, signal, sys; signal.signal(2, signal.SIG_IGN); os.execv(sys.executable, sys.argv[1:])"


def outer_environment() -> dict[str, str]:
    """Our environment without what pytest, and the one who started it, have put there."""
    return {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}


def test_requirement_group_is_demanded_in_ci_or_listed_as_an_exception() -> None:
    commands = "".join((ROOT / file).read_text("utf-8") for file in ("Makefile", ".ci/run"))
    demanded = set(re.findall(r"(?:--demand|\bDEMAND)=(\w+)", commands))
    assert demanded | NOT_IN_CI | {RECORDINGS} == set(GROUPS)
    for target in ("test-all", "test-tools", "test-servers", "test-engine", "test-shared"):
        assert re.search(
            rf"(?m)^[^#\n]*\bmake\b.* {target}\b", (ROOT / ".ci" / "run").read_text("utf-8")
        )


def test_run_with_a_missing_demanded_requirement_is_rejected() -> None:
    hidden = outer_environment() | {"PATH": "/nowhere"}
    hidden.pop("CI", None)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--demand=tools",
        "-m",
        "tools",
        "tests/extensions/kv_index",
    ]
    done = subprocess.run(command, cwd=ROOT, env=hidden, capture_output=True, text=True, timeout=50)
    assert done.returncode == 4 and done.stdout == ""
    assert (
        "--demand: missing is a run of CI: CI=true; a Redis server: apt-get install" in done.stderr
    )


def test_interrupt_reaches_processes_of_a_background_run() -> None:
    """Such a run ignores SIGINT, and its processes would inherit that."""
    file = "tests/workbench/runs/wire/test_command.py"
    test = f"{file}::test_signal_ends_all_processes_of_a_sweep_without_writing_a_file[2]"
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    command = [sys.executable, "-c", RESTARTED, *words]
    done = subprocess.run(
        command, cwd=ROOT, env=outer_environment(), capture_output=True, text=True, timeout=55
    )
    assert done.returncode == 0, done.stdout
