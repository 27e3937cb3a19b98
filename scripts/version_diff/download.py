"""Downloads a distribution of a version of vLLM with pip, as pip is configured."""

import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download")
SOURCE_OPTIONS = ("--no-binary=:all:", "--no-build-isolation", "--no-clean")
WHEEL_OPTIONS = ("--only-binary=:all:", "--platform=manylinux_2_31_x86_64", "--python-version=3.12")


class DownloadError(Exception):
    """A distribution could not be downloaded."""


def download(version: str, folder: Path) -> Path:
    """Downloads a distribution, and returns the folder with its contents.

    A source distribution has about 40 MB. A version without one, such as 0.15.1, has a wheel of 500
    MB; of that, the Python files are unpacked.

    Raises:
        DownloadError: pip found no distribution.
    """
    # pip prepares to build what it downloads, and fails there if torch is not installed. By then it
    # has unpacked the archive, and `--no-clean` keeps that in the folder of temporary files.
    source_error = _run_pip(version, folder, SOURCE_OPTIONS)
    packages = sorted(folder.glob("*/*/vllm/__init__.py"))
    if packages:
        return packages[0].parents[1]
    _run_pip(version, folder, WHEEL_OPTIONS)
    for wheel in folder.glob("vllm-*.whl"):
        return _unpacked(wheel)
    raise DownloadError(f"no distribution of vLLM {version}: {source_error}")


def _run_pip(version: str, folder: Path, options: Sequence[str]) -> str:
    """Runs pip, and returns its last error."""
    command = [*PIP, "--no-deps", "--no-cache-dir", *options, "--dest", str(folder)]
    result = subprocess.run(
        [*command, f"vllm=={version}"],
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    reasons = result.stderr.strip().splitlines() or ["pip kept no files"]
    return reasons[-1]


def _unpacked(wheel: Path) -> Path:
    """Unpacks the Python files of a wheel and removes it; returns the folder with them."""
    folder = wheel.with_suffix("")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".py")]
        archive.extractall(folder, names)
    wheel.unlink()
    return folder
