"""``POST /v1/chat/completions`` and its batch: the bodies and their answers.

Answers have their keys in vLLM's order; UNSET fields are omitted. `Raw` is encoded JSON.

A message stays the client's dict, because chat templates may read any key. Accepted messages are
one of OpenAI's six kinds, or have any other role with text or parts. A message that fits none of
them is reported as an invalid developer message, the first kind that vLLM tries.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, TypeGuard

from msgspec import UNSET, Raw, Struct, UnsetType

from app.core.base.clock.pause import paced
from app.core.protocol import common, rules
from app.core.protocol.coercion import ConversionError, JsonObject, LaxFields, format_param
from app.core.protocol.decoding import RawRequest
from app.core.protocol.options import Effort, GenerationFields, Tool, ToolChoice
from app.core.server.http.errors import bad_request, malformed

Message = JsonObject

FIRST_KIND = "ChatCompletionDeveloperMessageParam"
TOOL_CALL = "ChatCompletionMessageFunctionToolCallParam"
CALL_KEYS = ("id", "function", "type")
FUNCTION_KEYS = ("arguments", "name")
TOOL_KEYS = ("function", "type")
TOOL_FUNCTION_KEYS = ("name", "description", "parameters", "strict")
"""Keys of calls in messages, and of a developer's tools, in the order of vLLM's schema.

A template may print a call or a tool whole, so the order decides the prompt and its block hashes.
"""
DATA_URL = "data:"
PLAIN_KEYS = frozenset(("role", "content"))


def convert_messages(value: object) -> list[Message]:
    """Returns the client's messages, with the keys of calls and tools in vLLM's order.

    Raises:
        ConversionError: A message is of no accepted kind.
    """
    if not isinstance(value, list):
        raise ConversionError("a list of messages", kind="list_type")
    for index, message in enumerate(paced(value)):
        try:
            _check_message(message)
        except ConversionError as error:
            raise error.prefixed(index) from None
        if "tool_calls" in message or "tools" in message:
            _sort_keys(message)
    return value


def _sort_keys(message: Message) -> None:
    """Sorts the keys of calls and tools in the messages that templates show them of."""
    role = message["role"]
    calls = message.get("tool_calls")
    tools = message.get("tools")
    if role == "assistant" and isinstance(calls, list):
        message["tool_calls"] = [_sorted(call, CALL_KEYS, FUNCTION_KEYS) for call in paced(calls)]
    elif role == "developer" and isinstance(tools, list) and all(map(_is_typed_tool, paced(tools))):
        message["tools"] = [_sorted(tool, TOOL_KEYS, TOOL_FUNCTION_KEYS) for tool in paced(tools)]


def _sorted(value: object, keys: Sequence[str], function_keys: Sequence[str]) -> object:
    """Returns an object with `keys` first, and its function with `function_keys` first."""
    if not isinstance(value, dict):
        return value
    result = {key: value[key] for key in keys if key in value} | value
    function = value.get("function")
    if isinstance(function, dict):
        known = {key: function[key] for key in function_keys if key in function}
        result["function"] = known | function
    return result


def normalize_messages(messages: object) -> None:
    """Renames ``reasoning_content`` to ``reasoning``, and makes tool calls a list; in place."""
    for message in paced(messages) if isinstance(messages, list) else ():
        if not isinstance(message, dict):
            continue
        calls = message.get("tool_calls")
        if calls is not None and not isinstance(calls, list):
            if not isinstance(calls, str | dict):
                raise bad_request("tool_calls in a message must be a list")
            message["tool_calls"] = list(calls)
        reasoning = message.pop("reasoning_content", None)
        if reasoning is not None and message.get("reasoning") is None:
            message["reasoning"] = reasoning


def check_tool_calls(message: Message) -> None:
    """Checks the tool calls of an assistant's message.

    Raises:
        ApiError: A call has no id, no type, or no function or custom tool.
    """
    calls = message.get("tool_calls")
    if message.get("role") != "assistant" or not isinstance(calls, list):
        return
    for index, call in enumerate(paced(calls)):
        is_custom = _has_strings(call, "id", "type") and call["type"] == "custom"
        if is_custom and _has_strings(call.get("custom"), "input", "name"):
            continue
        path = _function_call_error(call)
        if path:
            param = format_param((index, *path))
            raise malformed(f"{param}: a tool call in a message is incomplete", param)


def _check_message(message: object) -> None:
    if not isinstance(message, dict):
        raise ConversionError("a message object", FIRST_KIND, kind="dict_type")
    if _is_known_kind(message) or _is_custom_kind(message):
        return
    if not _is_content(message.get("content")):
        raise ConversionError(
            "a string or a list of parts", FIRST_KIND, "content", kind="string_type"
        )
    if message.get("role") != "developer":
        raise ConversionError("the name of a role", FIRST_KIND, "role", kind="literal_error")
    raise ConversionError("a string", FIRST_KIND, "name", kind="string_type")


def _is_content(content: object) -> bool:
    # Parts are checked when the conversation is rendered; here any iterable passes.
    return isinstance(content, str | list | dict)


def _is_known_kind(message: Message) -> bool:
    role = message.get("role")
    content = message.get("content")
    if role == "tool":
        return _is_content(content) and _has_strings(message, "tool_call_id")
    if role == "function":
        return (
            "content" in message
            and isinstance(content, str | None)
            and _has_strings(message, "name")
        )
    if not isinstance(message.get("name", ""), str):
        return False
    if role == "assistant":
        audio = message.get("audio")
        call = message.get("function_call")
        return (
            (content is None or _is_content(content))
            and isinstance(message.get("refusal"), str | None)
            and (audio is None or _has_strings(audio, "id"))
            and (call is None or _has_strings(call, "arguments", "name"))
            and isinstance(message.get("tool_calls", []), list)
        )
    return role in ("developer", "system", "user") and _is_content(content)


def _is_custom_kind(message: Message) -> bool:
    content = message.get("content", "")
    calls = message.get("tool_calls")
    tools = message.get("tools")
    return (
        isinstance(message.get("role"), str)
        and (
            isinstance(content, str)
            or isinstance(content, list)
            and all(isinstance(part, str | dict) for part in content)
        )
        and isinstance(message.get("name", ""), str)
        and all(
            isinstance(message.get(key), str | None)
            for key in ("tool_call_id", "reasoning", "task")
        )
        and (
            calls is None
            or isinstance(calls, list)
            and not any(map(_function_call_error, paced(calls)))
        )
        and (tools is None or isinstance(tools, list) and all(map(_is_tool, paced(tools))))
    )


def _has_strings(value: object, *keys: str) -> TypeGuard[JsonObject]:
    return isinstance(value, dict) and all([isinstance(value.get(key), str) for key in keys])


def _is_tool(tool: object) -> bool:
    return (
        _has_strings(tool, "type")
        and tool["type"] == "function"
        and _has_strings(tool.get("function"), "name")
    )


def _is_typed_tool(tool: object) -> bool:
    """Returns true for a tool that fits vLLM's schema; it takes other tools as they are."""
    if not isinstance(tool, dict) or not _is_tool(tool):
        return False
    function = tool["function"]
    return (
        isinstance(function.get("description", ""), str)
        and isinstance(function.get("parameters", {}), dict)
        and isinstance(function.get("strict"), bool | None)
    )


