"""The names that a server of an older vLLM needs at its start: routes, and fields of classes.

`vllm_facts.history` has all tables.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import msgspec
from msgspec import Struct

FILE = Path(__file__).with_name("history.json")
OF_FASTAPI = frozenset(("GET /docs",))
"""Routes that FastAPI serves in the versions whose code does not declare them."""
Periods = list[tuple[str, str]]
"""Versions that have a name: the first one with it and the first one without it, in order. Empty
texts stand for before 0.6 and for none. A version is a minor one, such as 0.11, for the first
release of that version in the history, and a release, such as 0.11.1, for a later one."""
Values = list[tuple[str, str]]
"""A text and the version since which it holds, in order; without an entry, it is not known."""
OPTIONAL_MODULES = ("/kv_connector/", "/rl/", "/simple_kv_offload/", "/speech_to_text/")
"""Parts of the paths of modules whose metrics need a connector, a transfer of weights, or an audio
model."""
_RELEASE = re.compile(r"v?(\d{1,4}(?:\.\d{1,4})*)")


@lru_cache(maxsize=256)
def release_numbers(version: str) -> tuple[int, ...]:
    """Returns the numbers of a version, as in (0, 27, 1) for v0.27.1rc1; empty for other texts."""
    match = _RELEASE.match(version)
    if match is None:
        return ()
    return tuple(map(int, match[1].split(".")))


def has_begun(first: str, version: str) -> bool:
    """Returns whether a version is `first` or a later one. A minor one means its last release."""
    numbers = release_numbers(version)
    first_numbers = release_numbers(first)
    if len(numbers) == 2:
        first_numbers = first_numbers[:2]
    return first_numbers <= numbers


def holds(periods: Periods, version: str) -> bool:
    """Returns whether one of the periods has a version."""
    return any(
        has_begun(first, version) and not (end and has_begun(end, version))
        for first, end in periods
    )


def value_in(values: Values, version: str) -> str | None:
    """Returns the text that holds in a version; None if it is not known."""
    texts = [text for since, text in values if has_begun(since, version)]
    if not texts:
        return None
    return texts[-1]


class Schema(Struct, omit_defaults=True):
    """A class of requests, responses or events, and its fields as JSON names them.

    Classes with the same name are one: it has the fields of each.
    """

    periods: Periods
    fields: dict[str, Periods] = {}
    """No periods for a field that the class has always had."""
    required: dict[str, Periods] = {}
    """The versions that require a field; no periods if all versions with the field do."""

    def is_in(self, version: str) -> bool:
        """Returns whether a version has the class."""
        return holds(self.periods, version)

    def fields_in(self, version: str) -> frozenset[str]:
        """Returns the fields that a version has."""
        return frozenset(name for name in self.fields if self.has(name, version))

    def has(self, name: str, version: str) -> bool:
        """Returns whether a version has a field."""
        return holds(self.fields[name] or self.periods, version)


class Route(Struct):
    """A route, such as `POST /v1/completions`."""

    periods: Periods


class Metric(Struct):
    """A metric: the versions that have it, and the conditions and labels that hold in each."""

    periods: Periods
    conditions: Values = []
    labels: Values = []
    module: str = ""

    def is_plain_in(self, version: str) -> bool:
        """Returns whether a server of a version exports the metric without further options."""
        return (
            holds(self.periods, version)
            and not value_in(self.conditions, version)
            and not any(part in self.module for part in OPTIONAL_MODULES)
        )


class Metrics(Struct):
    """The part of the tables with the metrics."""

    metrics: dict[str, Metric]

    def labels_in(self, version: str) -> dict[str, frozenset[str]]:
        """Returns the metrics of a version that need no further options, with their labels."""
        return {
            name: frozenset((value_in(metric.labels, version) or "").split())
            for name, metric in self.metrics.items()
            if metric.is_plain_in(version)
        }


class Releases(Struct):
    """The part of the tables with the releases that were read."""

    releases: dict[str, list[str]]


class Names(Struct):
    """The part of the tables that a server of an older version needs at its start."""

    routes: dict[str, Route]
    schemas: dict[str, Schema]

    def absent_routes(self, version: str) -> Iterator[str]:
        """Yields the routes, such as "POST /v1/completions", that a version does not have."""
        for name, route in self.routes.items():
            if name not in OF_FASTAPI and not holds(route.periods, version):
                yield name

    def absent_fields(self, version: str) -> Iterator[str]:
        """Yields the fields, such as "UsageInfo.total_tokens", that a version's classes lack."""
        for name, schema in self.schemas.items():
            if schema.is_in(version):
                present = schema.fields_in(version)
                yield from (f"{name}.{field}" for field in schema.fields if field not in present)


def read_releases() -> dict[str, list[str]]:
    """Reads the releases, by minor version, which takes half a millisecond."""
    return msgspec.json.decode(FILE.read_bytes(), type=Releases).releases


def read_metrics() -> Metrics:
    """Reads the metrics, which takes half a millisecond."""
    return msgspec.json.decode(FILE.read_bytes(), type=Metrics)


def read_names() -> Names:
    """Reads a part of the tables, which takes a millisecond."""
    return msgspec.json.decode(FILE.read_bytes(), type=Names)
