"""The names of vLLM in each release since 0.6, with their declarations.

`python -m scripts.version_diff.history` generates history.json from vLLM's distributions. Start
reading at `History`.
"""

import re
from pathlib import Path

import msgspec
from msgspec import Struct, field

from vllm_facts.names import (
    FILE,
    OPTIONAL_MODULES,
    Periods,
    Schema,
    Values,
    has_begun,
    holds,
    value_in,
)

_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.\w+)*$")
NOTHING = frozenset(("", "empty", "off", "{}"))
"""Texts of defaults that mean the same."""
CONTEXT_BUCKETS = "1-2-5"
"""Buckets of a histogram: 1, 2, 5, 10, 20 ... up to the length of the context."""


def version_number(version: str) -> tuple[int, int]:
    """Returns the two numbers of a version such as 0.11, 0.11.2 or v0.11; zeros for other texts."""
    match = _VERSION.search(version)
    if match is None:
        return 0, 0
    return int(match[1]), int(match[2])


def required_fields(schema: Schema, version: str) -> frozenset[str]:
    """Returns the fields of a class that a version requires."""
    return frozenset(
        name
        for name, periods in schema.required.items()
        if schema.has(name, version) and (not periods or holds(periods, version))
    )


class Lifetime(Struct, omit_defaults=True):
    """A name: the versions that have the name, and their declarations."""

    periods: Periods
    replacement: str = ""
    """Replacement of a name that the newest version lacks; `unknown` if vLLM names none. Of another
    name, the replacement that the newest version recommends."""
    kind: str = ""
    """Kind of a metric: counter, gauge, or histogram."""
    takes: Values = []
    """The values after an option: `nothing`, `maybe` a value, `one`, or `some`."""
    types: Values = []
    """The type of an option, such as `int | None`."""
    choices: dict[str, Periods] = {}
    """The values in the type of an option; a value without periods is as old as the option. The
    option takes further values if `str` is in its type, too, as in `choice | str`. Of a JSON key,
    the names that stand for an object."""
    defaults: Values = []
    """The default of an option as on a command line: on, off, a value, or empty for None, which
    leaves the decision to vLLM. A default that only vLLM's code knows has no entry."""
    labels: Values = []
    """The labels of a metric, separated by spaces."""
    buckets: Values = []
    """The bounds of a histogram, separated by spaces, or `CONTEXT_BUCKETS`."""
    conditions: Values = []
    """The conditions in vLLM's code under which a metric exists; empty for none."""
    module: str = ""
    """The last file that declares a metric: those of connectors exist only with the connector."""

    does: Values = []
    """Words for the abilities of an architecture, which `vllm_facts.registry` reads."""
    parameters: Values = []
    """The parameters of a route with their types, as in `tags: list[str] | None`."""
    keys: Values = []
    """The keys of the objects that the handler of a route makes, its answer among them."""

    def is_gone_in(self, version: str) -> bool:
        """Returns whether a version, such as 0.32, does not have the name any more."""
        return bool(self.gone_in) and has_begun(self.gone_in, version)

    def first_after(self, version: str) -> str:
        """Returns the first release after a version that brought the name; empty for none."""
        later = (first for first, _ in self.periods if not has_begun(first, version))
        return next(later, "")

    def changed_default(self, old: str, new: str) -> tuple[str, str, str] | None:
        """Returns the last change from one version to another, with the first value before it."""
        changes = [since for since, _ in self.defaults[1:]]
        changes = [each for each in changes if has_begun(each, new) and not has_begun(each, old)]
        before = value_in(self.defaults, old)
        after = value_in(self.defaults, new)
        if not changes or before is None or after is None:
            return None
        if before == after or {before, after} <= NOTHING:
            return None
        return changes[-1], before, after

    def is_in(self, version: str) -> bool:
        """Returns whether a version has the name."""
        return holds(self.periods, version)

    def choices_in(self, version: str) -> list[str]:
        """Returns the values that a version accepts, in alphabetical order."""
        return [
            name
            for name, periods in self.choices.items()
            if holds(periods or self.periods, version)
        ]

    @property
    def gone_in(self) -> str:
        """The version without the name; empty if the newest version has it."""
        return self.periods[-1][1]


class History(Struct):
    """The tables, by names such as --max-num-seqs and --compilation-config.mode."""

    source: str = ""
    releases: dict[str, list[str]] = field(default_factory=dict)
    """The releases that were read, in order, by minor version."""
    options: dict[str, Lifetime] = field(default_factory=dict)
    keys: dict[str, Lifetime] = field(default_factory=dict)
    variables: dict[str, Lifetime] = field(default_factory=dict)
    metrics: dict[str, Lifetime] = field(default_factory=dict)
    routes: dict[str, Lifetime] = field(default_factory=dict)
    """By method and path, as in `POST /v1/completions`."""
    tool_parsers: dict[str, Lifetime] = field(default_factory=dict)
    reasoning_parsers: dict[str, Lifetime] = field(default_factory=dict)
    quantizations: dict[str, Lifetime] = field(default_factory=dict)
    """The values of --quantization."""
    architectures: dict[str, Lifetime] = field(default_factory=dict)
    """The architectures in vLLM's registry of models. These and the suffixes are in registry.json,
    and `vllm_facts.registry` reads them."""
    suffixes: dict[str, Lifetime] = field(default_factory=dict)
    """The ends of architectures that decide where the registry lacks one."""
    schemas: dict[str, Schema] = field(default_factory=dict)
    """By class of vLLM, such as ChatCompletionRequest."""
    events: dict[str, Schema] = field(default_factory=dict)
    """The structs of KV events."""

    def fields(self, schema: str, version: str) -> frozenset[str]:
        """Returns the fields of a class in a version; none if the version lacks the class."""
        if schema not in self.schemas:
            return frozenset()
        return self.schemas[schema].fields_in(version)

    def families_in(self, version: str) -> dict[str, Lifetime]:
        """Returns the metrics that a server of a version exports without further options."""
        return {
            name: lifetime
            for name, lifetime in self.metrics.items()
            if lifetime.is_in(version)
            and not value_in(lifetime.conditions, version)
            and not any(part in lifetime.module for part in OPTIONAL_MODULES)
        }

    def methods_in(self, version: str) -> dict[str, frozenset[str]]:
        """Returns the methods of each route of a version, by path."""
        methods: dict[str, set[str]] = {}
        for name, lifetime in self.routes.items():
            if lifetime.is_in(version):
                method, _, path = name.partition(" ")
                methods.setdefault(path, set()).add(method)
        return {path: frozenset(names) for path, names in methods.items()}


def read_history(file: Path = FILE) -> History:
    """Reads the tables, which takes 5 milliseconds: only errors and old versions need them."""
    return msgspec.json.decode(file.read_bytes(), type=History)
