"""Long JSON, parsed in slices: as `json.loads` does it, errors included, without keeping others waiting.

The library parses what is short: elements of a list or an object, as many as fit into `AT_ONCE` characters.
Only containers that are longer than that are gone through here.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn, cast

from app.clock.pause import Slices
from app.protocol.coercion import JsonObject

AT_ONCE = 1 << 14
"""Characters that are parsed between two pauses: 1 ms at most."""
CHARS = 8
"""Characters that count as one value looked at."""
LONGEST_ESCAPE = 6
NESTED = 6
"""Values that a container counts as which is gone through here."""
DEEP = 32
"""Levels after which it is worth while to find out again whether a container is short."""

_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_PLAIN = r'[^\[\]{}",]*+'


def _container_of(inside: str) -> str:
    """The pattern of a list or an object that holds scalars, and what matches `inside`."""
    return rf'[\[{{][^\[\]{{}}"]*+(?:(?:{inside})[^\[\]{{}}"]*+)*+[\]}}]'


_SHALLOW = _container_of(f"{_STRING}|{_container_of(_STRING)}")
_RUN = re.compile(rf"(?:{_PLAIN}(?:(?:{_STRING}|{_SHALLOW}){_PLAIN})*+,)+", re.DOTALL)
"""Elements with at most two containers in one another, each with its comma.