def _function_call_error(call: object) -> tuple[str, ...]:
    """Returns the path to a function call's error, which starts with the kind's name.

    The path of a valid call is empty.
    """
    if not isinstance(call, dict):
        return (TOOL_CALL,)
    function = call.get("function")
    if not _has_strings(call, "id"):
        return (TOOL_CALL, "id")
    if not _has_strings(function, "arguments"):
        return (TOOL_CALL, "function")  # vLLM leaves the step "arguments" out
    if not _has_strings(function, "name"):
        return (TOOL_CALL, "function", "name")
    if call.get("type") != "function":
        return (TOOL_CALL, "type")
    return ()


def content_text(content: object) -> str:
    """Joins text parts and images (as `image: URL`) by line breaks; other parts are skipped.

    The data in a data URL are left out.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list | dict):
        return ""
    texts: list[str] = []
    for part in paced(content):
        text = part
        if isinstance(part, dict):
            text = part.get("text")
            if part.get("type") == "image_url":
                image = part.get("image_url")
                url = image.get("url") if isinstance(image, dict) else image
                if isinstance(url, str) and url[:5].lower() == DATA_URL:
                    url = url[: url.find(",") + 1]
                text = f"image: {url}"
        if isinstance(text, str):
            texts.append(text)
    return "\n".join(texts)


class ChatCompletionRequest(GenerationFields, kw_only=True):
    """The body of ``POST /v1/chat/completions``, with every field of vLLM.

    None stands for the server's default.
    """

    after_results: ClassVar[bool] = False
    """True if a simulation replies with text, as the last input is a result of a tool."""
    draws_call: ClassVar[bool] = False
    """True if at least one call is made where a simulation draws calls."""
    keeps_all_calls: ClassVar[bool] = False
    """True if `parallel_tool_calls` limits the calls that are drawn, not those in a text."""

    messages: list[Message]
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = 1
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | UnsetType = UNSET
    """Never UNSET after decoding: the default is ``auto`` with tools, else ``none``."""
    reasoning_effort: Effort | None = None
    include_reasoning: bool = True
    parallel_tool_calls: bool | None = True

    echo: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    documents: list[dict[str, str]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: JsonObject | None = None
    media_io_kwargs: dict[str, JsonObject] | None = None
    mm_processor_kwargs: JsonObject | None = None
    return_prompt_text: bool | None = None

    lax_fields: ClassVar[LaxFields] = {
        "messages": convert_messages,
        "tool_choice": ToolChoice,
    }
    rule_defaults: ClassVar[JsonObject] = {"messages": [], "tool_choice": "none"}

    def __post_init__(self) -> None:
        """Sets the defaults that depend on other fields."""
        if self.tool_choice is UNSET:
            self.tool_choice = "auto" if self.tools else "none"
        if self.top_logprobs is None:
            self.top_logprobs = 0
        super().__post_init__()

    def check_rules(self: "ChatCompletionRequest | RawRequest") -> None:
        """Applies vLLM's rules that come before the schema, and normalizes the messages."""
        check_fields(self)
        normalize_messages(self.messages)

    def check_decoded(self) -> None:
        """Applies the rules; plain messages need no conversion, and are read once."""
        for message in self.messages or [{}]:  # no messages need the conversion's error
            if not (
                type(message) is dict
                and message.keys() == PLAIN_KEYS
                and type(message["role"]) is type(message["content"]) is str
            ):
                super().check_decoded()
                return
        check_fields(self)

    def conversations(self) -> Sequence[list[Message]]:
        """Returns the conversations, one for each prompt."""
        return (self.messages,)

    def check_converted(self) -> None:
        """Checks the tool calls of assistants."""
        for message in paced(self.messages):
            if "tool_calls" in message:
                check_tool_calls(message)


