"""Calls of Qwen coder models: <function=NAME> with a tag for each parameter."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from app.core.engine.request import ToolFunction
from app.extensions.tool_calls.argument_types import write_json
from app.extensions.tool_calls.markup import (
    Event,
    MarkupForm,
    MarkupStream,
    State,
    Transition,
)
from app.extensions.tool_calls.parser import ParsedText

CALL: Final = "<tool_call>"
CALL_END: Final = "</tool_call>"
FUNCTION: Final = "<function="
FUNCTION_END: Final = "</function>"
PARAMETER: Final = "<parameter="
PARAMETER_END: Final = "</parameter>"
NAME_END: Final = ">"
TAG: Final = re.compile(r"<\s*+(?:(parameter\s*+=\s*+)|/\s*+parameter\s*+>)")
"""The beginning of an opening tag, which is a group, or a closing tag."""


def arguments_of(markup: str, is_partial: bool) -> str:
    """Returns the parameters as JSON texts; the last one may be open if `is_partial`.

    A parameter ends at its closing tag, or where the next one begins.
    """
    parameters: dict[str, str] = {}
    name: str | None = None
    value_start = 0
    for tag in TAG.finditer(markup):
        if tag.start() < value_start:
            continue  # it is a part of a name
        if name is not None:
            parameters[name] = _without_line_ends(markup[value_start : tag.start()])
            name = None
        if tag[1]:
            end = markup.find(NAME_END, tag.end())
            if end < 0:
                break
            name = markup[tag.end() : end]
            value_start = end + len(NAME_END)
    if is_partial and name:
        parameters[name] = _without_line_ends(markup[value_start:])
    return write_json(parameters)


def _without_line_ends(value: str) -> str:
    return value.removeprefix("\n").removesuffix("\n")


QWEN_FORM: Final = MarkupForm(
    literals=(
        CALL,
        CALL_END,
        FUNCTION,
        FUNCTION_END,
        PARAMETER,
        PARAMETER_END,
        NAME_END,
    ),
    transitions={
        (State.CONTENT, CALL): Transition(State.PREAMBLE, (Event.BEGIN,)),
        (State.CONTENT, FUNCTION): Transition(State.NAME, (Event.BEGIN,)),
        (State.PREAMBLE, CALL_END): Transition(State.CONTENT, (Event.END,)),
        (State.PREAMBLE, FUNCTION): Transition(State.NAME),
        (State.NAME, NAME_END): Transition(State.ARGUMENTS),
        (State.NAME, FUNCTION_END): Transition(State.BETWEEN, (Event.END,)),
        (State.ARGUMENTS, FUNCTION_END): Transition(State.BETWEEN, (Event.END,)),
        (State.ARGUMENTS, PARAMETER): Transition(State.ARGUMENTS, (Event.ARGUMENTS,)),
        (State.ARGUMENTS, PARAMETER_END): Transition(State.ARGUMENTS, (Event.ARGUMENTS,)),
        (State.BETWEEN, CALL_END): Transition(State.CONTENT),
        (State.BETWEEN, CALL): Transition(State.PREAMBLE, (Event.BEGIN,)),
        (State.BETWEEN, FUNCTION): Transition(State.NAME, (Event.BEGIN,)),
    },
    convert=arguments_of,
)


def parse(text: str, tools: Sequence[ToolFunction] = ()) -> ParsedText:
    """Reads a whole text."""
    return MarkupStream(QWEN_FORM, tools).whole(text)


def stream(tools: Sequence[ToolFunction] = ()) -> MarkupStream:
    """Returns the reader of a stream."""
    return MarkupStream(QWEN_FORM, tools)
