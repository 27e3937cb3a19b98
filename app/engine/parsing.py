"""Readers of a computing model's text: thoughts, calls in Hermes or Llama form, and plain text.

A reader is a function of the whole text so far, and of whether it has ended. It returns only what
is certain: more text adds to the last piece or behind it, and never changes what was returned
before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from app.engine.core.outputs import Part, Piece
from app.engine.core.request import EngineRequest

Read = Callable[[str, bool], list[Piece]]


class TextReader:
    """Splits a streamed text into parts, equal however the text was cut, as `read` gets all of the
    text.
    """

    def __init__(self, read: Read) -> None:
        self._read = read
        self._text = ""
        self._lengths: list[int] = []
        """Characters that were returned of each piece."""

    def feed(self, text: str) -> list[Piece]:
        """Returns the new pieces that are certain."""
        self._text += text
        return self._new(joined(self._read(self._text, False)))

    def finish(self) -> list[Piece]:
        return self._new(joined(self._read(self._text, True)))

    def _new(self, pieces: Sequence[Piece]) -> list[Piece]:
        lengths, self._lengths = self._lengths, [len(text) for _, text in pieces]
        known = [*lengths, *[-1] * (len(pieces) - len(lengths))]
        return [
            (part, text[max(0, length) :])
            for (part, text), length in zip(pieces, known, strict=True)
            if len(text) > length
        ]


def joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Joins neighbours of one part, but for the beginning of a call, which has no text."""
    found: list[Piece] = []
    for part, text in pieces:
        if found and found[-1][0] == part and found[-1][1]:
            text = found.pop()[1] + text
        found.append((part, text))
    return found


def plain(text: str, ended: bool) -> list[Piece]:
    return [(None, text)] if text else []