Nothing in it is tried a second way (`*+`): each character of a long text would be, where the text ends behind
the piece that is looked at.
"""
_PIECE = re.compile(r'(?:[^"\\]++|\\(?:u[0-9a-fA-F]{4}|[^u]))*+', re.DOTALL)
_SECOND = re.compile(r"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
"""The second half of a character that is written as two."""
_BLANK = re.compile(r"[ \t\n\r]+")
_decode = json.JSONDecoder().raw_decode


def parse(data: bytes | str, within: Slices) -> object:
    """The value in `data`. Raises what `json.loads` does: JSONDecodeError, ValueError or RecursionError.

    The last for what is long and about 450 levels deep; the library takes twice as many.
    """
    if isinstance(data, bytes):
        data = data.decode(json.detect_encoding(data), "surrogatepass")
    parser = _Parser(data, within)
    try:
        value, end = parser.value(parser.skip(0))
    except ValueError:
        parser.fail()
    if (end := parser.skip(end)) != len(parser.text):
        raise json.JSONDecodeError("Extra data", parser.text, end)
    return value


class _Parser:
    """Each method parses what begins at a place in `text`, and tells where it ends.

    ValueError for what is no JSON; `fail` then tells why.
    """

    def __init__(self, text: str, within: Slices) -> None:
        self.text = text
        self._within = within
        self._at = 0
        self._before: list[str] = []
        """What could stand before `_at`, a piece for each container that is open there."""
        self._long_until = 0

    def skip(self, at: int) -> int:
        """The next place that is not blank."""
        while (blank := _BLANK.match(self.text, at, at + AT_ONCE)) is not None:
            at = blank.end()
            self._within.spend(len(blank[0]) // CHARS)
        return at

    def value(self, at: int) -> tuple[object, int]:
        """A value of any kind."""
        begin = self.text[at : at + 1]
        if begin == "[" or begin == "{":
            return self._short(at) or (self._list(at) if begin == "[" else self._object(at))
        return self._scalar(at)

    def fail(self) -> NoReturn:
        """Raise what the library has to say of the place where it went wrong."""
        before = "".join(self._before)
        try:
            json.loads(before + self.text[self._at :])
        except json.JSONDecodeError as error:
            at = error.pos - len(before) + self._at
            if error.pos < len(before):  # Python 3.13 and newer: a comma that nothing follows
                at = self.text.rindex(",", 0, self._at)
            raise json.JSONDecodeError(error.msg, self.text, at) from None
        raise ValueError("no JSON in this place")

    def _scalar(self, at: int) -> tuple[object, int]:
        """A text, or a number or a word, which the library parses in one go, however long it is."""
        if self.text.startswith('"', at) and not self.text.startswith('"', self._end_of_piece(at + 1)):
            return self._long_text(at)
        value, end = _decode(self.text, at)
        self._within.spend(1 + (end - at) // CHARS)
        return value, end

    def _long_text(self, at: int) -> tuple[object, int]:
        text, pieces, end = self.text, list[str](), at + 1
        while not text.startswith('"', end):
            start, end = end, self._end_of_piece(end)
            if start == end:  # the library tells what is wrong
                return _decode(text, at)
            pieces.append(_decode(f'"{text[start:end]}"')[0])
            self._within.spend((end - start) // CHARS)
        return "".join(pieces), end + 1

    def _end_of_piece(self, at: int) -> int:
        """Behind the next characters of a text, before its end; no escape is cut, and no pair of them."""
        piece = _PIECE.match(self.text, at, at + AT_ONCE + LONGEST_ESCAPE)
        assert piece is not None
        second = _SECOND.match(self.text, piece.end())
        return piece.end() if second is None else second.end()

    def _short(self, at: int) -> tuple[object, int] | None:
        """A list or an object that is short; None for one that is not, or not known to be."""
        if at < self._long_until and len(self._before) % DEEP:
            return None
        try:
            value, length = _decode(self.text[at : at + AT_ONCE])
        except ValueError:
            # Nor are, most likely, those that it begins with: it is not worth while to try each of them.
            self._within.spend(AT_ONCE // CHARS)
            self._long_until = at + AT_ONCE // 2
            return None
        self._within.spend(1 + length // CHARS)
        return value, at + length

    def _list(self, at: int) -> tuple[object, int]:
        text, items = self.text, list[object]()
        at = self._open("[", at)
        if text[at : at + 1] == "]":
            return items, self._close(at)
        while True:
            while run := _RUN.match(text, at, at + AT_ONCE):
                items += self._elements(f"[{run[0][:-1]}]")
                at = self._reach('["",', run.end())
            item, at = self.value(at)
            items.append(item)
            at = self._reach('[""', at)
            if text[at : at + 1] == "]":
                return items, self._close(at)
            at = self._reach('["",', self._behind(",", at))

    def _object(self, at: int) -> tuple[object, int]:
        text, members = self.text, JsonObject()
        at = self._open("{", at)
        if text[at : at + 1] == "}":
            return members, self._close(at)
        while True:
            while run := _RUN.match(text, at, at + AT_ONCE):
                members.update(self._elements(f"{{{run[0][:-1]}}}"))
                at = self._reach('{"":"",', run.end())
            self._behind('"', at)
            key, at = self._scalar(at)
            at = self._reach('{""', at)
            at = self._reach('{"":', self._behind(":", at))
            members[cast(str, key)], at = self.value(at)
            at = self._reach('{"":""', at)
            if text[at : at + 1] == "}":
                return members, self._close(at)
            at = self._reach('{"":"",', self._behind(",", at))

    def _elements(self, container: str) -> Any:
        """The list or the object of some elements, which there must be."""
        self._within.spend(len(container) // CHARS)
        elements = json.loads(container)
        if not elements:
            raise ValueError("nothing before a comma")
        return elements

    def _open(self, bracket: str, at: int) -> int:
        """Begin a container: where its first element is, or its end."""
        self._within.spend(NESTED)
        self._before.append(bracket)
        return self._reach(bracket, at + 1)

    def _close(self, at: int) -> int:
        self._before.pop()
        return at + 1

    def _reach(self, before: str, at: int) -> int:
        """Remember the next place that is not blank, and what could stand before it in this container."""
        self._before[-1] = before
        self._at = self.skip(at)
        return self._at

    def _behind(self, sign: str, at: int) -> int:
        """The place behind a sign that must be here."""
        if self.text[at : at + 1] != sign:
            raise ValueError(f"{sign} is missing")
        return at + 1