def check_fields(request: ChatCompletionRequest | RawRequest) -> None:
    """Applies vLLM's rules for the fields of a chat that come before the schema."""
    if not isinstance(request.messages, list | dict | str):
        raise bad_request("messages must be a list")
    if request.continue_final_message:
        rules.check_continuation(request.continue_final_message, request.add_generation_prompt)
    if request.tools is not None or request.tool_choice != "none":
        rules.check_tools(request.tools, request.tool_choice)
    if request.structured_outputs is not None:
        rules.check_structured_outputs(request.structured_outputs, None, request.tool_choice)
    has_alternatives = request.logprob_token_ids or request.top_logprobs not in (None, 0)
    if has_alternatives or request.prompt_logprobs is not None:
        rules.check_chat_logprobs(request)
    if request.stream_options:
        rules.check_stream_options(request.stream_options, request.stream)
    shared_fields = (request.response_format, request.cache_salt, request.thinking_token_budget)
    if shared_fields != (None, None, None):
        rules.check_shared_fields(request)


class ContentBlock(Struct, omit_defaults=True):
    """A text or an image, whose address is under `url`."""

    type: Literal["text", "image_url"]
    text: str | UnsetType = UNSET
    image_url: Mapping[str, str] | UnsetType = UNSET


Content = str | Raw | Sequence[ContentBlock]


class FunctionCall(Struct):
    """Name and arguments of a called function.

    `arguments` is JSON as text; a chunk has only a part of the text.
    """

    name: str | UnsetType = UNSET
    arguments: str | Raw | UnsetType = UNSET


class ToolCall(Struct):
    """One tool call. Only chunks have `index`, the number of the call in its choice."""

    id: str | None | UnsetType = UNSET
    type: str | UnsetType = UNSET
    index: int | UnsetType = UNSET
    function: FunctionCall | UnsetType = UNSET


class ChatMessage(Struct):
    """The message of a choice."""

    schemas: ClassVar[Sequence[str]] = ("ChatMessage",)
    role: str
    content: Content | None
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    tool_calls: Sequence[ToolCall] | UnsetType = UNSET
    reasoning: str | Raw | None = None


class ChatChoice(Struct):
    """One choice of a whole answer."""

    schemas: ClassVar[Sequence[str]] = ("ChatCompletionResponseChoice",)
    index: int
    message: ChatMessage
    logprobs: common.LogprobContent | None
    finish_reason: str
    stop_reason: str | int | None
    token_ids: Sequence[int] | Raw | None
    routed_experts: None = None
    weight_versions: common.WeightVersions = UNSET


class ChatCompletion(common.WholeAnswer, kw_only=True):
    """A whole answer."""

    schemas: ClassVar[Sequence[str]] = ("ChatCompletionResponse",)
    object: str = "chat.completion"
    choices: Sequence[ChatChoice | Raw]
    prompt_logprobs: common.PromptLogprobs | Raw | None = None
    prompt_token_ids: Sequence[int] | Raw | None = None
    prompt_text: str | None = None
    kv_transfer_params: common.KVTransferParams | None = None
    ec_transfer_params: common.ECTransferParams | None = None
    metrics: common.PerRequestMetrics | None = None


class Delta(Struct):
    """Parts of a message that a chunk adds."""

    schemas: ClassVar[Sequence[str]] = ("DeltaMessage",)
    role: str | Raw | UnsetType = UNSET
    content: Content | None | UnsetType = UNSET
    reasoning: str | Raw | None | UnsetType = UNSET
    tool_calls: Sequence[ToolCall] | UnsetType = UNSET


class ChunkChoice(Struct):
    """One choice of a chunk."""

    schemas: ClassVar[Sequence[str]] = ("ChatCompletionResponseStreamChoice",)
    index: int | Raw
    delta: Delta
    logprobs: common.LogprobContent | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None | UnsetType = UNSET
    token_ids: Sequence[int] | None | UnsetType = UNSET
    weight_versions: common.WeightVersions = UNSET
