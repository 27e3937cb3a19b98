"""Parts that a chat's reply may have, thoughts and tool calls, and the constraint on its text."""

import json
from collections.abc import Mapping, Sequence
from typing import Literal, cast

from app.base.clock.pause import pause_if_possible
from app.engine.core.constraints import Constraints, Grammar, SchemaError
from app.engine.core.request import Constraint, JsonSchema, ToolCalls, ToolFunction
from app.serving.http.errors import bad_request
from app.serving.protocol.chat import ChatCompletionRequest
from app.serving.protocol.coercion import JsonObject
from app.serving.protocol.options import NamedToolChoice, StructuredOutputs
from app.serving.protocol.options import Tool as ToolParam
from app.serving.protocol.response_chat import ResponsesChat
from app.serving.protocol.tokenize import TokenizeChatRequest
from app.serving.protocol.validation import GenerationRequest, check_depth
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
"""Schema for `json_object`, which requires no more than an object."""
MOST_TOOLS = 120
"""Tools whose schemas are compiled, or written for a template, between two pauses: about 4 ms."""


def check_tool_choice(request: ChatCompletionRequest, settings: ToolSettings) -> None:
    """Raises ApiError 400 for a tool choice that vLLM with these settings cannot serve."""
    choice = request.tool_choice
    if not request.tools or choice in (None, "none"):
        return
    is_open = settings.enable_auto_tool_choice
    allowed = isinstance(choice, NamedToolChoice) and choice.type == "allowed_tools"
    if allowed and (settings.tool_call_parser or not is_open):
        raise bad_request("tool_choice needs a function object", "tool_choice.function")
    if is_open:
        return
    if choice == "auto":
        switches = "--enable-auto-tool-choice and --tool-call-parser"
        raise bad_request(f'"auto" tool choice requires {switches} to be set')
    what = f'"{choice}"' if isinstance(choice, str) else "a function"
    raise bad_request(f"tool_choice={what} requires --tool-call-parser to be set")


def tool_calls_of(
    request: ChatCompletionRequest,
    settings: ToolSettings,
    schemas: Constraints,
    computes: bool = False,
) -> ToolCalls | None:
    """Returns the calls that a chat allows; a null `tool_choice` is `auto`.

    ApiError 400 for a bad schema.
    """
    choice, params = request.tool_choice, request.tools
    if not params or choice == "none" or not settings.enable_auto_tool_choice:
        return None
    if not computes and isinstance(request, ResponsesChat) and request.after_results:
        return None
    lenient = settings.skip_tool_validation
    if settings.tool_call_parser and not computes:  # vLLM's parsers check only strict tools
        lenient = True
        _check_tools([tool for tool in params if tool.function.strict], schemas)
    elif not lenient:
        _check_tools(params, schemas)
    least, named = int(choice == "required"), False
    if isinstance(choice, NamedToolChoice):
        names, allowed = frozenset(choice.names()), choice.allowed_tools
        params = [tool for tool in params if tool.function.name in names]
        named = allowed is None or choice.type == "function"
        least = int(allowed is None or named or allowed.mode == "required")
    if named and len(params) > 1:
        raise bad_request("a named tool_choice needs exactly one tool of that name")
    tools = [
        ToolFunction(it.function.name, it.function.parameters or NO_PARAMETERS) for it in params
    ]
    most = 1 if named or request.parallel_tool_calls is False else len(tools)
    return ToolCalls(
        tools=tuple(tools), min_calls=least, max_calls=most, named=named, lenient=lenient
    )


def _check_tools(params: Sequence[ToolParam], schemas: Constraints) -> None:
    for number, tool in enumerate(params, 1):
        if number % MOST_TOOLS == 0:
            pause_if_possible()
        function = tool.function
        try:
            schemas.compile(function.parameters or NO_PARAMETERS)
        except SchemaError as error:
            message = f"The parameters of tool {function.name!r} cannot be used: {error}."
            raise bad_request(message, None if function.strict else "tools") from None


def tag_of(tag: str, request: GenerationRequest, schemas: Constraints) -> Grammar:
    """Returns the grammar of a structural tag.

    ApiError 400 for an invalid tag, at once as in vLLM.
    """
    field = "structured_outputs" if request.structured_outputs is not None else "response_format"
    try:
        return schemas.compile_structural_tag(tag)
    except SchemaError as error:
        raise bad_request(f"Invalid structural tag specification: {error}", field) from None


