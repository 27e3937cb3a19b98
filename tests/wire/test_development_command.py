"""The command `understudy` of a checkout runs no module of the folder that it is called in."""

import subprocess
import sys
from pathlib import Path

from tests.running_server import ROOT


def test_command_of_a_checkout_imports_nothing_from_the_current_folder(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    python = programs / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    command = programs / "understudy"
    make = ["make", "--silent", f"BIN={programs}", str(command)]
    subprocess.run(make, cwd=ROOT, check=True, timeout=60)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    for module in ("json", "config", "workbench", "sitecustomize"):
        (foreign / f"{module}.py").write_text("open('RAN', 'w').close()\n")
    done = subprocess.run(
        [command, "check", "--", "vllm", "serve", "Qwen/Qwen3-8B"],
        cwd=foreign,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not (foreign / "RAN").exists()
