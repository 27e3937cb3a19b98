"""The lines of a report: breaks, and changes that break nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from app.core.versions.change import Change
from workbench.check.findings import Place

Kind = Literal[
    "request field",
    "request",
    "answer field",
    "stream",
    "metric",
    "file",
    "command",
    "test",
    "behavior",
]


REASON_START = "Before vLLM"


class Item(Struct, frozen=True, kw_only=True):
    """A difference between the two versions that concerns the client or its files."""

    kind: Kind
    file: str
    """File, or method and path of the route where no file names the difference."""
    line: int = 0
    """Line of the file; 0 for a route."""
    message: str
    why: str = ""
    """The change of the release."""
    fix: str = ""
    """The way out; empty if none is known."""

    @property
    def reason(self) -> str:
        """The sentences of the release that made the difference; empty if none is known."""
        if not self.why and self.message.startswith(REASON_START):
            return self.message
        return self.why

    @property
    def place(self) -> str:
        """File and line, or the route."""
        if self.line:
            return f"{self.file}:{self.line}"
        return self.file


class Differences(Struct):
    """All that a comparison has found."""

    breaks: list[Item] = []
    changes: list[Item] = []
    causes: list[Item] = []
    """Changes that a failing command has met, and that may be the reason of its failure."""
    consequences: list[Item] = []
    """Failures of the command that the breaks explain."""

    def add(self, item: Item, *, breaks: bool) -> None:
        """Adds an item once."""
        items = self.breaks if breaks else self.changes
        if item not in items:
            items.append(item)

    def extend(self, other: Differences) -> None:
        """Adds all items of another comparison."""
        for item in other.breaks:
            self.add(item, breaks=True)
        for item in other.changes:
            if item not in self.causes:
                self.add(item, breaks=False)


def reason_of(release: str, change: Change) -> str:
    """Returns the two sentences of a change, with its release."""
    return f"{REASON_START} {release}: {change.before} Since then: {change.after}"


def place_of(place: Place | None, route: str) -> tuple[str, int]:
    """Returns the file and the line of a place, or the route without one."""
    if place is None:
        return route, 0
    return place.file, place.line


def listed(names: Iterable[str]) -> str:
    """Returns names as in "`a`, `b`"."""
    return ", ".join(f"`{name}`" for name in names)


def counted(count: int, noun: str) -> str:
    """Returns a number with its noun, as in "1 request" and "2 requests"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
