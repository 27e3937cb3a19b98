"""Which tool calls a chat allows, and what form it wants its reply to have."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import cast

from app.clock.pause import Slices
from app.engine.request import Constraint, JsonSchema, Tool, ToolCalls
from app.grammar.nodes import Grammar
from app.http.errors import bad_request
from app.protocol.chat import ChatCompletionRequest
from app.protocol.coercion import JsonObject
from app.protocol.decoding import LONG
from app.protocol.long_json import parse
from app.protocol.options import NamedToolChoice, StructuredOutputs
from app.protocol.options import Tool as ToolParam
from app.protocol.slicing import each, slices
from app.schema import SchemaError, Schemas
from app.schema.strict import check_strict
from config.settings import ToolSettings

NO_PARAMETERS: JsonObject = {"type": "object", "properties": {}}
ANY_OBJECT: JsonObject = {
    "type": "object",
    "properties": {
        "answer": {"type": "string"},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
    },
    "required": ["answer"],
}
"""What `json_object` is filled with, which asks for no more than an object."""
NO_CHOICE = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
"""By which clients find out that they have to do without."""
CHECK, TOOL = 100, 2
"""Values that a tool counts as whose schema is compiled, or that is handed on."""


def tool_calls_of(
    request: ChatCompletionRequest, settings: ToolSettings, schemas: Schemas
) -> ToolCalls | None:
    """The calls that a chat allows; None when it allows none. ApiError 400 for a tool whose schema is wrong.

    A null `tool_choice` is `auto`. Pauses between tools.
    """
    choice, params = request.tool_choice, request.tools
    if not params or choice == "none":
        return None
    if choice in (None, "auto") and not settings.enable_auto_tool_choice:
        raise bad_request(NO_CHOICE)
    within, lenient = slices(), settings.skip_tool_validation
    if not lenient:
        _check_tools(params, settings.strict_tool_schemas, schemas, within)
    least, named = int(choice == "required"), False
    if isinstance(choice, NamedToolChoice):
        names, allowed = frozenset(choice.names()), choice.allowed_tools
        params = [tool for tool in each(params, within) if tool.function.name in names]
        named = allowed is None or choice.type == "function"
        least = int(allowed is None or named or allowed.mode == "required")
    tools = tuple(_tool(tool) for tool in each(params[:1] if named else params, within, TOOL))
    most = 1 if named or request.parallel_tool_calls is False else len(tools)
    return ToolCalls(tools=tools, least=least, most=most, named=named, lenient=lenient)


def _check_tools(params: Sequence[ToolParam], strict: bool, schemas: Schemas, within: Slices) -> None:
    for tool in each(params, within, CHECK):
        function = tool.function
        try:
            if strict:
                check_strict(function.parameters)
            schemas.compile(function.parameters or NO_PARAMETERS)
        except SchemaError as error:
            message = f"The parameters of tool {function.name!r} cannot be used: {error}."
            raise bad_request(message, "tools") from None


def _tool(param: ToolParam) -> Tool:
    return Tool(param.function.name, param.function.parameters or NO_PARAMETERS)


def constraint_of(wanted: StructuredOutputs | None, schemas: Schemas) -> Constraint | None:
    """The form that the reply's text must have; None for any.

    ApiError 400 for a schema, a grammar or a structural tag that is none.
    """
    if wanted is None:
        return None
    if wanted.json is not None:
        return Constraint(schema=_schema_of(wanted.json, schemas))
    if wanted.json_object:
        return Constraint(schema=ANY_OBJECT)
    if wanted.regex is not None:
        return Constraint(regex=wanted.regex)
    if wanted.grammar is not None or wanted.structural_tag is not None:
        return Constraint(grammar=_grammar_of(wanted, schemas))
    return Constraint(choices=tuple(wanted.choice)) if wanted.choice else None


def _grammar_of(wanted: StructuredOutputs, schemas: Schemas) -> Grammar:
    schemas.load()
    from app.grammar.compiling import compile_grammar, compile_structural_tag

    try:
        if wanted.grammar is not None:
            return compile_grammar(wanted.grammar, slices())
        return compile_structural_tag(wanted.structural_tag or "", schemas, slices())
    except SchemaError as error:
        what = "grammar" if wanted.structural_tag is None else "structural tag"
        raise bad_request(f"Invalid {what} specification: {error}") from None


def _schema_of(given: str | JsonObject, schemas: Schemas) -> JsonSchema:
    schema: object = given
    try:
        if isinstance(given, str):
            schema = json.loads(given) if len(given) <= LONG else parse(given, slices())
    except (ValueError, RecursionError):
        raise bad_request("structured_outputs.json is no JSON", "structured_outputs") from None
    try:
        schemas.compile(schema)
    except SchemaError as error:
        raise bad_request(f"The schema of the reply cannot be used: {error}.", "response_format") from None
    return cast(JsonSchema, schema)
