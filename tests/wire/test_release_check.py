"""The checks of a release that need no package index: scripts/release_check.py."""

import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from scripts.release_check import (
    IMAGE_REQUIRED_FILES,
    Release,
    ReleaseError,
    check_names,
    image_files,
    run,
    supported_pythons,
)
from tests.running_server import ROOT


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit, whose project supports two versions of Python."""
    root = tmp_path / "repository"
    root.mkdir()
    (root / "pyproject.toml").write_text(
        '[project]\nversion = "1.2.0"\nrequires-python = ">=3.11"\n'
        '[dependency-groups]\ntest = ["pytest==9.2.0"]\n'
        "[tool.uv]\nenvironments = [\"python_version < '3.13'\"]\n"
    )
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "Begin"]):
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.com"]
        subprocess.run(["git", *identity, *command], cwd=root, check=True)
    return root


def release_of(repository: Path, tmp_path: Path) -> Release:
    folder = tmp_path / "folder"
    folder.mkdir()
    return Release(repository, folder, Path("uv"))


@pytest.mark.git
def test_release_check_exports_only_committed_files(repository: Path, tmp_path: Path) -> None:
    release = release_of(repository, tmp_path)
    assert release.version == "1.2.0"
    assert len(release.export()) >= 7
    assert [path.name for path in release.sources.iterdir()] == ["pyproject.toml"]


@pytest.mark.git
@pytest.mark.parametrize("name", ["pyproject.toml", "unknown.txt"])
def test_uncommitted_files_fail_the_release_check(
    name: str, repository: Path, tmp_path: Path
) -> None:
    release = release_of(repository, tmp_path)
    (repository / name).write_text("[project]\n")
    with pytest.raises(ReleaseError, match=rf"not clean; commit or remove:\n.* {name}$"):
        release.export()


def test_release_check_uses_the_supported_python_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pythons = dict(supported_pythons(project))
    assert set(pythons) <= {"3.11", "3.12", "3.13", "3.14"}
    for version, python in pythons.items():
        code = "import sys; print(*sys.version_info[:2], sep='.')"
        assert run([python, "-c", code], cwd=ROOT).strip() == version
    with pytest.raises(ReleaseError, match="no range of Python"):
        list(supported_pythons({}))


def test_image_context_matches_the_files_that_the_dockerfile_copies() -> None:
    names = image_files(ROOT)
    assert set(IMAGE_REQUIRED_FILES) - {"Dockerfile"} <= set(names)
    assert not any(name.startswith(("tests/", "docs/")) for name in names)


def test_package_that_contains_tests_or_lacks_a_module_is_rejected(tmp_path: Path) -> None:
    wheel = tmp_path / "a.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a/cli.py", "")
    check_names(wheel, ["a/cli.py"])
    with pytest.raises(ReleaseError, match="^a.whl lacks a/config.py$"):
        check_names(wheel, ["a/config.py"])
    package = tmp_path / "a.tar.gz"
    (tmp_path / "test_a.py").touch()
    with tarfile.open(package, "w:gz") as archive_of_sources:
        archive_of_sources.add(tmp_path / "test_a.py", "a-1.0/tests/test_a.py")
    with pytest.raises(ReleaseError, match=r"^a.tar.gz contains a-1.0/tests/test_a.py$"):
        check_names(package, [])


def test_error_message_contains_the_output_of_the_failed_step(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match=r"^sh -c .* failed:\nfirst\nsecond\n$"):
        run(["sh", "-c", "echo first; echo second >&2; exit 3"], cwd=tmp_path)
    with pytest.raises(ReleaseError, match="^no-such-program: "):
        run(["no-such-program"], cwd=tmp_path)
