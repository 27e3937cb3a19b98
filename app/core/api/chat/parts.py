"""Parts that a chat's reply may have, thoughts and tool calls, and the constraint on its text."""

import json
from collections.abc import Mapping, Sequence
from typing import Literal, cast

from app.core.base.clock.pause import pause_if_possible
from app.core.engine.constraints import Constraints, Grammar, SchemaError
from app.core.engine.request import Constraint, JsonSchema, ToolCalls, ToolFunction
from app.core.protocol.chat import ChatCompletionRequest
from app.core.protocol.coercion import JsonObject
from app.core.protocol.options import NamedToolChoice, StructuredOutputs
from app.core.protocol.options import Tool as ToolParam
from app.core.protocol.tokenize import TokenizeChatRequest
from app.core.protocol.validation import GenerationRequest, check_depth
from app.core.server.http.errors import bad_request
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
TOOLS_PER_SLICE = 120
"""Tools whose schemas are compiled, or written for a template, between two pauses: about 4 ms."""

PARSERS_WITHOUT_SWITCH = frozenset(["deepseek_r1", "ernie45", "minimax_m2", "step3", "step3p5"])
"""Parsers that take all text up to the end tag as thoughts, whatever the request switches off."""
TWO_SWITCH_PARSERS = frozenset(
    ["deepseek_v4", "deepseek_v41", "glm45", "glm47", "holo2", "kimi_k2", "ling3"]
)
"""Parsers that read `thinking` and `enable_thinking`; without either, the model thinks."""
OPT_IN_PARSERS = frozenset(["deepseek_v3", "gemma4"])
"""Parsers whose models think only on request."""
EMPTY_THOUGHT_PARSERS = frozenset(["deepseek_r1", "deepseek_v3", "ernie45", "holo2"])
"""Parsers that also stream a thought for a token without text."""
DEFAULT_EFFORTS = {"hy_v3": "no_think", "hy_v4": "high"}
"""Parsers that read the effort alone, each with its default effort."""

Thinking = Literal["no", "first", "all"]
"""No thoughts; thoughts before the reply; or a parser that takes the whole reply as thoughts."""


def check_tool_choice(request: ChatCompletionRequest, settings: ToolSettings) -> None:
    """Raises ApiError 400 for a tool choice that vLLM with these settings cannot serve."""
    choice = request.tool_choice
    if not request.tools or choice in (None, "none"):
        return
    is_enabled = settings.enable_auto_tool_choice
    is_allowed_tools = isinstance(choice, NamedToolChoice) and choice.type == "allowed_tools"
    if is_allowed_tools and (settings.tool_call_parser or not is_enabled):
        raise bad_request("tool_choice needs a function object", "tool_choice.function")
    if is_enabled:
        return
    if choice == "auto":
        raise bad_request(
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
        )
    shown_choice = f'"{choice}"' if isinstance(choice, str) else "a function"
    raise bad_request(f"tool_choice={shown_choice} requires --tool-call-parser to be set")


def tool_calls_of(
    request: ChatCompletionRequest,
    settings: ToolSettings,
    schemas: Constraints,
    computes: bool = False,
) -> ToolCalls | None:
    """Returns the calls that a chat allows; a null `tool_choice` is `auto`.

    `computes`: a model computes the reply, so that nothing is simulated.

    Raises:
        ApiError: 400 for a bad schema.
    """
    choice = request.tool_choice
    tools = request.tools
    if not tools or choice == "none" or not settings.enable_auto_tool_choice:
        return None
    if not computes and request.after_results:
        return None
    lenient = settings.skip_tool_validation
    if settings.tool_call_parser and not computes:  # vLLM's parsers check only strict tools
        lenient = True
        _check_tools([tool for tool in tools if tool.function.strict], schemas)
    elif not lenient:
        _check_tools(tools, schemas)
    min_calls = int(choice == "required")
    is_named = False
    if isinstance(choice, NamedToolChoice):
        names = frozenset(choice.names())
        tools = [tool for tool in tools if tool.function.name in names]
        allowed = choice.allowed_tools
        is_named = allowed is None or choice.type == "function"
        min_calls = int(allowed is None or is_named or allowed.mode == "required")
    if is_named and len(tools) > 1:
        raise bad_request("a named tool_choice needs exactly one tool of that name")
    functions = [
        ToolFunction(tool.function.name, tool.function.parameters or NO_PARAMETERS)
        for tool in tools
    ]
    is_single = is_named or request.parallel_tool_calls is False
    return ToolCalls(
        tools=tuple(functions),
        min_calls=min_calls,
        max_calls=1 if is_single else len(functions),
        named=is_named,
        lenient=lenient,
    )