def constraint_of(wanted: StructuredOutputs, schemas: Constraints) -> Constraint | None:
    """Returns the constraint on the text, a structural tag aside. ApiError 400 for a bad one."""
    if wanted.json is not None:
        return Constraint(schema=_schema_of(wanted.json, schemas))
    if wanted.json_object:
        return Constraint(schema=ANY_OBJECT)
    if wanted.regex is not None:
        return Constraint(regex=wanted.regex)
    if wanted.grammar is None:
        return Constraint(choices=tuple(wanted.choice)) if wanted.choice else None
    try:
        return Constraint(grammar=schemas.compile_grammar(wanted.grammar))
    except SchemaError as error:
        raise bad_request(f"Invalid grammar specification: {error}") from None


def _schema_of(given: str | JsonObject, schemas: Constraints) -> JsonSchema:
    schema: object = given
    if isinstance(given, str):
        try:
            schema = json.loads(given)
        except (ValueError, RecursionError):
            raise bad_request("structured_outputs.json is no JSON") from None
        check_depth(schema)
    try:
        schemas.compile(schema)
    except SchemaError as error:
        raise bad_request(f"The schema of the reply cannot be used: {error}.") from None
    if (keyword := schemas.refused_keyword(schema)) is not None:
        raise bad_request(f"The schema of the reply cannot be used: {keyword} is not implemented.")
    return cast(JsonSchema, schema)


NOTHING: Mapping[str, object] = {}
NO_SWITCH = frozenset(("deepseek_r1", "ernie45", "minimax_m2", "step3", "step3p5"))
"""Parsers that take all text up to the end tag as thoughts, whatever the request switches off."""
EITHER = frozenset(("deepseek_v4", "deepseek_v41", "glm45", "glm47", "holo2", "kimi_k2", "ling3"))
"""Parsers that read `thinking` and `enable_thinking`; without both the model thinks."""
OPT_IN = frozenset(("deepseek_v3", "gemma4"))
"""Parsers whose models think only on request."""
TELLS_EMPTY = frozenset(("deepseek_r1", "deepseek_v3", "ernie45", "holo2"))
"""Parsers that also stream a thought for a token without text."""
DEFAULT_EFFORT = {"hy_v3": "no_think", "hy_v4": "high"}
"""Parsers that read the effort alone, each with its default effort."""

Thinking = Literal["no", "first", "all"]
"""No thoughts; thoughts before the reply; or a parser that takes the whole reply as thoughts."""


def template_kwargs(
    request: ChatCompletionRequest | TokenizeChatRequest, defaults: Mapping[str, object] = NOTHING
) -> Mapping[str, object]:
    """Returns the chat template's variables:

    `defaults`, then the effort's, then the request's own.
    """
    given, effort = (
        request.chat_template_kwargs or NOTHING,
        getattr(request, "reasoning_effort", None),
    )
    if effort is None:
        return {**defaults, **given} if defaults else given
    return {**defaults, "enable_thinking": effort != "none", **given, "reasoning_effort": effort}


def thinking(
    request: ChatCompletionRequest, parser: str, defaults: Mapping[str, object] = NOTHING
) -> Thinking:
    """Returns the way of thinking, as the parser of this name separates thoughts from the reply."""
    if not parser:
        return "no"
    kwargs = template_kwargs(request, defaults)
    if parser in NO_SWITCH:
        return "first" if kwargs.get("enable_thinking", kwargs.get("thinking", True)) else "all"
    return "first" if _is_on(parser, kwargs) else "no"


def _is_on(parser: str, kwargs: Mapping[str, object]) -> bool:
    effort = kwargs.get("reasoning_effort")
    if parser in DEFAULT_EFFORT:
        return (effort or DEFAULT_EFFORT[parser]) != "no_think"
    switch, other = kwargs.get("enable_thinking"), kwargs.get("thinking")
    if parser == "kimi_k3" and other is not None:
        return bool(other)
    if parser == "gemma4" or parser not in EITHER | OPT_IN:
        return bool(kwargs.get("enable_thinking", parser != "gemma4"))
    if effort == "none" and parser.startswith("deepseek_v4"):
        return False
    return parser in EITHER if switch is None and other is None else bool(switch) or bool(other)
