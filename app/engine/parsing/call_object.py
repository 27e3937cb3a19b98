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


class JsonValue:
    """Finds the end of one JSON value, with blanks before it."""

    def __init__(self) -> None:
        self.closed = False
        self._depth = 0
        self._in_string = self._escaped = self._is_bare = False

    def feed(self, text: str) -> int:
        """Returns how many characters of `text` belong to the value."""
        if self.closed:
            return 0
        for place, character in enumerate(text):
            if self._in_string:
                if self._escaped or character == "\\":
                    self._escaped = not self._escaped
                elif character == '"':
                    self._in_string = False
                    self.closed = not self._depth
            elif not self._depth and character in (BEFORE_END if self._is_bare else CLOSING):
                self.closed = True  # behind a bare value, or there is no value
                return place
            elif character == '"':
                self._in_string = True
            elif character in OPENING:
                self._depth += 1
            elif character in CLOSING:
                self._depth -= 1
                self.closed = self._depth == 0
            elif not self._depth and not character.isspace():
                self._is_bare = True
            if self.closed:
                return place + 1
        return len(text)


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
            return [*self._named(json.loads(found[1])), *self._arguments(head[found.end() :])]
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
