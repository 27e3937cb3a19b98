"""Prepares a folder with vLLM's tests and an environment in which they run.

The tests come from vLLM's source distribution. What they import of vLLM is the oracle's
installation for CPUs (`fidelity/oracle/install.py`), which the environment here only adds to. Nothing
of vLLM serves requests.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from fidelity.oracle.install import install, python_of, site_packages_of
from scripts.version_diff.download import download

TEST_PACKAGES = (
    "anthropic",
    "cohere",
    "jsonschema",
    "pytest",
    "pytest-asyncio",
    "pytest-timeout",
    "schemathesis",
    "tblib",
)
COMPLETE = "complete"
"""File that marks a finished environment."""
CONFIGURATION = "[pytest]\nasyncio_mode = strict\n"
"""Without a file of their own, tests in this checkout get its options, such as strict markers."""


def prepare(folder: Path, version: str) -> Path:
    """Downloads tests and environment into `folder`, once. Returns the Python of the environment.

    Raises:
        subprocess.CalledProcessError: An installation failed.
        DownloadError: There is no source distribution.
        FileNotFoundError: The source distribution has no tests.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "tests" / "entrypoints").is_dir():
        print(f"Downloading the tests of vLLM {version} ...", flush=True)
        _download_tests(folder, version)
    install(version)
    python = folder / "venv" / "bin" / "python"
    if not (folder / "venv" / COMPLETE).exists():
        print(f"Installing what else the tests import into {folder}/venv ...", flush=True)
        _create_environment(folder / "venv", python, version)
        (folder / "venv" / COMPLETE).touch()
    return python


def _download_tests(folder: Path, version: str) -> None:
    unpacked = folder / "sources"
    shutil.rmtree(unpacked, ignore_errors=True)
    unpacked.mkdir()
    sources = download(version, unpacked)
    if not (sources / "tests" / "utils.py").exists():
        raise FileNotFoundError(f"the sources of vLLM {version} have no tests")
    for name in ("tests", "examples"):
        if (sources / name).is_dir():
            shutil.move(sources / name, folder / name)
    shutil.rmtree(unpacked)


def _create_environment(environment: Path, python: Path, version: str) -> None:
    """Creates an environment that also has all packages of the oracle's, which it does not copy."""
    shutil.rmtree(environment, ignore_errors=True)
    subprocess.run([str(python_of(version)), "-m", "venv", str(environment)], check=True)
    [site_packages] = environment.glob("lib/python*/site-packages")
    path_file = site_packages / "oracle.pth"
    path_file.write_text(f"import site; site.addsitedir({str(site_packages_of(version))!r})\n")
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", *TEST_PACKAGES], check=True)


def environment_of(
    folder: Path, plugin_folder: Path, checkout: Path, simulated_version: str
) -> dict[str, str]:
    """Returns the environment variables of a run of the tests against `simulated_version`."""
    return {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join([str(folder), str(plugin_folder)]),
        "TRANSFORMERS_OFFLINE": "1",
        "UNDERSTUDY_CHECKOUT": str(checkout),
        "UNDERSTUDY_VLLM_VERSION": simulated_version,
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_TARGET_DEVICE": "cpu",
    }


def pytest_command(python: Path, folder: Path, tests: Sequence[str]) -> list[str]:
    """Returns the command that runs `tests` of `folder` with the plugins of this folder.

    Writes the configuration of pytest into `folder`.
    """
    configuration = folder / "pytest.ini"
    configuration.write_text(CONFIGURATION)
    return [
        *(str(python), "-m", "pytest", "-p", "understudy_launcher", "-p", "understudy_outcomes"),
        *("-p", "no:cacheprovider"),
        *("-q", "-W", "ignore", "--tb=short", "--timeout=60", "--continue-on-collection-errors"),
        *("-c", str(configuration), f"--rootdir={folder}", *tests),
    ]
