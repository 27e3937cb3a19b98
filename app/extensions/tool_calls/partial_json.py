"""Completes JSON whose end is missing, so that the values so far can be read.

`loads_first` reads the first value of a text as vLLM's parser of Llama's calls does: a number, a
word or a text that was cut off counts where the caller allows it, and a field without a value does
not.
"""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

WORDS: Final = ("null", "true", "false", "Infinity", "-Infinity", "NaN")
NUMBER: Final = re.compile(r"-?[0-9][0-9.+\-eE]*")
CUT_ESCAPE: Final = re.compile(r"(?<!\\)(?:\\\\)*(\\(?:u[0-9a-fA-F]{0,3})?)\Z")
"""An escape sequence that the end of the text cuts off."""
STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*', re.DOTALL)
BLANK: Final = re.compile(r"\s*")
BRACKETS: Final = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[{}\[\]]', re.DOTALL)
QUOTED: Final = r'"[^"\\]*(?:\\.[^"\\]*)*"'
FINITE_NUMBER: Final = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
SCALAR: Final = rf"(?:{QUOTED}|true|false|null|{FINITE_NUMBER})"
# One item at a time: Python before 3.11.5 ends too early at a possessive repetition of a group
# (github.com/python/cpython/issues/106052), and a greedy one would remember each repetition.
CERTAIN_ITEM: Final = re.compile(rf"\s*{SCALAR}\s*,", re.DOTALL)
"""An item of a list with its comma."""
CERTAIN_FIELD: Final = re.compile(rf"\s*{QUOTED}\s*:\s*{SCALAR}\s*,", re.DOTALL)
"""A field of an object with its comma."""
DECODER: Final = json.JSONDecoder()
PAIRS: Final = {"}": "{", "]": "["}


class _Completion(NamedTuple):
    """A value that ends at `end`, or one that `suffix` completes there."""

    end: int
    suffix: str | None
    """None for a complete value."""


def loads_first(
    text: str, start: int, *, is_open: bool, allow_cut_text: bool
) -> tuple[object, int]:
    """Returns the JSON value at `start`, and its end.

    An incomplete value takes all characters. `is_open`: brackets are open at the end of the text.

    Raises:
        ValueError: The text does not begin with JSON.
        RecursionError: The value has too many levels.
    """
    if not is_open:
        try:
            value, end = DECODER.raw_decode(text, _skip_blanks(text, start))
        except json.JSONDecodeError:
            if text.find("{", start) >= 0 or text.find("[", start) >= 0:
                raise
        else:
            if _skip_blanks(text, end) == len(text):
                return value, len(text)
    try:
        return DECODER.raw_decode(text, start)
    except json.JSONDecodeError:
        pass
    certain_text = text.rstrip()
    start = _skip_blanks(certain_text, start)
    completion = _complete(certain_text, start, allow_cut_text, is_top=True)
    if completion is None:
        raise ValueError("the value does not contain a complete part")
    return json.loads(certain_text[start : completion.end] + (completion.suffix or "")), len(text)


def has_open_brackets(text: str, start: int) -> bool:
    """Returns whether brackets that begin at `start` or behind it are open at the end.

    Raises:
        ValueError: A bracket closes none, or another one.
    """
    stack: list[str] = []
    for match in BRACKETS.finditer(text, start):
        token = match[0]
        if token in "{[":
            stack.append(token)
        elif token in PAIRS and (not stack or stack.pop() != PAIRS[token]):
            raise ValueError("mismatched brackets")
    return bool(stack)


def _skip_blanks(text: str, start: int) -> int:
    match = BLANK.match(text, start)
    assert match is not None
    return match.end()


def _complete(
    text: str, start: int, allow_cut_text: bool, is_top: bool = False
) -> _Completion | None:
    """Returns the completion of the value at `start`; None if no part is certain."""
    if start >= len(text):
        return None
    first = text[start]
    if first == '"':
        return _complete_text(text, start, allow_cut_text)
    if first in "{[":
        return _complete_container(text, start, allow_cut_text)
    first_letters = text[start : start + len(max(WORDS, key=len))]
    for word in WORDS:
        if first_letters.startswith(word):
            return _Completion(start + len(word), None)
        if first_letters != "-" and word.startswith(first_letters):
            return _Completion(start, word)
    return _complete_number(text, start, is_top)


def _complete_number(text: str, start: int, is_top: bool) -> _Completion | None:
    if text[start:] == "-":
        return None
    match = NUMBER.match(text, start)
    if match is None:
        raise ValueError("the text is not a JSON value")
    digits = match[0].rstrip(".-+eE")
    end = start + len(digits)
    is_cut = end < match.end() or match.end() == len(text) and not is_top
    return _Completion(end, "" if is_cut else None)


def _complete_text(text: str, start: int, allow_cut_text: bool) -> _Completion | None:
    match = STRING.match(text, start)
    assert match is not None
    if text[match.end() : match.end() + 1] == '"':
        return _Completion(match.end() + 1, None)
    if not allow_cut_text:
        return None
    end = len(text)
    cut = CUT_ESCAPE.search(text, start)
    if cut is not None:
        end = cut.start(1)
    return _Completion(end, '"')


def _complete_container(text: str, start: int, allow_cut_text: bool) -> _Completion:
    """Returns the completion of an object or a list: up to the last item that is certain."""
    is_object = text[start] == "{"
    close = "}" if is_object else "]"
    certain_end = start + 1
    position = start + 1
    while True:
        next_item = _skip_certain_items(text, position, is_object)
        certain_end = max(certain_end, next_item - 1)
        position = _skip_blanks(text, next_item)
        if text[position : position + 1] == close:
            return _Completion(position + 1, None)
        if is_object:
            value_start = _value_start(text, position)
            if value_start is None:
                return _Completion(certain_end, close)
            position = value_start
        item = _complete(text, position, allow_cut_text)
        if item is None:
            return _Completion(certain_end, close)
        if item.suffix is not None:
            return _Completion(item.end, item.suffix + close)
        certain_end = item.end
        position = _skip_blanks(text, item.end)
        separator = text[position : position + 1]
        if separator == close:
            return _Completion(position + 1, None)
        if not separator:
            return _Completion(certain_end, close)
        if separator != ",":
            raise ValueError("there is no comma between two items")
        position += 1


def _skip_certain_items(text: str, position: int, is_object: bool) -> int:
    """Returns the position behind the comma of the last item before a list or an object."""
    pattern = CERTAIN_FIELD if is_object else CERTAIN_ITEM
    match = pattern.match(text, position)
    while match is not None:
        position = match.end()
        match = pattern.match(text, position)
    return position


def _value_start(text: str, position: int) -> int | None:
    """Returns the position of the value of the field at `position`; None before its colon."""
    if position >= len(text):
        return None
    if text[position] != '"':
        raise ValueError("a field has no name")
    name = _complete_text(text, position, allow_cut_text=False)
    if name is None:
        return None
    position = _skip_blanks(text, name.end)
    if position >= len(text):
        return None
    if text[position] != ":":
        raise ValueError("a field is not followed by a colon")
    return _skip_blanks(text, position + 1)
