"""The form of a text as a model that computes has to keep it: what the client wrote."""

from __future__ import annotations

import msgspec

from app.engine.request import Tool, ToolCalls
from app.engine.wire import TextForm
from app.protocol.options import StructuredOutputs

ANY_OBJECT = '{"type": "object"}'


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
