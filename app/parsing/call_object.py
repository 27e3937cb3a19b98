"""One call as models write it: `{"name": "f", "arguments": {...}}`, told as soon as it can be."""

from __future__ import annotations

import json
import re
from typing import Final

from app.engine.outputs import Part, Piece
from app.parsing.json_value import JsonValue

LONGEST_HEAD: Final = 4096
"""Characters up to the arguments, in which they are looked for."""
HEAD: Final = re.compile(
    r'\s*\{\s*"name"\s*:\s*("[^"\\\x00-\x1f]*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\S)'
)


class CallObject:
    """Call number `number` of a reply. Its name comes first, then its arguments as they are written.

    Where the arguments come before the name nothing is told until the object is closed.
    """

    def __init__(self, number: int) -> None:
        self.raw = ""
        """All of it so far."""
        self.part: Part | None = None
        """None until its name is known."""
        self.closed = False
        self._number = number
        self._head: str | None = ""
        self._object, self._value = JsonValue(), JsonValue()

    @property
    def is_call(self) -> bool:
        """False of an object that is closed, and has no name or no arguments."""
        return self.part is not None

    def feed(self, text: str) -> tuple[list[Piece], str]:
        """What the text tells, and the rest of it, behind the object."""
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
        """A call in another order, or with more in it."""
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
    """False of a text with half a surrogate pair, which cannot be sent."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
