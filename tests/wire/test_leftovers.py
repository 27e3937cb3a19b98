"""A run of the tests that is killed from outside leaves no process."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.leftovers import MARK, start_of
from tests.running_server import ROOT

CONFTEST = """
from tests.leftovers import watch


def pytest_configure():
    watch()
"""
TEST = """
import os
import subprocess
import sys
import time
from pathlib import Path

SERVER = "import time; time.sleep(300)"


def test_with_a_server():
    server = subprocess.Popen([sys.executable, "-c", SERVER], start_new_session=True)
    folder = Path(__file__).parent
    (folder / "worker.pid").write_text(str(os.getpid()))
    (folder / "server.pid").write_text(str(server.pid))
    time.sleep(300)
"""
LIMIT_S = 40.0


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def pid_in(path: Path) -> int:
    """Returns the number in a file, once the file is complete."""
    wait_until(lambda: path.exists() and path.read_text().isdecimal())
    return int(path.read_text())


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
@pytest.mark.parametrize("victim", ["make", "pytest", "worker"])
def test_killed_run_leaves_no_process(victim: str, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_server.py").write_text(TEST)
    words = f"{sys.executable} -m pytest -q -p no:cacheprovider -n 1 --max-worker-restart=0 ."
    (tmp_path / "Makefile").write_text(f"test:\n\t@true && {words}; true\n")
    outer = {name: value for name, value in os.environ.items() if name != MARK}
    make = subprocess.Popen(
        ["make", "-C", str(tmp_path), "test"],
        env={**outer, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        server = pid_in(tmp_path / "server.pid")
        worker = pid_in(tmp_path / "worker.pid")
        controller = parent_of(worker)
        processes = {"make": make.pid, "pytest": controller, "worker": worker}
        os.kill(processes[victim], signal.SIGKILL)
        if victim == "make":
            make.wait()
        wait_until(lambda: not any(map(start_of, (controller, worker, server))))
        assert make.wait(LIMIT_S) == (-signal.SIGKILL if victim == "make" else 0)
    finally:
        make.kill()
        make.wait()
