"""Where a JSON value ends in a text that comes bit by bit; whether it is well made, others find out."""

from __future__ import annotations

import re
from typing import Final

OPENING: Final = "{["
CLOSING: Final = "}]"
BEFORE_END: Final = frozenset(", }]\n\r\t")
"""What ends a number, true, false or null."""
IN_STRING: Final = re.compile(r'["\\]')
OUTSIDE: Final = re.compile(r'["{}\[\]]')


class JsonValue:
    """One value, with blanks before it."""

    def __init__(self) -> None:
        self.closed = False
        self._depth = 0
        self._in_string = self._escaped = self._is_bare = self._begun = False

    def feed(self, text: str) -> int:
        """How many characters of `text` belong to it."""
        place = 0
        while place < len(text) and not self.closed:
            if self._in_string:
                place = self._string(text, place)
            elif self._depth:
                place = self._nested(text, place)
            else:
                place = self._outer(text, place)
        return place

    def _string(self, text: str, place: int) -> int:
        if self._escaped:
            self._escaped = False
            return place + 1
        found = IN_STRING.search(text, place)
        if found is None:
            return len(text)
        if found[0] == "\\":
            self._escaped = True
        else:
            self._in_string = False
            self.closed = not self._depth
        return found.end()

    def _nested(self, text: str, place: int) -> int:
        found = OUTSIDE.search(text, place)
        if found is None:
            return len(text)
        self._open(found[0])
        return found.end()

    def _outer(self, text: str, place: int) -> int:
        character = text[place]
        if self._is_bare and character in BEFORE_END:
            self.closed = True
            return place
        if not self._begun and character.isspace():
            return place + 1
        self._begun = True
        if character in CLOSING:  # there is no value
            self.closed = True
            return place
        if character == '"' or character in OPENING:
            self._open(character)
        else:
            self._is_bare = True
        return place + 1

    def _open(self, character: str) -> None:
        if character == '"':
            self._in_string = True
        elif character in OPENING:
            self._depth += 1
        else:
            self._depth -= 1
            self.closed = self._depth == 0
