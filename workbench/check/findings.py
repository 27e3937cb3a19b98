"""The findings of `check`, with their severities and places; `rules.py` has their codes."""

from __future__ import annotations

from typing import Literal, NamedTuple

from msgspec import Struct

Severity = Literal["error", "warning", "note"]


class Rule(NamedTuple):
    """A kind of finding."""

    severity: Severity
    """An error stops the start; a warning changes what is meant; a note informs."""
    title: str


class Place(NamedTuple):
    """A place in a file; lines and columns begin at 1."""

    file: str
    line: int = 1
    column: int = 1


class Finding(Struct, frozen=True, kw_only=True):
    """Something that a reader should know about a line."""

    code: str
    severity: Severity
    file: str
    line: int
    column: int
    message: str
    fix: str = ""
