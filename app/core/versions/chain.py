"""The versions of vLLM that can be played, each made from the newest one by undoing changes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from app.core.versions.change import Absent, Answer, Reading, Rules
from app.core.versions.shape import NEWEST_SHAPE, Shape
from vllm_facts.names import read_metrics, read_names
from vllm_facts.version import (
    CLEARED,
    OF_CODE,
    PATCHES,
    Version,
    later_versions,
    parse_version,
    playable_version,
)

if TYPE_CHECKING:
    from app.core.server.http.route import Route
    from app.core.versions.change import Change
    from config.settings import ApiSettings

    OlderRoute = Callable[[Route, Sequence[Answer]], Route]

R = TypeVar("R", bound=Struct)
F = TypeVar("F")
NULLABLE_FIELDS = frozenset(("skip_special_tokens",))
"""Fields of requests whose null stands for the default, although their type has no null."""
CACHE_CONFIG = "vllm:cache_config_info"
CORE = "app.core.versions"
EXTENSIONS = "app.extensions"


class PlayedVersion:
    """The version of vLLM that a server or a simulation plays."""

    def __init__(self, version: Version, undone: Sequence[Change]) -> None:
        """`undone` are the changes of later versions, the newest first."""
        self.version = version
        self.undone = undone
        self.is_of_code = version.name == OF_CODE and not undone
        """True of the version that the code plays."""
        self.absent_labels: frozenset[str] = frozenset()
        """Labels of vllm:cache_config_info that the version does not have."""
        self.nullable_fields = NULLABLE_FIELDS
        """Fields of requests where null stands for the default."""
        for absent in self._forms(Absent):
            self.nullable_fields -= frozenset(absent.nulls)
            self.absent_labels |= frozenset(absent.labels)
        self._rules: dict[type[Struct], Struct] = {}
        self.readings: dict[str, list[Reading]] = {}
        """Functions that read requests as this version does, by path, the oldest first."""
        # A request becomes one of the next release, step by step; answers go the other way.
        for reading in self._forms(Reading):
            for path in reading.paths:
                self.readings.setdefault(path, []).insert(0, reading)

    @property
    def _lacks_nothing(self) -> bool:
        """True if no name of the code is absent in the version."""
        return self.is_of_code and self.version.name == CLEARED

    @cached_property
    def has_families_of_code(self) -> bool:
        """True if the engine has the code's metrics, without `absent_labels`."""
        if self._lacks_nothing:
            return True
        metrics = read_metrics()
        labels = metrics.labels_in(self.release)
        if CACHE_CONFIG in labels:
            labels[CACHE_CONFIG] |= self.absent_labels
        return labels == metrics.labels_in(PATCHES[CLEARED])

    @cached_property
    def absent_routes(self) -> frozenset[str]:
        """Routes, such as "POST /v1/decisions", that the version does not have."""
        return frozenset(() if self._lacks_nothing else read_names().absent_routes(self.release))

    @cached_property
    def shape(self) -> Shape:
        """The fields of `documented`, and more that forms of changes write or read."""
        kept = [name for form in self._forms(Absent) for name in form.kept]
        return Shape(self.absent_fields.difference(kept)) if kept else self.documented

    @cached_property
    def documented(self) -> Shape:
        """The fields that requests and answers of the version have."""
        return NEWEST_SHAPE if self._lacks_nothing else Shape(self.absent_fields)

    @cached_property
    def absent_fields(self) -> frozenset[str]:
        """Fields, such as "UsageInfo.total_tokens", that the version's classes lack."""
        names = read_names()
        absent = set(names.absent_fields(self.release))
        if self.is_of_code:  # the code has none of the names that were removed before
            absent.difference_update(names.absent_fields(PATCHES[CLEARED]))
        for form in self._forms(Absent):
            absent.update(form.fields)
        return frozenset(absent)

    @property
    def release(self) -> str:
        """The number that vLLM reports, such as 0.27.1."""
        return self.version.release

    def rules(self, kind: type[R]) -> R:
        """Returns the rules of this version."""
        rules = self._rules.get(kind)
        if rules is None:
            values: dict[str, object] = {}
            name = f"{kind.__module__}.{kind.__name__}"
            # The newest change comes first, so that older values replace newer ones.
            for form in self._forms(Rules):
                if form.kind == name:
                    values |= form.values if isinstance(form.values, dict) else form.values()
            rules = kind(**values)
            self._rules[kind] = rules
        assert isinstance(rules, kind)
        return rules

    def routes(self, routes: Iterable[Route], older_route: OlderRoute) -> list[Route]:
        """Returns the routes that this version has; `older_route` gives them its answers."""
        older: list[Route] = []
        for route in routes:
            methods = tuple(
                method
                for method in route.methods
                if f"{method} {route.path}" not in self.absent_routes
            )
            if not methods:
                continue
            if methods != route.methods:
                route = replace(route, methods=methods)
            answers = self.answers(route.path)
            # A release that is newer than the code may have new fields, and no change.
            if answers or self.version.is_new:
                route = older_route(route, answers)
            older.append(route)
        return older

    def answers(self, path: str) -> list[Answer]:
        """Returns what turns answers of a path into those of this version, in order."""
        return [
            form
            for form in self._forms(Answer)
            if path in form.paths and self.version >= parse_version(form.since)
        ]

    def read(self, path: str, body: bytes) -> bytes:
        """Returns a request's body as the newest version would receive it.

        Raises:
            ApiError: This version refuses the request.
        """
        readings = self.readings.get(path)
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
    """Returns the changes of a minor version, such as 0.33, to the core and the extensions."""
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
