"""The lock files agree with pyproject.toml, and every file derived from them agrees with the locks."""

import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from scripts.locked import Lock
from tests.running_server import ROOT

LOCKS = {
    "server": ROOT / "uv.lock",
    "clients": ROOT / "tests" / "conformance" / "python" / "uv.lock",
}
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
GROUPS: dict[str, list[Any]] = PYPROJECT["dependency-groups"]
EXTRAS: dict[str, list[str]] = PYPROJECT["project"]["optional-dependencies"]
PROJECT_REQUIREMENTS: list[str] = PYPROJECT["project"]["dependencies"]
OTHER_ENVIRONMENTS = {"server": {"docs", "mutants"}, "clients": {"clients"}}
"""Groups that are installed without the server."""


@cache
def lock_of(name: str) -> Lock:
    """Returns a lock file, which takes a tenth of a second to read."""
    return Lock(LOCKS[name])


def locked_versions(lines: list[str]) -> dict[str, set[str]]:
    """Returns the versions of each package in the lines of a requirements file."""
    versions: dict[str, set[str]] = {}
    for line in lines:
        [(name, version)] = re.findall(r"^([a-z0-9-]+)==(\S+)", line)
        versions.setdefault(name, set()).add(version)
    return versions


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_requirements_txt_equals_the_export_of_the_lock_file() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "locked.py"), "project"]
    exported = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert (ROOT / "requirements.txt").read_text() == exported


@pytest.mark.parametrize("name", [None, *EXTRAS, *GROUPS])
def test_locked_versions_satisfy_pyproject(name: str | None) -> None:
    if name is None:
        declared: list[Any] = PROJECT_REQUIREMENTS
    else:
        declared = EXTRAS.get(name) or GROUPS[name]
    versions = locked_versions(lock_of("server").requirements([name or "project"]))
    for text in declared:
        if isinstance(text, dict):  # the group includes another group
            continue
        requirement = Requirement(text)
        if normalized(requirement.name) == PYPROJECT["project"]["name"]:
            continue
        locked = versions[normalized(requirement.name)]
        assert all(requirement.specifier.contains(version) for version in locked), text


EXACT_PACKAGES = ("xllamacpp",)
"""Packages of which the code knows the structures of one release, and rejects any other."""


def test_version_ranges_start_at_the_locked_minor_version() -> None:
    lock = lock_of("server")
    versions = locked_versions(lock.requirements(["project", *EXTRAS]))
    for text in [*PROJECT_REQUIREMENTS, *(line for lines in EXTRAS.values() for line in lines)]:
        requirement = Requirement(text)
        if normalized(requirement.name) == PYPROJECT["project"]["name"]:
            continue
        [version] = versions[normalized(requirement.name)]
        if requirement.name in EXACT_PACKAGES:
            assert str(requirement.specifier) == f"=={version}", text
            continue
        major_and_minor = re.match(r"\d+\.\d+", version)
        assert major_and_minor and str(requirement.specifier) == f"~={major_and_minor[0]}", text


def test_dependency_groups_pin_exact_versions() -> None:
    clients = tomllib.loads((LOCKS["clients"].parent / "pyproject.toml").read_text())
    groups = {**GROUPS, **clients["dependency-groups"]}
    lines = [line for group in groups.values() for line in group if isinstance(line, str)]
    pinned = [line for line in lines if not line.startswith("vllm-understudy[")]
    assert pinned and all("==" in line for line in pinned)


@pytest.mark.parametrize("name", LOCKS)
def test_lock_files_name_only_public_registries(name: str) -> None:
    hosts = set(re.findall(r"\w+://([^/\"]+)", LOCKS[name].read_text()))
    assert hosts == {"pypi.org", "files.pythonhosted.org"}


def test_engine_requirements_contain_no_cuda_packages() -> None:
    versions = locked_versions(lock_of("server").requirements(["engine-test"]))
    assert "torch" in versions and "openai" in versions
    assert not [name for name in versions if name.startswith(("nvidia", "cuda", "triton"))]


def test_documentation_mutation_and_client_groups_omit_gunicorn() -> None:
    for name, groups in OTHER_ENVIRONMENTS.items():
        for group in groups:
            assert "gunicorn" not in locked_versions(lock_of(name).requirements([group]))


def test_environment_markers_are_inherited_by_dependencies(tmp_path: Path) -> None:
    lock = tmp_path / "uv.lock"
    lock.write_text(
        """
        [[package]]
        name = "root"
        version = "1"
        source = { editable = "." }
        dependencies = [{ name = "a", marker = "m == 1" }, { name = "b", extra = ["x"] }]
        [[package]]
        name = "a"
        version = "1"
        source = { registry = "https://pypi.org/simple" }
        dependencies = [{ name = "c", version = "2", marker = "m == 2 or m == 3" }]
        [[package]]
        name = "b"
        version = "1"
        source = { registry = "https://pypi.org/simple" }
        [package.optional-dependencies]
        x = [{ name = "c", version = "1" }]
        [[package]]
        name = "c"
        version = "1"
        source = { registry = "https://pypi.org/simple" }
        [[package]]
        name = "c"
        version = "2"
        source = { registry = "https://pypi.org/simple" }
        """
    )
    assert Lock(lock).requirements(["project"]) == [
        "a==1 ; m == 1",
        "b==1",
        "c==1",
        "c==2 ; (m == 1) and (m == 2 or m == 3)",
    ]


def test_unknown_group_name_is_rejected() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "locked.py"), "nothing"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "'nothing'" in done.stderr
