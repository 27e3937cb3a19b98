"""Questions about the order of versions, which few servers and commands ask."""

from __future__ import annotations

from collections.abc import Iterable

from vllm_facts.names import Names, read_releases, release_numbers
from vllm_facts.version import DESCRIBED, FIRST, OF_CODE, Version, first_release, parse_version


def is_too_old(text: str) -> bool:
    """Returns whether a version is in the history, but earlier than the first one for a server."""
    numbers = release_numbers(text)
    first = next(iter(read_releases()))
    return release_numbers(first) <= numbers < release_numbers(FIRST)


def is_downgrade(old: str, new: str) -> bool:
    """Returns whether `new` is earlier than `old`."""
    return parse_version(new) < parse_version(old)


def described_versions(version: Version) -> tuple[str, ...]:
    """Returns the described versions up to `version`; the first one if `version` is older."""
    names = tuple(name for name in DESCRIBED if first_release(name) <= version)
    return names or DESCRIBED[:1]


def nearest_minor(minor: int, others: Iterable[int], *, is_earlier: bool = False) -> int | None:
    """Returns the minor number next to `minor`, the lower one of two; None without others.

    `is_earlier` leaves out the numbers after `minor`.
    """
    candidates = [other for other in others if not (is_earlier and other > minor)]
    return min(candidates, key=lambda other: (abs(other - minor), other), default=None)


def new_fields(names: Names, release: str) -> dict[str, list[str]]:
    """Returns the fields, by class, that a release has and the version of the code lacks."""
    fields: dict[str, list[str]] = {}
    for name, schema in names.schemas.items():
        if schema.is_in(release) and schema.is_in(OF_CODE):
            new = schema.fields_in(release) - schema.fields_in(OF_CODE)
            if new:
                fields[name] = sorted(new)
    return fields


def ends_between(names: Names, field: str, old: str, new: str) -> list[str]:
    """Returns the releases after `old`, up to `new`, that removed a field from a class."""
    first, last = release_numbers(old), release_numbers(new)
    ends = {
        end
        for schema in names.schemas.values()
        for _, end in schema.fields.get(field, ())
        if end and first < release_numbers(end) <= last
    }
    return sorted(ends, key=release_numbers)