HEAD: Final = re.compile(
    r'\s*\{\s*"name"\s*:\s*("[^"\\\x00-\x1f]*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\S)'
)
LONGEST_HEAD: Final = 4096
"""Most characters before streamed arguments; later arguments wait for the whole call."""
BARE: Final = re.compile(r"[^, }\]\n\r\t]*")
"""A number, true, false or null; nothing where there is no value."""
TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*("?)|[{}\[\]]', re.DOTALL)
"""A string, perhaps without its end, or a bracket."""


def end_of_value(text: str, start: int) -> int | None:
    """Returns the end of the JSON value at `start`; None while the value goes on."""
    if text[start : start + 1] not in ("{", "[", '"'):
        end = BARE.match(text, start).end()  # type: ignore[union-attr]  # it matches nothing, too
        return end if end < len(text) else None
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
    """Returns the pieces of call `number`, its name first, and the end of its object; None while it
    is open.

    A closed object without a name or without arguments is no call, and has no pieces.
    """
    start = len(text) - len(text.lstrip())
    end = end_of_value(text, start) if text[start:] else None
    if (head := HEAD.match(text, 0, LONGEST_HEAD)) is not None:
        part = Part("call", number, json.loads(head[1]))
        shown = text[head.end() : end_of_value(text, head.end())]
        return [(part, ""), *([(part, shown)] if shown else [])], end
    if end is None:
        return [], None
    try:
        found = json.loads(text[start:end], strict=False)
    except (ValueError, RecursionError):
        return [], end
    name = found.get("name") if isinstance(found, dict) else None
    # Half a surrogate pair cannot be sent.
    if not isinstance(name, str) or any("\ud800" <= character <= "\udfff" for character in name):
        return [], end
    given = found.get("arguments", found.get("parameters"))
    part = Part("call", number, name)
    return [] if given is None else [(part, ""), (part, json.dumps(given))], end


def before_tag(text: str, tag: str, ended: bool) -> str:
    """Returns the text that is surely before `tag`: without the beginning of the tag at its end."""
    if ended:
        return text
    begun = (n for n in range(min(len(text), len(tag) - 1), 0, -1) if tag.startswith(text[-n:]))
    return text[: len(text) - next(begun, 0)]


CALL_BEGIN: Final = "<tool_call>"
CALL_END: Final = "</tool_call>"


def hermes(text: str, ended: bool) -> list[Piece]:
    """Reads calls in Hermes form.

    A malformed call stays text; text behind a call is dropped, as in vLLM.
    """
    pieces: list[Piece] = []
    calls, rest = 0, text
    while True:
        before, begin, rest = rest.partition(CALL_BEGIN)
        said = before if begin else before_tag(before, CALL_BEGIN, ended)
        pieces += plain(said, ended) if not calls else []
        if not begin:
            return pieces
        inner, end, rest = rest.partition(CALL_END)
        call, closed = call_pieces(inner if end else before_tag(inner, CALL_END, ended), calls)
        pieces += call
        if not end:
            is_cut_off = ended and (closed is None or not call)
            return [*pieces, (Part("call", calls, raw=text), "")] if is_cut_off else pieces
        calls += bool(call)
        pieces += [] if call else [(None, begin + inner + end)]


PYTHON_TAG: Final = "<|python_tag|>"
BETWEEN: Final = " \t\r\n,;[]"


def listed(text: str, ended: bool, forced: bool = False) -> list[Piece]:
    """Reads calls as bare JSON objects. A text that does not begin like a call is all text.

    `forced`: the text is a list of calls, however it begins. A call cut off before its name appears
    in whole answers only.
    """
    pieces: list[Piece] = []
    calls, rest = 0, text
    while True:
        inner = rest.lstrip(BETWEEN if calls or forced else None)
        if inner.startswith(PYTHON_TAG):
            inner = inner[len(PYTHON_TAG) :].lstrip()
        if not inner or not calls and PYTHON_TAG.startswith(inner):
            return plain(rest, ended) if ended and not calls else pieces
        if inner[0] != "{":
            return pieces or plain(rest, ended)
        call, end = call_pieces(inner, calls)
        pieces += call
        if end is None and (call or forced):
            return [*pieces, (Part("call", calls, raw=text), "")] if ended else pieces
        if not call:
            return plain(inner, ended) if not calls and (ended or end is not None) else pieces
        calls, rest = calls + 1, inner[end:]


THINK_BEGIN: Final = "<think>"
THINK_END: Final = "</think>"
THOUGHT: Final = Part("reasoning")


def thoughts(text: str, ended: bool, then: Read = plain, begun: bool = True) -> list[Piece]:
    """Reads thoughts; `then` reads the text behind them.

    Some templates write the opening tag themselves, so thoughts need not begin with it, unless
    `begun` is False.
    """
    inner = text.lstrip()
    if inner.startswith(THINK_BEGIN):
        text = inner[len(THINK_BEGIN) :]
    elif not ended and THINK_BEGIN.startswith(inner):  # or nothing but blanks
        return []
    elif not begun:
        return then(text, ended)
    thought, found, rest = text.partition(THINK_END)
    thought = thought if found else before_tag(thought, THINK_END, ended)
    return [*([(THOUGHT, thought)] if thought else []), *(then(rest, ended) if found else [])]


def readers(tool_call_parser: str) -> Callable[[EngineRequest], TextReader | None]:
    """Returns a function that makes a request's reader; `tool_call_parser` is `llama3_json`, else
    Hermes.
    """
    chosen = listed if tool_call_parser == "llama3_json" else hermes

    def reader_of(request: EngineRequest) -> TextReader | None:
        read: Read = plain
        if (calls := request.tool_calls) is not None:
            read = chosen
            if calls.min_calls:
                read = named(calls.tools[0].name) if calls.named else partial(listed, forced=True)
        form = request.form
        if request.reasoning and (form is None or form.thoughts is not None):
            # A constrained text without `thoughts` has no room for them.
            begun = form is None or form.thoughts is None or form.thoughts.begin_id is None
            read = partial(thoughts, then=read, begun=begun)
        return None if read is plain else TextReader(read)

    return reader_of


def named(name: str) -> Read:
    part = Part("call", 0, name)
    return lambda text, ended: [(part, text)] if text else []
