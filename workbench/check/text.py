"""The texts of files, and texts within them, with the places of their characters.

Scripts are values of YAML files, and dashboards are values of ConfigMaps. Their words have the
lines and columns of the file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from workbench.check.findings import Place


class Text:
    """The text of a file, with the places of its characters."""

    def __init__(self, file: str, text: str, start: Place | None = None) -> None:
        """`start` is the place of the first character; by default the beginning of the file."""
        self.file = file
        self.text = text
        self._start = start or Place(file)
        self._starts = [0, *accumulate(len(line) for line in text.splitlines(keepends=True))]

    def place(self, offset: int) -> Place:
        """Returns the line and column of a character."""
        line = bisect_right(self._starts, offset)
        column = offset - self._starts[line - 1] + 1
        if line == 1:
            column += self._start.column - 1
        return Place(self.file, line + self._start.line - 1, column)


class Part(NamedTuple):
    """Characters of a text that are written one after the other in another text."""

    offset: int
    """First character, in the text."""
    outer_offset: int
    """First character, in the other text."""


class InnerText(Text):
    """A text that is written in another one, such as the value of a YAML file."""

    def __init__(self, outer: Text, text: str, parts: Iterable[Part]) -> None:
        """`parts` are in order, and the first one has offset 0."""
        self.file = outer.file
        self.text = text
        self._outer = outer
        self._parts = list(parts)

    def place(self, offset: int) -> Place:
        """Returns the line and column of a character in the file."""
        index = bisect_right(self._parts, offset, key=_offset_of) - 1
        part = self._parts[max(0, index)]
        return self._outer.place(part.outer_offset + offset - part.offset)

    def replaced(self, text: str) -> InnerText:
        """Returns another text of the same length with the same places."""
        return InnerText(self._outer, text, self._parts)


def _offset_of(part: Part) -> int:
    return part.offset


class _JoinedText(Text):
    def __init__(self, texts: Sequence[Text]) -> None:
        self.file = texts[0].file if texts else ""
        self.text = " ".join(text.text for text in texts)
        self._texts = texts
        self._begins = [0, *accumulate(len(text.text) + 1 for text in texts[:-1])]

    def place(self, offset: int) -> Place:
        index = bisect_right(self._begins, offset) - 1
        return self._texts[index].place(offset - self._begins[index])


def joined(texts: Sequence[Text]) -> Text:
    """Returns texts with a blank between them, and with their places."""
    return _JoinedText(texts)
