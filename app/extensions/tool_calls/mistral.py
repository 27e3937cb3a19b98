"""Calls of Mistral models whose tokenizer has [ARGS]: [TOOL_CALLS]NAME[ARGS]{...}."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app.core.engine.request import ToolFunction
from app.extensions.tool_calls.markup import (
    Event,
    MarkupForm,
    MarkupStream,
    State,
    Transition,
    first_json_value,
)
from app.extensions.tool_calls.parser import ParsedText

CALLS: Final = "[TOOL_CALLS]"
ARGUMENTS: Final = "[ARGS]"
BRACE: Final = "{"
MISTRAL_FORM: Final = MarkupForm(
    literals=(CALLS, ARGUMENTS, BRACE),
    transitions={
        (State.CONTENT, CALLS): Transition(State.NAME, (Event.BEGIN,)),
        (State.NAME, ARGUMENTS): Transition(State.ARGUMENTS),
        (State.NAME, BRACE): Transition(State.ARGUMENTS, (Event.ARGUMENTS,)),
        (State.ARGUMENTS, CALLS): Transition(State.NAME, (Event.END, Event.BEGIN)),
    },
    whole_arguments=first_json_value,
)


def parse(text: str, tools: Sequence[ToolFunction] = ()) -> ParsedText:
    """Reads a whole text."""
    return MarkupStream(MISTRAL_FORM, tools).whole(text)


def stream(tools: Sequence[ToolFunction] = ()) -> MarkupStream:
    """Returns the reader of a stream."""
    return MarkupStream(MISTRAL_FORM, tools)
