"""Parses one call, `{"name": "f", "arguments": {...}}`, and emits each piece as early as possible."""

from __future__ import annotations

import json
import re
from typing import Final

from app.engine.core.outputs import Part, Piece

OPENING: Final = "{["
CLOSING: Final = "}]"
BEFORE_END: Final = frozenset(", }]\n\r\t")
"""Characters that end a number, true, false or null."""
IN_STRING: Final = re.compile(r'["\\]')
OUTSIDE: Final = re.compile(r'["{}\[\]]')


class JsonValue:
    """Finds the end of one JSON value, with blanks before it."""

    def __init__(self) -> None:
        self.closed = False
        self._depth = 0
        self._in_string = self._escaped = self._is_bare = self._begun = False

    def feed(self, text: str) -> int:
        """Returns how many characters of `text` belong to the value."""
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


LONGEST_HEAD: Final = 4096
"""Most characters before streamed arguments; later arguments wait for the whole call."""
HEAD: Final = re.compile(
    r'\s*\{\s*"name"\s*:\s*("[^"\\\x00-\x1f]*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\S)'
)


class CallObject:
    """Call number `number` of a reply. Emits its name first, then its arguments as written.

    Arguments that come before the name wait until the object is closed.
    """

    def __init__(self, number: int) -> None:
        self.raw = ""
        """All text of the call so far."""
        self.part: Part | None = None
        """None until the call's name is known."""
        self.closed = False
        self._number = number
        self._head: str | None = ""
        self._object, self._value = JsonValue(), JsonValue()

    @property
    def is_call(self) -> bool:
        """False for a closed object without a name or without arguments."""
        return self.part is not None

    def feed(self, text: str) -> tuple[list[Piece], str]:
        """Returns the new pieces, and the text behind the object."""
        end = self._object.feed(text)
        rest = text[end:]
        text = text[:end]
        self.raw += text
        self.closed = self._object.closed
        pieces = self._arguments(text) if self._head is None else self._begin(self._head + text)
        return pieces, rest

    def _begin(self, head: str) -> list[Piece]:
        tried = self._head is not None and len(self._head) > LONGEST_HEAD
        found = None if tried else HEAD.match(head, 0, LONGEST_HEAD)
        if found is not None:
            self._head = None
            return [
                *self._named(json.loads(found[1])),
                *self._arguments(head[found.end() :]),
            ]
        self._head = head
        return self._whole(head) if self.closed else []

    def _named(self, name: str) -> list[Piece]:
        self.part = Part("call", self._number, name)
        return [(self.part, "")]

    def _arguments(self, text: str) -> list[Piece]:
        if self._value.closed:
            return []
        shown = text[: self._value.feed(text)]
        return [(self.part, shown)] if shown else []

    def _whole(self, text: str) -> list[Piece]:
        """Parses a closed call whose keys are in another order, or that has more keys."""
        try:
            found = json.loads(text, strict=False)
        except (ValueError, RecursionError):
            return []
        name = found.get("name") if isinstance(found, dict) else None
        if not isinstance(name, str) or not is_unicode(name):
            return []
        given = found.get("arguments", found.get("parameters"))
        return [] if given is None else [*self._named(name), (self.part, json.dumps(given))]


def is_unicode(text: str) -> bool:
    """False for a text with half a surrogate pair, which cannot be sent."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
