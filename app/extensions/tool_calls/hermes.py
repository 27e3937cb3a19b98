"""Calls of Hermes models: JSON with `name` and `arguments` between <tool_call> and </tool_call>."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from app.core.engine.request import ToolFunction
from app.extensions.tool_calls.parser import (
    Call,
    CallDelta,
    Delta,
    ParsedText,
    checked_call,
    completed,
    overlap,
)

BEGIN: Final = "<tool_call>"
END: Final = "</tool_call>"
NAME: Final = re.compile(r'"name"\s*:\s*"([^"]+)"')
ARGUMENTS: Final = re.compile(r'"arguments"\s*:\s*')


class TaggedText(NamedTuple):
    """The text behind an opening tag, up to the closing tag if there is one."""

    text: str
    is_closed: bool


def parse(text: str, tools: Sequence[ToolFunction] = ()) -> ParsedText:
    """Reads a whole text. A text with a malformed call is returned unchanged."""
    content, begin, _ = text.partition(BEGIN)
    if not begin:
        return ParsedText(text)
    try:
        calls = [_read_call(tagged.text) for tagged in tagged_texts(text)]
    except (KeyError, RecursionError, TypeError, ValueError):
        return ParsedText(text)
    return ParsedText(content, calls)


def _read_call(text: str) -> Call:
    call = json.loads(text)
    arguments = json.dumps(call["arguments"], ensure_ascii=False)
    return checked_call(call["name"], arguments)


def tagged_texts(text: str) -> Iterator[TaggedText]:
    """Yields the texts of all calls; the last one may be open."""
    begin = text.find(BEGIN)
    while begin >= 0:
        start = begin + len(BEGIN)
        end = text.find(END, start)
        if end < 0:
            yield TaggedText(text[start:], False)
            return
        yield TaggedText(text[start:end], True)
        begin = text.find(BEGIN, end + len(END))


class HermesStream:
    """Reads a stream; text behind the first call is dropped."""

    def __init__(self, tools: Sequence[ToolFunction] = ()) -> None:
        self._text = ""
        self._sent_content = 0
        """Characters of the content that were sent."""
        self._names: list[str | None] = []
        """The name of each begun call, None before it is complete."""
        self._sent_arguments: list[str] = []
        self._has_arguments: list[bool] = []

    def feed(self, text: str, is_last: bool) -> Delta | None:
        """Returns what the next token adds to the message."""
        self._text += text
        content = self._new_content()
        calls: list[CallDelta] = []
        for number, tagged in enumerate(tagged_texts(self._text)):
            if not self._read(number, tagged, calls):
                break
        if not content and not calls:
            return None
        delta: Delta | None = Delta(content, calls)
        if is_last:
            return completed(delta, self._missing_arguments())
        return delta

    def _new_content(self) -> str | None:
        """Returns the text before the first call that was not sent; None for none."""
        end = self._text.find(BEGIN)
        if end < 0:
            end = len(self._text) - overlap(self._text, BEGIN)
        if end <= self._sent_content:
            return None
        content = self._text[self._sent_content : end]
        self._sent_content = end
        return content

    def _read(self, number: int, tagged: TaggedText, calls: list[CallDelta]) -> bool:
        """Appends the additions to a call; returns False while the call has no name."""
        if number == len(self._names):
            self._names.append(None)
            self._sent_arguments.append("")
            self._has_arguments.append(False)
        text = tagged.text
        is_complete = tagged.is_closed
        if not is_complete:
            text = text[: len(text) - overlap(text, END)]
        text = text.strip()
        if not tagged.is_closed:
            is_complete = is_whole_json(text)
        if self._names[number] is None:
            match = NAME.search(text)
            if match is None:
                return False
            self._names[number] = match[1]
            calls.append(CallDelta(number, match[1]))
        arguments = arguments_so_far(text, is_complete)
        sent = self._sent_arguments[number]
        if arguments is not None and len(arguments) > len(sent):
            self._sent_arguments[number] = arguments
            self._has_arguments[number] = True
            calls.append(CallDelta(number, arguments=arguments[len(sent) :]))
        return True

    def _missing_arguments(self) -> str:
        """Returns the arguments of a last call that has sent none: an empty object."""
        if self._sent_arguments and not self._has_arguments[-1]:
            return "{}"
        return ""


def is_whole_json(text: str) -> bool:
    """Returns whether `text` is one JSON value."""
    try:
        json.loads(text)
    except (RecursionError, ValueError):
        return False
    return True


def arguments_so_far(text: str, is_complete: bool) -> str | None:
    """Returns the arguments in a call's text, without the end of a complete call."""
    match = ARGUMENTS.search(text)
    if match is None:
        return None
    arguments = text[match.end() :]
    if is_complete:
        arguments = arguments.rstrip()
        if arguments.endswith("}"):
            arguments = arguments[:-1].rstrip()
    return arguments
