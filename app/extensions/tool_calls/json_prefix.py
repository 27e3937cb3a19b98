"""Finds out how much of growing JSON arguments is certain."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

TOKEN: Final = re.compile(r'"((?:[^"\\]|\\.)*)(?:"|\\?\Z)|[{}\[\]:]', re.DOTALL)
SYNTAX: Final = re.compile(r'["\\{}\[\]]')
BLANK: Final = re.compile(r"[ \t\n\r]*")
STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*', re.DOTALL)


class ArgumentHold:
    """Holds the bracket that ends JSON arguments until something follows it, or the text ends."""

    def __init__(self) -> None:
        self._held = ""
        self.reset()

    def reset(self) -> None:
        """Begins the arguments of the next call; held text stays."""
        self._depth = 0
        self._in_text = False
        self._is_escaped = False

    def release(self) -> str:
        """Returns the held text."""
        held = self._held
        self._held = ""
        return held

    def feed(self, text: str) -> str:
        """Adds a text; returns what is certain."""
        if not text:
            return ""
        start = self._start_of_ending(text)
        certain = ""
        if start:
            certain = self.release() + text[:start]
        self._held += text[start:]
        return certain

    def _start_of_ending(self, text: str) -> int:
        """Reads a text; returns the place of the brackets at its end that end arguments."""
        start = 0
        end = 0
        escaped_position = 0 if self._is_escaped else -1
        for match in SYNTAX.finditer(text):
            position = match.start()
            if position == escaped_position:
                continue
            if match[0] == "\\" and self._in_text:
                escaped_position = position + 1
            elif self._ends(match[0]):
                if position != end:
                    start = position
                end = position + 1
        self._is_escaped = escaped_position == len(text)
        return start if end == len(text) else len(text)

    def _ends(self, character: str) -> bool:
        """Returns whether a quote or bracket closes the outermost bracket."""
        if character == '"':
            self._in_text = not self._in_text
        elif self._in_text:
            return False
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth = max(0, self._depth - 1)
            return self._depth == 0
        return False


def certain_arguments(arguments: str, text_fields: Collection[str] | None) -> str:
    """Returns the beginning of a JSON object that longer arguments will have, too.

    The last value may change its type and is left out, unless it is a text. `text_fields` are
    those that stay texts, None for all.
    """
    name, colon = _last_field(arguments)
    if colon < 0:
        return ""
    blank = BLANK.match(arguments, colon + 1)
    assert blank is not None
    start = blank.end()
    is_text = arguments[start : start + 1] == '"'
    if not is_text or text_fields is not None and name not in text_fields:
        return arguments[:start]
    text = STRING.match(arguments, start)
    assert text is not None
    return arguments[: text.end()]


def _last_field(arguments: str) -> tuple[str | None, int]:
    """Returns the name of the object's last field, and the place of its colon; -1 for none."""
    depth = 0
    colon = -1
    name: str | None = None
    last_text: str | None = None
    for match in TOKEN.finditer(arguments):
        token = match[0]
        if token in "{[":
            depth += 1
        elif token in "}]":
            depth -= 1
        elif token == ":":
            if depth == 1:
                colon = match.start()
                name = last_text
                last_text = None
        elif depth == 1:
            last_text = match[1]
    return name, colon
