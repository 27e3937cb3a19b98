"""Calls of Llama models: JSON objects with a name, and arguments or parameters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from os.path import commonprefix
from typing import Any, Final

from app.core.engine.request import ToolFunction
from app.extensions.tool_calls.hermes import is_whole_json
from app.extensions.tool_calls.parser import (
    Call,
    CallDelta,
    Delta,
    ParsedText,
    checked_call,
    completed,
)
from app.extensions.tool_calls.partial_json import has_open_brackets, loads_first

TAG: Final = "<|python_tag|>"
SEPARATOR: Final = "; "
SYNTAX: Final = frozenset('{}[]"')
"""Characters in a separator after which the brackets are counted anew."""
MAX_ODD_SEPARATORS = 8


def parse(text: str, tools: Sequence[ToolFunction] = ()) -> ParsedText:
    """Reads a whole text. A text with an object that is not a call is returned unchanged."""
    decoder = json.JSONDecoder()
    calls: list[Call] = []
    position = text.find("{")
    while position >= 0:
        try:
            fields, end = decoder.raw_decode(text, position)
            calls.append(_read_call(fields))
        except (KeyError, RecursionError, TypeError, ValueError):
            return ParsedText(text)
        position = text.find("{", end + 1)
    return ParsedText("" if calls else text, calls)


def _read_call(fields: Any) -> Call:
    name = fields["name"]
    if "arguments" in fields:
        arguments = fields["arguments"]
    else:
        arguments = fields["parameters"]
    return checked_call(name, json.dumps(arguments, ensure_ascii=False))


class LlamaStream:
    """Reads a stream. A text that does not begin with a call is all text.

    A call is announced one token after it begins, then its name, then its arguments.
    """

    def __init__(self, tools: Sequence[ToolFunction] = ()) -> None:
        self._text = ""
        self._number = -1
        """Number of the call that is being sent."""
        self._is_name_sent = False
        self._sent_arguments: list[str] = []
        self._last_calls: list[Any] = []
        """The calls at the last token that completed a step."""

    def feed(self, text: str, is_last: bool) -> Delta | None:
        """Returns what the next token adds to the message."""
        self._text += text
        if not self._text.startswith((TAG, "{")):
            return Delta(content=text)
        try:
            delta = self._advance()
        except (AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
            return None
        if is_last:
            return completed(delta, self._missing_arguments())
        return delta

    def _advance(self) -> Delta | None:
        calls, are_complete = self._read_calls()
        if not calls:
            return None
        call = calls[self._number]
        if len(calls) > self._number + 1:
            return self._begin_call(call, len(calls) - 1)
        delta = None
        if self._is_name_sent:
            delta = self._new_arguments(call, are_complete[self._number])
        else:
            delta = self._name(call)
        self._last_calls = calls
        return delta

    def _read_calls(self) -> tuple[list[Any], list[bool]]:
        """Returns all calls so far, and whether each is complete."""
        calls: list[Any] = []
        are_complete: list[bool] = []
        start = len(TAG) if self._text.startswith(TAG) else 0
        is_open = has_open_brackets(self._text, start)
        odd_separators = 0
        while start < len(self._text):
            call, end = loads_first(
                self._text, start, is_open=is_open, allow_cut_text=self._is_name_sent
            )
            are_complete.append(is_whole_json(self._text[start:end]))
            start = end + len(SEPARATOR)
            if not SYNTAX.isdisjoint(self._text[end:start]):
                odd_separators += 1
                if odd_separators > MAX_ODD_SEPARATORS:
                    raise ValueError("the text is not a list of calls")
                is_open = has_open_brackets(self._text, start)
            if "parameters" in call:  # type: ignore[operator]  # TypeError ends the step
                if "arguments" in call:  # type: ignore[operator]
                    raise ValueError("a call has both arguments and parameters")
                call["arguments"] = call["parameters"]  # type: ignore[index]
            calls.append(call)
        return calls, are_complete

    def _begin_call(self, last_call: Any, number: int) -> Delta | None:
        """Moves to call `number`; returns the arguments of the last call that were not sent."""
        delta = None
        if self._number >= 0:
            arguments = last_call.get("arguments")
            if arguments:
                sent = len(self._sent_arguments[self._number])
                missing = json.dumps(arguments, ensure_ascii=False)[sent:]
                delta = self._arguments_delta(missing)
        self._number = number
        self._is_name_sent = False
        self._sent_arguments.append("")
        return delta

    def _name(self, call: Any) -> Delta | None:
        name = call.get("name")
        if not name:
            return None
        checked = checked_call(name, "")
        self._is_name_sent = True
        return Delta(calls=[CallDelta(self._number, checked.name)])

    def _new_arguments(self, call: Any, is_complete: bool) -> Delta | None:
        """Returns the arguments that two tokens agree on, or all of a complete call."""
        arguments = call.get("arguments")
        if not arguments:
            return None
        text = json.dumps(arguments, ensure_ascii=False)
        sent = len(self._sent_arguments[self._number])
        last_arguments = self._last_calls[self._number].get("arguments")
        if is_complete:
            return self._arguments_delta(text[sent:])
        if last_arguments:
            last_text = json.dumps(last_arguments, ensure_ascii=False)
            if text != last_text:
                return self._arguments_delta(commonprefix([last_text, text])[sent:])
        return None

    def _arguments_delta(self, arguments: str) -> Delta:
        checked_call("", arguments)
        self._sent_arguments[self._number] += arguments
        return Delta(calls=[CallDelta(self._number, arguments=arguments)])

    def _missing_arguments(self) -> str:
        """Returns the arguments of the last call that no token has sent."""
        if not self._last_calls:
            return ""
        number = len(self._last_calls) - 1
        arguments = self._last_calls[number].get("arguments", {})
        if isinstance(arguments, str):
            text = arguments
        else:
            text = json.dumps(arguments, ensure_ascii=False)
        sent = ""
        if number < len(self._sent_arguments):
            sent = self._sent_arguments[number]
        if text.startswith(sent):
            return text[len(sent) :]
        return ""