def _check_tools(tools: Sequence[ToolParam], schemas: Constraints) -> None:
    """Raises ApiError 400 for parameters with a bad schema. May pause."""
    for number, tool in enumerate(tools, 1):
        if number % TOOLS_PER_SLICE == 0:
            pause_if_possible()
        function = tool.function
        try:
            schemas.compile(function.parameters or NO_PARAMETERS)
        except SchemaError as error:
            message = f"The parameters of tool {function.name!r} cannot be used: {error}."
            raise bad_request(message, None if function.strict else "tools") from None


def tag_of(tag: str, request: GenerationRequest, schemas: Constraints) -> Grammar:
    """Returns the grammar of a structural tag.

    Raises:
        ApiError: 400 for an invalid tag, at once as in vLLM.
    """
    field = "structured_outputs" if request.structured_outputs is not None else "response_format"
    try:
        return schemas.compile_structural_tag(tag)
    except SchemaError as error:
        raise bad_request(f"Invalid structural tag specification: {error}", field) from None


def constraint_of(structured_outputs: StructuredOutputs, schemas: Constraints) -> Constraint | None:
    """Returns the constraint on the text, but for a structural tag.

    Raises:
        ApiError: 400 for a bad constraint.
    """
    if structured_outputs.json is not None:
        return Constraint(schema=_schema_of(structured_outputs.json, schemas))
    if structured_outputs.json_object:
        return Constraint(schema=ANY_OBJECT)
    if structured_outputs.regex is not None:
        return Constraint(regex=structured_outputs.regex)
    if structured_outputs.grammar is None:
        if structured_outputs.choice:
            return Constraint(choices=tuple(structured_outputs.choice))
        return None
    try:
        return Constraint(grammar=schemas.compile_grammar(structured_outputs.grammar))
    except SchemaError as error:
        raise bad_request(f"Invalid grammar specification: {error}") from None


def _schema_of(source: str | JsonObject, schemas: Constraints) -> JsonSchema:
    schema: object = source
    if isinstance(source, str):
        try:
            schema = json.loads(source)
        except (ValueError, RecursionError):
            raise bad_request("structured_outputs.json is no JSON") from None
        check_depth(schema)
    try:
        schemas.compile(schema)
    except SchemaError as error:
        raise bad_request(f"The schema of the reply cannot be used: {error}.") from None
    keyword = schemas.refused_keyword(schema)
    if keyword is not None:
        raise bad_request(f"The schema of the reply cannot be used: {keyword} is not implemented.")
    return cast(JsonSchema, schema)


def template_kwargs(
    request: ChatCompletionRequest | TokenizeChatRequest, defaults: Mapping[str, object]
) -> Mapping[str, object]:
    """Returns the chat template's variables.

    The variables of the effort override `defaults`, and the request's own override both.
    """
    kwargs = request.chat_template_kwargs or {}
    effort = getattr(request, "reasoning_effort", None)
    if effort is None:
        return {**defaults, **kwargs}
    return {**defaults, "enable_thinking": effort != "none", **kwargs, "reasoning_effort": effort}


def thinking(
    request: ChatCompletionRequest, parser: str, defaults: Mapping[str, object]
) -> Thinking:
    """Returns the way of thinking, as the parser of this name separates thoughts from the reply."""
    if not parser:
        return "no"
    kwargs = template_kwargs(request, defaults)
    if parser in PARSERS_WITHOUT_SWITCH:
        if kwargs.get("enable_thinking", kwargs.get("thinking", True)):
            return "first"
        return "all"
    if _is_on(parser, kwargs):
        return "first"
    return "no"


def _is_on(parser: str, kwargs: Mapping[str, object]) -> bool:
    """Returns whether the model thinks."""
    effort = kwargs.get("reasoning_effort")
    if parser in DEFAULT_EFFORTS:
        return (effort or DEFAULT_EFFORTS[parser]) != "no_think"
    enable_thinking = kwargs.get("enable_thinking")
    thinks = kwargs.get("thinking")
    if parser == "kimi_k3" and thinks is not None:
        return bool(thinks)
    if parser == "gemma4" or parser not in TWO_SWITCH_PARSERS | OPT_IN_PARSERS:
        return bool(kwargs.get("enable_thinking", parser != "gemma4"))
    if effort == "none" and parser.startswith("deepseek_v4"):
        return False
    if enable_thinking is None and thinks is None:
        return parser in TWO_SWITCH_PARSERS
    return bool(enable_thinking) or bool(thinks)
