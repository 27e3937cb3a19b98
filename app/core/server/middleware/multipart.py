"""Positions of the fields in a multipart body (RFC 2046, RFC 7578).

Every search is linear in the length of the body.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import unquote

MAX_BOUNDARY_CHARACTERS = 70
"""Longest boundary that RFC 2046 allows."""
_BOUNDARY = re.compile(r'(?i)\bboundary=(?:"(?P<quoted>[^"]{1,70})"|(?P<token>[^\s";,]{1,70}))')
_NAME = re.compile(
    r'(?i)[;\s]name\*?\s*+=\s*+(?:"(?P<quoted>(?:[^"\\]|\\.)*+)"?|(?P<token>[^;\s]++))', re.S
)
_ESCAPE = re.compile(r"\\(.)", re.S)
_EMPTY_LINE = re.compile(r"\r?\n\r?\n")


class Field(NamedTuple):
    """The content of a field is `text[start:end]`; `names` are all names that its head may mean."""

    names: tuple[str, ...]
    start: int
    end: int


def fields_of(text: str, content_type: str = "") -> Iterator[Field]:
    """Yields the fields of a multipart body in order, and nothing for any other body.

    Without a boundary in `content_type`, the body's first line is the delimiter. The content of a
    field that is cut ends with the body.
    """
    delimiter = _delimiter(text, content_type)
    if not delimiter:
        return
    position = _next_delimiter(text, delimiter, 0)
    while position < len(text):
        part_start = position + len(delimiter)
        part_end = _next_delimiter(text, delimiter, part_start)
        empty_line = _EMPTY_LINE.search(text, part_start, part_end)
        if empty_line is not None:
            head = text[part_start : empty_line.start()]
            start = empty_line.end()
            yield Field(tuple(_names(head)), start, max(start, _content_end(text, part_end)))
        position = part_end


def _delimiter(text: str, content_type: str) -> str:
    """Returns the line that separates fields, without its end; empty for other bodies."""
    if content_type.lower().startswith("multipart/"):
        match = _BOUNDARY.search(content_type)
        if match is not None:
            return f"--{match['quoted'] or match['token']}"
    if not text.startswith("--"):
        return ""
    line = text[: MAX_BOUNDARY_CHARACTERS + 4].partition("\n")[0].rstrip()
    if 2 < len(line) <= MAX_BOUNDARY_CHARACTERS + 2:
        return line
    return ""


def _next_delimiter(text: str, delimiter: str, start: int) -> int:
    """Returns the position of the next line that begins with `delimiter`, or the text's end."""
    position = text.find(delimiter, start)
    while position > 0 and text[position - 1] != "\n":
        position = text.find(delimiter, position + len(delimiter))
    if position < 0:
        return len(text)
    return position


def _content_end(text: str, part_end: int) -> int:
    """Returns the end of the content before a delimiter.

    The line break in between belongs to the delimiter.
    """
    if part_end == len(text):
        return part_end
    if text.endswith("\r\n", 0, part_end):
        return part_end - 2
    return part_end - 1


def _names(head: str) -> Iterator[str]:
    """Yields each name in a field's head as sent, and decoded.

    Browsers and RFC 8187 use percent signs.
    """
    for match in _NAME.finditer(head):
        name = match["token"]
        if match["quoted"] is not None:
            name = _ESCAPE.sub(r"\1", match["quoted"])
        yield name
        yield unquote(name.rpartition("'")[2])
