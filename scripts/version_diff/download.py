"""Downloads the source distribution of a version of vLLM with pip, as pip is configured."""

import os
import subprocess
import sys
from pathlib import Path


class DownloadError(Exception):
    """A source distribution could not be downloaded."""


def download(version: str, folder: Path) -> Path:
    """Downloads a source distribution, about 40 MB, and returns the folder with its contents.

    pip prepares to build what it downloads, and fails there if torch is not installed. By then it
    has unpacked the archive, and `--no-clean` keeps that in the folder of temporary files.

    Raises:
        DownloadError: pip found no source distribution.
    """
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download"]
    options = ["--no-deps", "--no-binary=:all:", "--no-build-isolation", "--no-clean"]
    result = subprocess.run(
        [*pip, *options, "--no-cache-dir", "--dest", str(folder), f"vllm=={version}"],
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    packages = sorted(folder.glob("*/*/vllm/__init__.py"))
    if not packages:
        reasons = result.stderr.strip().splitlines() or ["pip kept no files"]
        raise DownloadError(f"no source distribution of vLLM {version}: {reasons[-1]}")
    return packages[0].parents[1]
