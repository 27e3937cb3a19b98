"""The tool calls that a chat allows."""

from collections.abc import Sequence

from app.core.api.chat.tool_set import Checked, ToolSet
from app.core.base.clock.pause import paced
from app.core.engine.constraints import Constraints, SchemaError, SchemaVerdict
from app.core.engine.request import ToolCalls, ToolFunction
from app.core.protocol.chat import ChatCompletionRequest, Message, content_text
from app.core.protocol.coercion import JsonObject
from app.core.protocol.options import NamedToolChoice
from app.core.protocol.options import Tool as ToolParam
from app.core.server.http.errors import bad_request, internal
from config.settings import ToolSettings

NO_PARAMETERS: JsonObject = {"type": "object", "properties": {}}
RESULT_ROLES = ("tool", "function")


def check_tool_choice(request: ChatCompletionRequest, settings: ToolSettings) -> None:
    """Raises ApiError 400 for a tool choice that vLLM with these settings cannot serve."""
    choice = request.tool_choice
    if not request.tools or choice in (None, "none"):
        return
    is_enabled = settings.enable_auto_tool_choice
    is_allowed_tools = isinstance(choice, NamedToolChoice) and choice.type == "allowed_tools"
    if is_allowed_tools and (settings.tool_call_parser or not is_enabled):
        raise bad_request("tool_choice requires a function object", "tool_choice.function")
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

    `computes`: a model computes the reply, so that nothing is simulated. A `ToolSet` is checked
    once.

    Raises:
        ApiError: 400 for a bad schema.
    """
    choice = request.tool_choice
    tools = request.tools
    if not tools or choice == "none" or not settings.enable_auto_tool_choice:
        return None
    has_results = not computes and request.after_results
    if has_results:
        choice = "auto"
    lenient = settings.skip_tool_validation
    checked: Checked = "none" if lenient else "all"
    if settings.tool_call_parser and not computes:  # vLLM's parsers check only strict tools
        lenient = True
        checked = "strict"
    known_functions: dict[Checked, tuple[ToolFunction, ...]] = {}
    if isinstance(tools, ToolSet):
        known_functions = tools.functions
    if checked not in known_functions:
        known_functions[checked] = _checked_functions(tools, checked, schemas)
    functions = known_functions[checked]
    min_calls = int(choice == "required" or computes and request.draws_call)
    is_named = False
    if isinstance(choice, NamedToolChoice):
        names = frozenset(choice.names())
        functions = tuple([tool for tool in functions if tool.name in names])
        allowed = choice.allowed_tools
        is_named = allowed is None or choice.type == "function"
        min_calls = int(allowed is None or is_named or allowed.mode == "required")
    if is_named and len(functions) > 1:
        raise bad_request("a named tool_choice requires exactly one tool with that name")
    is_single = is_named or request.parallel_tool_calls is False
    max_calls = 1 if is_single else len(functions)
    return ToolCalls(
        tools=functions,
        min_calls=min_calls,
        max_calls=0 if has_results else max_calls,
        draws_call=request.draws_call and not has_results,
        named=is_named,
        lenient=lenient,
        question="" if has_results else last_question(request.messages),
        streams=bool(request.stream),
        first_only=request.parallel_tool_calls is False and not request.keeps_all_calls,
    )


def last_question(messages: Sequence[Message]) -> str:
    """Returns the text of the last user message; nothing right after the result of a tool."""
    if messages and messages[-1]["role"] in RESULT_ROLES:
        return ""
    for message in reversed(messages):
        if message["role"] == "user":
            content = message.get("content")
            return content if type(content) is str else content_text(content)
    return ""


def _checked_functions(
    tools: Sequence[ToolParam], checked: Checked, schemas: Constraints
) -> tuple[ToolFunction, ...]:
    """Returns the functions of the tools.

    Raises:
        ApiError: 400 for parameters with a bad schema.
    """
    functions: list[ToolFunction] = []
    for tool in paced(tools):
        function = tool.function
        parameters = function.parameters or NO_PARAMETERS
        try:
            if checked == "all":
                schemas.compile(parameters)
            elif checked == "strict" and function.strict:
                _check_strict(schemas.verdict_on(parameters))
        except SchemaError as error:
            message = f"The parameters of tool {function.name!r} cannot be used: {error}."
            raise bad_request(message, None if function.strict else "tools") from None
        functions.append(
            ToolFunction(
                name=function.name,
                schema=parameters,
                description=function.description or "",
                strict=bool(function.strict),
            )
        )
    return tuple(functions)


def _check_strict(verdict: SchemaVerdict) -> None:
    """Raises ApiError if vLLM cannot make a structural tag of a strict tool's parameters."""
    if not verdict.suits_tags:
        raise bad_request("Invalid grammar specification: 'triggers'")
    if verdict.fails and not verdict.refusal:
        raise internal("Internal server error")
