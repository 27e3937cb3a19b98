"""Prints the requirements of a part of the project with the versions in uv.lock.

python scripts/locked.py [--lock FILE] NAME...: a name is `project` (what the server needs), an
extra, or a dependency group of pyproject.toml. The output is a requirements file for pip, so that
the make targets install the tested versions without uv. Needs no packages.
"""

import argparse
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOCK = Path(__file__).resolve().parent.parent / "uv.lock"
PROJECT = "project"
CUDA_PACKAGES = ("cuda-", "nvidia-", "triton")
"""Requirements of the torch on PyPI, which the build of torch for CPUs does not have."""

Condition = frozenset[str]
"""Markers that must all hold; empty if the package is always needed."""


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """A package, or what an extra of the package adds."""

    name: str
    version: str
    extra: str = ""
    """Name of the extra; empty for the package itself."""


class Lock:
    """The packages of a lock file and what each of them needs."""

    def __init__(self, path: Path) -> None:
        packages: list[dict[str, Any]] = tomllib.loads(path.read_text("utf-8"))["package"]
        self._packages = {(package["name"], package["version"]): package for package in packages}
        self._versions: dict[str, list[str]] = {}
        for name, version in self._packages:
            self._versions.setdefault(name, []).append(version)
        [self._project] = [
            package for package in packages if {"editable", "virtual"} & package["source"].keys()
        ]

    def requirements(self, names: Iterable[str]) -> list[str]:
        """Returns one line for each package that the extras and groups `names` need.

        Raises:
            KeyError: The project has neither an extra nor a group of such a name.
        """
        conditions: dict[Part, set[Condition]] = {}
        pending = [step for name in names for step in self._named(name)]
        while pending:
            part, condition = pending.pop()
            reached = conditions.setdefault(part, set())
            if any(other <= condition for other in reached):
                continue
            reached.add(condition)
            pending.extend(self._needs(part, condition))
        lines = []
        for part in sorted(conditions):
            if not part.extra and part.name != self._project["name"]:
                lines.append(f"{part.name}=={part.version}{_marker(conditions[part])}")
        return lines

    def _named(self, name: str) -> Iterator[tuple[Part, Condition]]:
        """Yields what a name on the command line needs."""
        groups = self._project.get("dev-dependencies", {})
        if name in groups:
            for dependency in groups[name]:
                yield from self._parts(dependency, frozenset())
            return
        project = self._project["name"]
        extras = [extra for extra in (name,) if extra != PROJECT]
        if not {*extras} <= self._project.get("optional-dependencies", {}).keys():
            raise KeyError(name)
        yield from self._parts({"name": project, "extra": extras}, frozenset())

    def _needs(self, part: Part, condition: Condition) -> Iterator[tuple[Part, Condition]]:
        package = self._packages[part.name, part.version]
        if not part.extra:
            dependencies = package.get("dependencies", [])
        else:
            dependencies = package.get("optional-dependencies", {}).get(part.extra, [])
        for dependency in dependencies:
            if not dependency["name"].startswith(CUDA_PACKAGES):
                yield from self._parts(dependency, condition)

    def _parts(
        self, dependency: dict[str, Any], condition: Condition
    ) -> Iterator[tuple[Part, Condition]]:
        """Yields the package that `dependency` names, and its extras."""
        name = dependency["name"]
        version = dependency.get("version")
        if version is None:
            [version] = self._versions[name]
        if "marker" in dependency:
            condition |= {dependency["marker"]}
        yield Part(name, version), condition
        for extra in dependency.get("extra", []):
            yield Part(name, version, extra), condition


def _marker(conditions: set[Condition]) -> str:
    """Returns the end of a requirement line that holds where any of `conditions` holds."""
    if frozenset() in conditions:
        return ""
    alternatives = []
    for condition in sorted(conditions, key=sorted):
        markers = sorted(condition)
        if len(markers) > 1 or len(conditions) > 1:
            markers = [f"({marker})" for marker in markers]
        alternatives.append(" and ".join(markers))
    return f" ; {' or '.join(alternatives)}"


def main() -> None:
    """Prints the requirements file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lock", type=Path, default=LOCK, metavar="FILE")
    parser.add_argument("names", nargs="+", metavar="NAME")
    options = parser.parse_args()
    print(
        f"# Exported from {options.lock.name} ({', '.join(options.names)}): make lock updates it."
    )
    try:
        print("\n".join(Lock(options.lock).requirements(options.names)))
    except KeyError as error:
        parser.error(f"neither an extra nor a dependency group of the project: {error}")


if __name__ == "__main__":
    main()
