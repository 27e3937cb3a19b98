"""Readers of a model's text: thoughts, required calls, calls in a parser's format, and plain text.

A reader is a function of the whole text so far, and of whether it has ended. It returns only
certain pieces: more text adds to the last piece or after it, and never changes earlier pieces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from app.core.engine.outputs import Part, Piece
from app.core.engine.request import ToolFunction
from app.core.engine.tool_replies import CallStream, ToolCallReader
from vllm_facts.reasoning_marks import THINK, ReasoningMarks

BETWEEN_CALLS: Final = " \t\r\n,;[]"
THOUGHT: Final = Part("reasoning")
HEAD: Final = re.compile(
    r'\s*\{\s*"name"\s*:\s*("[^"\\\x00-\x1f]*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\S)'
)
"""A call up to its arguments."""
MAX_HEAD: Final = 4096
"""Maximum characters before streamed arguments; later arguments wait for the whole call."""
BARE: Final = re.compile(r"[^, }\]\n\r\t]*")
"""A number, true, false or null; nothing where there is no value."""
TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*("?)|[{}\[\]]', re.DOTALL)
"""A string, perhaps without its end, or a bracket."""
Read = Callable[[str, bool], list[Piece]]


class TextReader:
    """Splits a streamed text into parts.

    The parts do not depend on how the text was cut, since `read` gets the whole text each time.
    """

    def __init__(self, read: Read) -> None:
        self._read = read
        self._text = ""
        self._lengths: list[int] = []
        """Returned characters of each piece."""

    def feed(self, text: str) -> list[Piece]:
        """Returns the new pieces that are certain."""
        self._text += text
        return self._new(merged(self._read(self._text, False)))

    def finish(self) -> list[Piece]:
        """Returns the remaining pieces, at the end of the text."""
        return self._new(merged(self._read(self._text, True)))

    def _new(self, pieces: Sequence[Piece]) -> list[Piece]:
        lengths = self._lengths
        self._lengths = [len(text) for _, text in pieces]
        new_pieces: list[Piece] = []
        for number, (part, text) in enumerate(pieces):
            if number >= len(lengths):
                new_pieces.append((part, text))
            elif len(text) > lengths[number]:
                new_pieces.append((part, text[lengths[number] :]))
        return new_pieces


def plain(text: str, ended: bool) -> list[Piece]:
    """Reads plain text."""
    if not text:
        return []
    return [(None, text)]


class CallRead:
    """Reads calls with a reader of the extension `tool_calls`."""

    def __init__(
        self, reader: ToolCallReader, tools: Sequence[ToolFunction], streams: bool
    ) -> None:
        """Unless the text `streams`, it is read as a whole at its end."""
        self._read_whole: Callable[[str], list[Piece]] | None = None
        self._stream: CallStream | None = None
        if streams:
            self._stream = reader.stream(tools)
        else:
            self._read_whole = partial(reader.pieces, tools=tools)
        self._length = 0
        self._pieces: list[Piece] = []

    def __call__(self, text: str, ended: bool) -> list[Piece]:
        """Returns the pieces of the text so far."""
        if self._read_whole is not None:
            return self._read_whole(text) if ended else []
        assert self._stream is not None
        if ended or len(text) > self._length:
            pieces = self._stream.feed(text[self._length :], ended)
            self._pieces = merged([*self._pieces, *filter(_is_shown, pieces)])
            self._length = len(text)
        return self._pieces


def _is_shown(piece: Piece) -> bool:
    return piece != (None, "")


def required_calls(text: str, ended: bool) -> list[Piece]:
    """Reads the list of calls that `tool_choice` required.

    A call cut off before its name appears in whole answers only.
    """
    pieces: list[Piece] = []
    calls = 0
    remaining = text
    while True:
        inner = remaining.lstrip(BETWEEN_CALLS)
        if not inner or inner[0] != "{":
            if not pieces and (inner or ended):
                return plain(remaining, ended)
            return pieces
        call, end = call_pieces(inner, calls)
        pieces += call
        if end is None:
            if ended:
                pieces.append((Part("call", calls, raw=text), ""))
            return pieces
        if not call:
            return pieces or plain(inner, ended)
        calls += 1
        remaining = inner[end:]


def thoughts(
    text: str,
    ended: bool,
    read_text: Read = plain,
    begun: bool = True,
    marks: ReasoningMarks = THINK,
) -> list[Piece]:
    """Reads thoughts; `read_text` reads the text after them.

    Some templates write the opening tag themselves, so thoughts need not begin with it, unless
    `begun` is False.
    """
    opening, closing = marks
    inner = text.lstrip()
    if inner.startswith(opening):
        text = inner[len(opening) :]
    elif not ended and opening.startswith(inner):  # or nothing but blanks
        return []
    elif not begun:
        return read_text(text, ended)
    thought, end, remaining = text.partition(closing)
    if not end:
        thought = before_tag(thought, closing, ended)
    pieces: list[Piece] = []
    if thought:
        pieces.append((THOUGHT, thought))
    if end:
        pieces += read_text(remaining, ended)
    return pieces


def named(name: str) -> Read:
    """Returns the reader of a text that consists of the arguments of a call of `name`."""
    return partial(_arguments, part=Part("call", 0, name))


def _arguments(text: str, ended: bool, part: Part) -> list[Piece]:
    if not text:
        return []
    return [(part, text)]


def merged(pieces: Sequence[Piece]) -> list[Piece]:
    """Joins adjacent pieces of one part, except for the beginning of a call, which has no text."""
    joined: list[Piece] = []
    for part, text in pieces:
        if joined and joined[-1][0] == part and joined[-1][1]:
            text = joined.pop()[1] + text
        joined.append((part, text))
    return joined


def end_of_value(text: str, start: int) -> int | None:
    """Returns the end of the JSON value at `start`; None while the value goes on."""
    if text[start : start + 1] not in ("{", "[", '"'):
        end = BARE.match(text, start).end()  # type: ignore[union-attr]  # it matches nothing, too
        if end < len(text):
            return end
        return None
    depth = 0
    for token in TOKEN.finditer(text, start):
        if token[0][0] != '"':
            depth += 1 if token[0] in "{[" else -1
        elif not token[1]:
            return None
        if not depth:
            return token.end()
    return None


def call_pieces(text: str, number: int) -> tuple[list[Piece], int | None]:
    """Returns the pieces of call `number`, its name first, and the end of its object.

    The end is None while the object is open. A closed object without a name or without arguments is
    not a call, and has no pieces.
    """
    start = len(text) - len(text.lstrip())
    end = end_of_value(text, start) if text[start:] else None
    head = HEAD.match(text, 0, MAX_HEAD)
    if head is not None:
        part = Part("call", number, json.loads(head[1]))
        pieces: list[Piece] = [(part, "")]
        arguments = text[head.end() : end_of_value(text, head.end())]
        if arguments:
            pieces.append((part, arguments))
        return pieces, end
    if end is None:
        return [], None
    try:
        call = json.loads(text[start:end], strict=False)
    except (ValueError, RecursionError):
        return [], end
    name = call.get("name") if isinstance(call, dict) else None
    # Half a surrogate pair cannot be sent.
    if not isinstance(name, str) or any("\ud800" <= character <= "\udfff" for character in name):
        return [], end
    arguments = call.get("arguments", call.get("parameters"))
    if arguments is None:
        return [], end
    part = Part("call", number, name)
    return [(part, ""), (part, json.dumps(arguments))], end


def before_tag(text: str, tag: str, ended: bool) -> str:
    """Returns the text that is surely before `tag`: without a beginning of the tag at its end."""
    if ended:
        return text
    for length in range(min(len(text), len(tag) - 1), 0, -1):
        if tag.startswith(text[-length:]):
            return text[:-length]
    return text
