"""Which tool calls a chat allows, and what form it wants its reply to have."""

from __future__ import annotations

import json
from typing import Any

from app.engine.request import Constraint, Tool, ToolCalls
from app.http.errors import bad_request
from app.protocol.chat import ChatCompletionRequest
from app.protocol.options import NamedToolChoice
from app.protocol.validation.limits import GenerateRequest, constrained_outputs
from app.schema import SchemaError, Schemas
from app.schema.strict import check_strict
from config.settings import ToolSettings

NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
ANY_OBJECT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "answer": {"type": "string"},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
    },
    "required": ["answer"],
}
"""What `json_object` is filled with, which asks for no more than an object."""


def calls_of(asked: ChatCompletionRequest, settings: ToolSettings, schemas: Schemas) -> ToolCalls | None:
    """The calls that `asked` allows; None when it allows none. ApiError 400 for a tool whose schema is wrong.

    A null `tool_choice` is `auto`.
    """
    choice = asked.tool_choice
    if not asked.tools or choice == "none":
        return None
    if not settings.skip_tool_validation:
        _check_tools(asked, settings.strict_tool_schemas, schemas)
    tools = tuple(Tool(tool.function.name, tool.function.parameters or NO_PARAMETERS) for tool in asked.tools)
    least = int(choice == "required")
    if isinstance(choice, NamedToolChoice):
        tools = tuple(tool for tool in tools if tool.name in choice.names())
        if choice.allowed_tools is None or choice.type == "function":
            return ToolCalls(tools=tools[:1], least=1, named=True, lenient=settings.skip_tool_validation)
        least = int(choice.allowed_tools.mode == "required")
    most = 1 if asked.parallel_tool_calls is False else len(tools)
    return ToolCalls(tools=tools, least=least, most=most, lenient=settings.skip_tool_validation)


def constraint_of(asked: GenerateRequest, schemas: Schemas) -> Constraint | None:
    """The form that the reply's text must have; None for any. ApiError 400 for a schema that is none.

    Grammars and structural tags are accepted and leave the text as it is.
    """
    wanted = constrained_outputs(asked)
    if wanted is None:
        return None
    if wanted.json is not None:
        return Constraint(schema=_checked(_parsed(wanted.json), schemas))
    if wanted.json_object:
        return Constraint(schema=ANY_OBJECT)
    if wanted.regex is not None:
        return Constraint(regex=wanted.regex)
    return Constraint(choices=tuple(wanted.choice)) if wanted.choice else None


def _check_tools(asked: ChatCompletionRequest, strict: bool, schemas: Schemas) -> None:
    for tool in asked.tools or ():
        function = tool.function
        try:
            if strict:
                check_strict(function.parameters)
            schemas.compile(function.parameters or NO_PARAMETERS)
        except SchemaError as error:
            message = f"The parameters of tool {function.name!r} cannot be used: {error}."
            raise bad_request(message, "tools") from None


def _parsed(schema: Any) -> Any:
    try:
        return json.loads(schema) if isinstance(schema, str) else schema
    except (ValueError, RecursionError):
        raise bad_request("structured_outputs.json is no JSON", "structured_outputs") from None


def _checked(schema: Any, schemas: Schemas) -> Any:
    try:
        schemas.compile(schema)
    except SchemaError as error:
        raise bad_request(f"The schema of the reply cannot be used: {error}.", "response_format") from None
    return schema
