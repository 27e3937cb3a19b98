"""The versions of vLLM that can be played, each made from the newest one by undoing changes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from app.core.versions.shape import NEWEST_SHAPE, Shape
from config.vllm.history import read_names
from config.vllm.version import (
    PATCHES,
    Version,
    later_versions,
    parse_version,
    playable_version,
)

if TYPE_CHECKING:
    from app.core.server.http.route import Route
    from app.core.versions.change import Answer, Change, Reading
    from config.settings import ApiSettings

R = TypeVar("R", bound=Struct)
F = TypeVar("F")
CORE = "app.core.versions"
NULLABLE_FIELDS = frozenset(("skip_special_tokens",))
"""Fields of requests whose null stands for the default, although their type has no null."""
EXTENSIONS = "app.extensions"


class PlayedVersion:
    """The version of vLLM that a server or a simulation plays."""

    def __init__(self, version: Version, undone: Sequence[Change]) -> None:
        """`undone` are the changes of later versions, the newest first."""
        from app.core.versions.change import Absent, Reading

        self.version = version
        self.undone = undone
        names = read_names() if undone else None
        self.absent_routes: frozenset[str] = frozenset()
        """Routes, such as "POST /v1/decisions", that the version does not have."""
        self.absent_labels: frozenset[str] = frozenset()
        """Labels of metrics, such as "vllm:cache_config_info.prefix_match_unit"."""
        self.nullable_fields = NULLABLE_FIELDS
        """Fields of requests where null stands for the default."""
        absent_fields: set[str] = set()
        kept: set[str] = set()
        if names is not None:
            self.absent_routes = frozenset(names.absent_routes(version.release))
            absent_fields.update(names.absent_fields(version.release))
        for absent in self._forms(Absent):
            absent_fields.update(absent.fields)
            kept.update(absent.kept)
            self.nullable_fields -= frozenset(absent.nulls)
            self.absent_labels |= frozenset(absent.labels)
        self.documented = Shape(absent_fields) if absent_fields else NEWEST_SHAPE
        """The fields that requests and answers of the version have."""
        self.shape = Shape(absent_fields - kept) if kept else self.documented
        """These fields, and those that forms of changes write or read."""
        self._rules: dict[type[Struct], Struct] = {}
        self._readings: dict[str, list[Reading]] = {}
        """Functions that read requests as this version does, by path, the oldest first."""
        for reading in self._forms(Reading):
            for path in reading.paths:
                self._readings.setdefault(path, []).insert(0, reading)

    @property
    def name(self) -> str:
        """The minor version, such as 0.27."""
        return self.version.name

    @property
    def release(self) -> str:
        """The number that vLLM reports, such as 0.27.1."""
        return self.version.release

    def rules(self, kind: type[R]) -> R:
        """Returns the rules of this version."""
        from app.core.versions.change import Rules

        rules = self._rules.get(kind)
        if rules is None:
            values: dict[str, object] = {}
            name = f"{kind.__module__}.{kind.__name__}"
            for form in self._forms(Rules):
                if form.kind == name:
                    values |= form.values if isinstance(form.values, dict) else form.values()
            rules = kind(**values)
            self._rules[kind] = rules
        assert isinstance(rules, kind)
        return rules

    def routes(self, routes: Iterable[Route]) -> list[Route]:
        """Returns the routes that this version has, with its answers."""
        older: list[Route] = []
        for route in routes:
            methods = tuple(
                method
                for method in route.methods
                if f"{method} {route.path}" not in self.absent_routes
            )
            if methods == route.methods:
                older.append(self._older(route))
            elif methods:
                older.append(self._older(replace(route, methods=methods)))
        return older

    def _older(self, route: Route) -> Route:
        answers = self.answers(route.path)
        if not answers:
            return route
        from app.core.versions.boundary import bounded_route

        return bounded_route(route, answers)

    def answers(self, path: str) -> list[Answer]:
        """Returns what turns answers of a path into those of this version, in order."""
        from app.core.versions.change import Answer

        return [
            form
            for form in self._forms(Answer)
            if path in form.paths and self._has_begun(form.since)
        ]

    def _has_begun(self, release: str) -> bool:
        return not release or self.version >= parse_version(release)

    def read(self, path: str, body: bytes) -> bytes:
        """Returns a request's body as the newest version would receive it.

        Raises:
            ApiError: This version refuses the request.
        """
        readings = self._readings.get(path)
        if readings is None:
            return body
        from app.core.versions.reading import read_body

        return read_body(body, readings)

    def _forms(self, kind: type[F]) -> Iterator[F]:
        for change in self.undone:
            for form in change.forms:
                if isinstance(form, kind):
                    yield form


def changes_of(name: str) -> list[Change]:
    """Returns the changes of a minor version, such as 0.33, in the core and all extensions."""
    changes: list[Change] = []
    release = f"v{name.replace('.', '_')}"
    for package, folder in _packages():
        if Path(folder, "releases", f"{release}.py").is_file():
            changes += import_module(f"{package}.releases.{release}").CHANGES
    return changes


def _packages() -> Iterator[tuple[str, str]]:
    """Yields the packages that may have a folder of releases, with their own folders.

    An extension hands over its changes by this folder, and takes them along when it is deleted.
    """
    yield CORE, str(Path(__file__).parent)
    for folder in import_module(EXTENSIONS).__path__:
        for name in sorted(os.listdir(folder)):
            yield f"{EXTENSIONS}.{name}", f"{folder}/{name}"


def changes_between(old: str, new: str) -> Iterator[tuple[str, Change]]:
    """Yields the changes since `old` up to `new`, each with the minor version that made it."""
    for name in PATCHES:
        if parse_version(old) < parse_version(name) <= parse_version(new):
            for change in changes_of(name):
                yield name, change


@cache
def played_version(text: str) -> PlayedVersion:
    """Returns the version of a name such as 0.27 or v0.27.1.

    Raises:
        ValueError: The version is unknown.
    """
    version = playable_version(text)
    undone: list[Change] = []
    for later in later_versions(version):
        undone += changes_of(later)
    return PlayedVersion(version, undone)


def simulated_version(api: ApiSettings) -> PlayedVersion:
    """Returns the version that a server with these settings plays."""
    return played_version(api.vllm_version)
