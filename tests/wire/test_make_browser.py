"""`make browser` without internet access: one line that says what to set, and not marked as done."""

import subprocess
from pathlib import Path
from shutil import which

import pytest

from tests.running_server import ROOT
from tests.wire.test_make_run import plain_environment

TOOLS = ("sh", "timeout", "touch", "sed", "echo", "sort", "cat")


@pytest.mark.parametrize(
    ("failing", "line"),
    [
        ("*playwright*", "Chromium could not be downloaded: install a browser and set CHROMIUM="),
        ("*pip*", "Playwright could not be installed: set PIP_INDEX_URL to a reachable index ("),
    ],
)
def test_make_browser_without_internet_names_the_setting(
    failing: str, line: str, tmp_path: Path
) -> None:
    environment = tmp_path / "environment"
    tools = tmp_path / "tools"
    (environment / "bin").mkdir(parents=True)
    tools.mkdir()
    for name in TOOLS:
        program = which(name)
        if program is not None:
            (tools / name).symlink_to(program)
    python = environment / "bin" / "python"
    python.write_text(f'#!/bin/sh\ncase "$*" in {failing}) echo "a long\nlog"; exit 1;; esac\n')
    python.chmod(0o755)
    (environment / ".dev").touch()
    make = which("make")
    assert make is not None
    done = subprocess.run(
        [make, "browser", f"VENV={environment}", f"PYTHON={python}"],
        cwd=ROOT,
        env={**plain_environment(PATH=str(tools)), "CHROMIUM": ""},
        capture_output=True,
        text=True,
        timeout=50,
    )
    lines = [text for text in done.stderr.splitlines() if not text.startswith("make")]
    assert done.returncode != 0, done.stdout
    assert len(lines) == 1 and lines[0].startswith(line), done.stderr
    assert not (environment / ".browser").exists()
