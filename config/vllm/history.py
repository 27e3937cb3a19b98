"""When options, JSON keys, environment variables and metrics of vLLM came and went, since 0.6.

scripts/version_diff/history.py generates history.json from vLLM's source distributions.
"""

import re
from pathlib import Path

import msgspec
from msgspec import Struct, field

_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.\w+)*$")
FILE = Path(__file__).with_name("history.json")


def version_number(version: str) -> tuple[int, int]:
    """Returns the two numbers of a version such as 0.11, 0.11.2 or v0.11; zeros for other texts.

    Of "0.15 or 0.16", the later version counts.
    """
    match = _VERSION.search(version)
    if match is None:
        return 0, 0
    return int(match[1]), int(match[2])


class Lifetime(Struct, omit_defaults=True):
    """The versions that have a name."""

    periods: list[tuple[str, str]]
    """First version with the name, and first one without it; empty for before 0.6 and for none.
    If a version between is not known, both are named, as in "0.15 or 0.16"."""
    replacement: str = ""
    """Replacement of a name that the newest version lacks; `unknown` if vLLM names none."""
    kind: str = ""
    """Kind of a metric that the newest version has: counter, gauge, or histogram."""
    defaults: list[tuple[str, str, str]] = []
    """The versions that changed the default of an option, with the texts of both values; empty
    for None, with which vLLM decides."""

    def is_gone_in(self, version: str) -> bool:
        """Returns whether a version, such as 0.32, does not have the name any more."""
        return bool(self.gone_in) and version_number(self.gone_in) <= version_number(version)

    def changed_default(self, old: str, new: str) -> tuple[str, str, str] | None:
        """Returns the last change from one version to another, with the first value before it."""
        first, last = version_number(old), version_number(new)
        changes = [each for each in self.defaults if first < version_number(each[0]) <= last]
        if not changes:
            return None
        before, after = changes[0][1], changes[-1][2]
        if before == after or {before, after} <= {"", "empty", "off"}:
            return None
        return changes[-1][0], before, after

    def is_in(self, version: str) -> bool:
        """Returns whether a version has the name."""
        number = version_number(version)
        for first, end in self.periods:
            if version_number(first) <= number and (not end or number < version_number(end)):
                return True
        return False

    @property
    def gone_in(self) -> str:
        """The version without the name; empty if the newest version has it."""
        return self.periods[-1][1]


class History(Struct):
    """The tables, by names such as --max-num-seqs and --compilation-config.mode."""

    source: str = ""
    releases: dict[str, str] = field(default_factory=dict)
    """The release that was read for each minor version; others are not known."""
    options: dict[str, Lifetime] = field(default_factory=dict)
    keys: dict[str, Lifetime] = field(default_factory=dict)
    variables: dict[str, Lifetime] = field(default_factory=dict)
    metrics: dict[str, Lifetime] = field(default_factory=dict)


def read_history() -> History:
    """Reads the tables, which takes a few milliseconds: only errors need them."""
    return msgspec.json.decode(FILE.read_bytes(), type=History)
