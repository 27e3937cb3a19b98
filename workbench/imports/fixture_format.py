"""A format of fixtures, and the notations of formats."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple

from workbench.imports.imported_script import ImportedScript, Json

MAX_DAMAGED = 1000
"""Most damaged lines or items that are listed: a longer list is of no more use."""


class Notation(Enum):
    """How a file is written. Each has its own type of content, which a format reads."""

    DOCUMENT = auto()
    """A document of JSON or YAML; the content is its value."""
    RECORDS = auto()
    """A log of JSON objects; the content is `Records`."""
    TEXT = auto()
    """Text; the content is a `str`."""


class Record(NamedTuple):
    """An object of a log. `number` is that of its first line, or its place in a list, from 1."""

    number: int
    fields: Json


@dataclass
class Records:
    """The objects of a log.

    Attributes:
        noun: The word for `Record.number`: `line` or `item`.
        found: The objects.
        damaged: Numbers of lines with an object that is not valid JSON, such as a cut one, and of
            objects with too many values.
        other_lines: Number of lines without an object.
        unlisted: Number of damaged ones beyond the first `MAX_DAMAGED`.
    """

    noun: str
    found: list[Record] = field(default_factory=list)
    damaged: list[int] = field(default_factory=list)
    other_lines: int = 0
    unlisted: int = 0

    def add_damaged(self, number: int) -> None:
        """Adds a damaged line or item: its number, unless there are too many to be listed."""
        if len(self.damaged) < MAX_DAMAGED:
            self.damaged.append(number)
        else:
            self.unlisted += 1


class Format(NamedTuple):
    """A format that can be imported."""

    about: str
    """Description of its files, for the list of formats in an error message."""
    is_format: Callable[[Any], bool]
    """Returns whether the content has this format."""
    read: Callable[[Any, ImportedScript], Json | None]
    """Adds the rules; may return the schemas of tools."""
    keys: tuple[str, ...] = ()
    """Keys of the outermost object; each file has at least one."""
    notation: Notation = Notation.DOCUMENT
