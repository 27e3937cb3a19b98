"""The form of a text as a model that computes has to keep it: what the client wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from app.engine.request import Tool, ToolCalls
from app.engine.wire import TextForm, Thoughts
from app.protocol.options import StructuredOutputs

ANY_OBJECT = '{"type": "object"}'
MOST_LOOKED_AT: Final = 32_768
"""Tokens at the end of a prompt, among which the last tag of thoughts is looked for."""


class ThoughtTokens(Struct, frozen=True):
    """The two tokens between which a model thinks; `decode` gives the text of tokens."""

    begin_id: int
    end_id: int
    decode: Callable[[Sequence[int]], str]

    def after(self, prompt_ids: Sequence[int]) -> Thoughts | None:
        """What may be thought behind a prompt; None where that has closed the thoughts at its end.

        Its template may have begun them; else the model may do so itself.
        """
        tail = list(prompt_ids[-MOST_LOOKED_AT:])
        tags = (self.begin_id, self.end_id)
        place = next((i for i in range(len(tail) - 1, -1, -1) if tail[i] in tags), None)
        if place is not None and tail[place] == self.begin_id:
            return Thoughts(end_id=self.end_id)
        if place is not None and not self.decode(tail[place + 1 :]).strip():
            return None
        return Thoughts(end_id=self.end_id, begin_id=self.begin_id)


def text_form(wanted: StructuredOutputs | None, calls: ToolCalls | None) -> TextForm | None:
    """Tool calls that must be made are JSON, as in vLLM: arguments of a named tool, else a list of calls."""
    if calls is not None and calls.least:
        schema = calls.tools[0].schema if calls.named else _calls_schema(calls)
        return TextForm(json_schema=_json(schema))
    if wanted is None:
        return None
    if wanted.json is not None:
        return TextForm(json_schema=wanted.json if isinstance(wanted.json, str) else _json(wanted.json))
    if wanted.json_object:
        return TextForm(json_schema=ANY_OBJECT)
    if wanted.choice:
        return TextForm(choices=tuple(wanted.choice))
    return TextForm(regex=wanted.regex, grammar=wanted.grammar, structural_tag=wanted.structural_tag)


def _calls_schema(calls: ToolCalls) -> dict[str, object]:
    schema: dict[str, object] = {
        "type": "array",
        "minItems": calls.least,
        "items": {"anyOf": [_call_schema(tool) for tool in calls.tools]},
    }
    return schema | ({"maxItems": 1} if calls.most == 1 else {})


def _call_schema(tool: Tool) -> dict[str, object]:
    return {
        "type": "object",
        "properties": {"name": {"type": "string", "enum": [tool.name]}, "parameters": tool.schema},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _json(schema: object) -> str:
    return msgspec.json.encode(schema).decode()
