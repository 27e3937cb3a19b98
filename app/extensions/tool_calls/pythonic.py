"""Calls as a list in Python's notation: [get_weather(city="Rome"), ping()]."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from typing import Final

from app.core.engine.request import ToolFunction
from app.extensions.tool_calls.parser import (
    Call,
    CallDelta,
    Delta,
    ParsedText,
    checked_call,
    completed,
)
from app.extensions.tool_calls.python_prefix import completed_python, is_too_long, parsed_python

NAME: Final = r"[a-zA-Z]\w*"
LIST_OF_CALLS: Final = re.compile(
    rf"\[(?:{NAME}\(\),\s*)*{NAME}\((?:\)\s*\]|{NAME}=.*\)\s*\])", re.DOTALL
)
"""A list that begins with calls without arguments, up to a call with a named argument, if any."""
JSON_WORDS: Final = {"null": None, "true": True, "false": False}
BROKEN: Final = (MemoryError, RecursionError, SyntaxError, TypeError, ValueError)
"""Errors of a text that is not a list of calls."""


def parse(text: str, tools: Sequence[ToolFunction] = ()) -> ParsedText:
    """Reads a whole text: a list of calls, or text."""
    if is_too_long(text) or LIST_OF_CALLS.match(text) is None:
        return ParsedText(text)
    try:
        return ParsedText("", read_calls(parsed_python(text)))
    except BROKEN:
        return ParsedText(text)


def read_calls(module: ast.Module) -> list[Call]:
    """Returns the calls of a list.

    Raises:
        ValueError, TypeError: The module is not a list of calls of literals.
    """
    if not module.body:
        raise ValueError("the text is not a list of calls")
    calls = getattr(module.body[0], "value", None)
    if not isinstance(calls, ast.List):
        raise ValueError("the text is not a list of calls")
    return [_read_call(call) for call in calls.elts]


def _read_call(call: ast.expr) -> Call:
    if not isinstance(call, ast.Call):
        raise ValueError("an item in the list is not a call")
    arguments = {keyword.arg: literal(keyword.value) for keyword in call.keywords}
    return checked_call(_dotted_name(call.func), json.dumps(arguments, ensure_ascii=False))


def _dotted_name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return f"{_dotted_name(function.value)}.{function.attr}"
    if isinstance(function, ast.Name):
        return function.id
    raise ValueError("a function name is not an identifier")


def literal(value: ast.expr) -> object:
    """Returns the JSON value of a literal. Raises ValueError for other expressions."""
    if isinstance(value, ast.Constant):
        if value.value is None or isinstance(value.value, str | int | float):
            return value.value
    elif isinstance(value, ast.List | ast.Tuple | ast.Set):
        return [literal(item) for item in value.elts]
    elif isinstance(value, ast.Dict):
        return _literal_object(value)
    elif isinstance(value, ast.Name) and value.id in JSON_WORDS:
        return JSON_WORDS[value.id]
    elif isinstance(value, ast.UnaryOp):
        return _signed_number(value)
    elif isinstance(value, ast.JoinedStr):
        parts = [part.value for part in value.values if isinstance(part, ast.Constant)]
        if len(parts) == len(value.values):
            return "".join(map(str, parts))
    raise ValueError("an argument is not a literal")


def _literal_object(value: ast.Dict) -> dict[object, object]:
    fields: dict[object, object] = {}
    for key, field in zip(value.keys, value.values, strict=True):
        if not isinstance(key, ast.Constant):
            raise ValueError("a key is not a literal")
        fields[key.value] = literal(field)
    return fields


def _signed_number(value: ast.UnaryOp) -> object:
    number = literal(value.operand)
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise ValueError("a sign must be followed by a number")
    if isinstance(value.op, ast.USub):
        return -number
    if isinstance(value.op, ast.UAdd):
        return number
    raise ValueError("an argument is not a literal")


class PythonicStream:
    """Reads a stream. A text that does not begin with a bracket is all text.

    After each token the text so far is completed to valid Python, and its calls are compared with
    what was sent.
    """

    def __init__(self, tools: Sequence[ToolFunction] = ()) -> None:
        self._text = ""
        self._number = -1
        """Number of the first call that may still grow; -1 before the first one."""
        self._sent_arguments: list[str] = []
        self._has_sent_calls = False

    def feed(self, text: str, is_last: bool) -> Delta | None:
        """Returns what the next token adds to the message."""
        self._text += text
        if not self._text.startswith("["):
            return Delta(content=text)
        try:
            delta = self._advance()
        except (IndexError, *BROKEN):
            return None
        if is_last:
            return completed(delta, self._missing_arguments())
        return delta

    def _advance(self) -> Delta | None:
        completed_text = completed_python(self._text)
        if completed_text is None:
            return None
        suffix = completed_text.suffix
        calls = read_calls(completed_text.module)
        deltas: list[CallDelta] = []
        for number, call in enumerate(calls):
            if number < self._number:
                continue
            self._number = number
            if len(self._sent_arguments) == number:
                self._sent_arguments.append("")
            is_complete = number < len(calls) - 1 or ")]" not in suffix
            withheld = ""
            if is_complete:
                self._number += 1
            else:
                withheld = suffix[:-2]
                if suffix[-2] == ")":
                    withheld += "}"
            delta = self._new_arguments(number, call, withheld.replace("'", '"'))
            if delta is not None:
                deltas.append(delta)
        if deltas:
            self._has_sent_calls = True
            return Delta(calls=deltas)
        if not suffix and self._number > 0:
            return Delta(content="")
        return None

    def _new_arguments(self, number: int, call: Call, withheld: str) -> CallDelta | None:
        """Returns the arguments that were not sent, without the end that may still change."""
        arguments = call.arguments
        if withheld:
            if not arguments.endswith(withheld):
                raise ValueError("cannot find the end of the arguments")
            arguments = arguments[: -len(withheld)]
        sent = self._sent_arguments[number]
        if not sent:
            self._sent_arguments[number] = arguments
            return CallDelta(number, call.name, arguments)
        added = arguments[len(sent) :]
        if not added:
            return None
        self._sent_arguments[number] += added
        return CallDelta(number, arguments=added)

    def _missing_arguments(self) -> str:
        """Returns the arguments of a first call that has sent none: an empty object."""
        if self._has_sent_calls and self._sent_arguments and not self._sent_arguments[0]:
            return "{}"
        if self._has_sent_calls and self._sent_arguments[0] == "{":
            return "}"
        return ""
