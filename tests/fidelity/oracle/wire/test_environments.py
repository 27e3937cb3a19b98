"""Environments that lie over another one, without any package of vLLM."""

import subprocess
import sys
from pathlib import Path

import pytest

from fidelity.oracle import install
from fidelity.oracle.build import Build


def test_upper_environment_has_the_packages_of_the_lower_one_and_its_own_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "STORE", tmp_path)
    lower = install.environment_of("1")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(lower)], check=True)
    install.create_environment(Build("2", over="1"))
    for name in ("shared", "replaced"):
        (install.site_packages_of("1") / f"{name}.py").write_text("origin = 'lower'\n")
    (install.site_packages_of("2") / "replaced.py").write_text("origin = 'upper'\n")
    program = "import shared, replaced; print(shared.origin, replaced.origin)"
    command = [str(install.python_of("2")), "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["lower", "upper"]
