"""A worker that dies ends a run of pytest, without tests for a second try."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running_server import ROOT

CONFTEST = """
from tests.dead_workers import DeadWorkers

def pytest_configure(config):
    config.pluginmanager.register(DeadWorkers())
"""


@pytest.mark.parametrize(("end", "remembers"), [("os._exit(1)", False), ("assert False", True)])
def test_only_a_run_whose_workers_live_remembers_failed_tests(
    tmp_path: Path, end: str, remembers: bool
) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_end.py").write_text(f"import os\n\ndef test_end():\n    {end}\n")
    (tmp_path / "test_next.py").write_text("def test_next():\n    pass\n")
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert "--dist loadfile --no-loadscope-reorder --max-worker-restart=0\n" in makefile
    variables = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    words = ["-q", "-n", "2", "--dist", "loadfile", "--max-worker-restart=0"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=tmp_path,
        env={**variables, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 1, done.stdout
    assert "FAILED test_end.py::test_end" in done.stdout
    failed = (tmp_path / ".pytest_cache/v/cache/lastfailed").read_text()
    assert ("test_end" in failed) == remembers
