"""``POST /v1/responses``: the body, items of its input, its chat, and the response (vllm-api.md
section 6).

Answers have their keys in vLLM's order; `Raw` is encoded JSON.
"""

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Annotated, ClassVar, Literal, cast

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from app.serving.http.errors import bad_request
from app.serving.protocol import options, response_tools, rules
from app.serving.protocol.chat import ChatCompletionRequest, Message
from app.serving.protocol.coercion import (
    ConversionError,
    JsonObject,
    convert,
    convert_value,
    format_param,
)
from app.serving.protocol.common import ECTransferParams, KVTransferParams, PerRequestMetrics
from app.serving.protocol.decoding import RawRequest
from app.serving.protocol.options import Effort, SamplingFields

Status = Literal["in_progress", "completed", "incomplete"]
SAID_TO = ("input_text", "input_image", "input_file")
"""Types of parts in messages of all roles but the assistant, and in results of functions."""
SAID_BY_ASSISTANT = ("output_text", "refusal")


class ContentPart(Struct, kw_only=True):
    """One part of a content; its type decides which fields are used, and all others are ignored."""

    type: Literal[
        "input_text",
        "input_image",
        "input_file",
        "output_text",
        "refusal",
        "summary_text",
        "reasoning_text",
    ]
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    file_id: str | None = None
    detail: Literal["low", "high", "auto", "original"] = "auto"

    def __post_init__(self) -> None:
        if self.type not in ("input_image", "input_file") and self.said is None:
            raise ConversionError("a text", "refusal" if self.type == "refusal" else "text")

    @property
    def said(self) -> str | None:
        """The part's text or refusal; None without one."""
        return self.refusal if self.type == "refusal" else self.text


Content = str | list[ContentPart]


def convert_content(value: object) -> object:
    """Converts a text or parts; null is allowed. Raises `ConversionError` at the wrong part."""
    is_text = value is None or isinstance(value, str)
    return value if is_text else convert_value(list[ContentPart], value)


class InputItem(Struct, kw_only=True):
    """One item of the input; its type decides which fields are used."""

    type: (
        Literal[
            "message",
            "function_call",
            "function_call_output",
            "custom_tool_call",
            "custom_tool_call_output",
            "reasoning",
        ]
        | UnsetType
    ) = UNSET
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: Content | None = None
    status: Status | None = None
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    payload: str | None = field(name="input", default=None)
    output: Content | None = None
    summary: list[ContentPart] | None = None
    encrypted_content: str | None = None

    lax_fields: ClassVar[Mapping[str, Hashable]] = {
        "content": convert_content,
        "output": convert_content,
    }

    def __post_init__(self) -> None:
        for key in NEEDED[self.kind]:
            if getattr(self, key) is None:
                raise ConversionError(
                    "a value, it is missing", "input" if key == "payload" else key
                )
        parts = self.content if isinstance(self.content, list) else []
        types: tuple[str, ...] = ("reasoning_text",) if self.kind == "reasoning" else SAID_TO
        if self.type == "message" and self.role == "assistant":  # a message of an earlier response
            types = (
                SAID_BY_ASSISTANT
                if any(part.type in SAID_BY_ASSISTANT for part in parts)
                else SAID_TO
            )
        outputs = self.output if isinstance(self.output, list) else []
        for group, allowed in (
            (parts, types),
            (outputs, SAID_TO),
            (self.summary or [], ("summary_text",)),
        ):
            if any(part.type not in allowed for part in group):
                raise ConversionError(f"parts of type {' or '.join(allowed)}")

    @property
    def kind(self) -> str:
        return "message" if self.type is UNSET else self.type


NEEDED = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("output",),
    "custom_tool_call": ("call_id", "name", "payload"),
    "custom_tool_call_output": ("call_id", "output"),
    "reasoning": ("summary",),
}
UNSUPPORTED = frozenset(
    ("additional_tools", "apply_patch_call", "apply_patch_call_output", "code_interpreter_call")
    + (
        "compaction",
        "compaction_trigger",
        "computer_call",
        "computer_call_output",
        "configuration_update",
    )
    + ("file_search_call", "image_generation_call", "item_reference", "local_shell_call")
    + ("local_shell_call_output", "mcp_approval_request", "mcp_approval_response", "mcp_call")
    + ("mcp_list_tools", "program", "program_output", "shell_call", "shell_call_output")
    + ("tool_search_call", "tool_search_output", "web_search_call")
)
"""Types of items that vLLM's schema has, and no conversation may have."""


def convert_input(value: object) -> str | list[InputItem]:
    """Converts the input.

    Raises `ConversionError`, whose path is the whole input, as in vLLM, and `ApiError` for unsupported valid
    items.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ConversionError("a text or a list of items")
    items: list[InputItem] = []
    unsupported = ""
    for index, item in enumerate(value):
        kind = item.get("type") if isinstance(item, dict) else None
        if isinstance(item, dict) and kind is None and "role" not in item and "id" in item:
            kind = "item_reference"
        if isinstance(kind, str) and kind in UNSUPPORTED:
            unsupported = unsupported or kind
            continue
        try:
            items.append(convert_value(InputItem, item))
        except ConversionError as error:
            where = format_param(("input", index, *error.path))
            raise ConversionError(
                f"a text or a list of items, and at {where} {error.expected}"
            ) from None
    if unsupported:
        raise bad_request(f"Unsupported input item type: {unsupported}", "input")
    return items


LOGPROBS = "message.output_text.logprobs"
"""Value in `include` that requests log probabilities."""

Include = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
]
Summary = Literal["auto", "concise", "detailed"]
Penalty = Annotated[float, Meta(ge=-2, le=2)]


class Reasoning(Struct, kw_only=True):
    """Options for thinking; only `effort` has an effect. Fields are in the answer's order."""

    context: Literal["auto", "current_turn", "all_turns"] | None = None
    effort: Effort | None = None
    generate_summary: Summary | None = None
    mode: str | None = None
    summary: Summary | None = None


class TextFormat(Struct, kw_only=True):
    """The form of the reply's text; all fields but `type` are for ``json_schema``."""

    name: str | None = None
    json_schema: JsonObject | None = field(default=None, name="schema")
    type: Literal["text", "json_schema", "json_object"]
    description: str | None = None
    strict: bool | None = None

    def __post_init__(self) -> None:
        if self.type == "json_schema" and (self.name is None or self.json_schema is None):
            raise ConversionError("a name and a schema")

    def told(self) -> JsonObject:
        told: JsonObject = msgspec.to_builtins(self)
        return told if self.type == "json_schema" else {"type": self.type}


def convert_format(value: object) -> TextFormat | None:
    """Converts a text format. Raises `ConversionError` as for the first form that vLLM tries, a text."""
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    try:
        return convert(TextFormat, {"type": kind} if kind in ("text", "json_object") else value)
    except ConversionError:
        path = (
            ("ResponseFormatText", "type") if isinstance(value, dict) else ("ResponseFormatText",)
        )
        raise ConversionError(
            "text, json_object, or json_schema with a name and a schema", *path
        ) from None


def convert_history(value: object) -> list[JsonObject] | None:
    try:
        history: list[JsonObject] | None = convert_value(list[JsonObject] | None, value)
        return history
    except ConversionError as error:
        kind = ("Message",) if error.path else ()  # the kind that vLLM tries first
        raise ConversionError(error.expected, *error.path, *kind) from None


class TextConfig(Struct, kw_only=True):
    """Options for the reply's text; `verbosity` has no effect."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None

    lax_fields: ClassVar[Mapping[str, Hashable]] = {"format": convert_format}


class ResponsesRequest(SamplingFields, kw_only=True):
    """The body of ``POST /v1/responses``, with every field of vLLM.

    None is the server's default where no other default is given.
    """

    background: bool | None = False
    include: list[Include] | None = None
    input: str | list[InputItem]
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = True
    previous_response_id: str | None = None
    prompt: object = None
    reasoning: Reasoning | None = None
    include_reasoning: bool = True
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] = "auto"
    store: bool | None = True
    text: TextConfig | None = None
    tool_choice: str | JsonObject = "auto"
    """Never ``auto`` after decoding when there are no tools."""
    tools: list[response_tools.ToolParam] = []
    top_logprobs: int | None = 0
    truncation: Literal["auto", "disabled"] | None = "disabled"
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    prompt_cache_key: str | None = None
    media_io_kwargs: dict[str, JsonObject] | None = None
    mm_processor_kwargs: JsonObject | None = None
    enable_response_messages: bool = False
    """Adds the prompt and the reply to the answer, as texts and token ids."""
    previous_input_messages: list[JsonObject] | None = None
    chat_template_kwargs: JsonObject | None = None

    lax_fields: ClassVar[Mapping[str, Hashable]] = {
        "input": convert_input,
        "previous_input_messages": convert_history,
        "tool_choice": response_tools.convert_tool_choice,
        "tools": response_tools.convert_tools,
    }
    rule_defaults: ClassVar[Mapping[str, object]] = {"store": True, "tool_choice": "auto"}

    def __post_init__(self) -> None:
        choice = self.tool_choice
        if self.top_logprobs is None:
            self.top_logprobs = 0
        if not self.tools and choice == "auto":
            self.tool_choice = "none"
        elif (
            self.tools and isinstance(choice, dict) and choice.get("type") in ("function", "custom")
        ):
            self.tool_choice = response_tools.resolve_choice(choice, self.tools)

    @property
    def logprobs(self) -> int | None:
        return self.top_logprobs if LOGPROBS in (self.include or ()) else None

    def check_rules(self: "ResponsesRequest | RawRequest") -> None:
        response_tools.check_tool_use(self.tools, self.tool_choice)
        if self.prompt is not None:
            raise bad_request("prompt templates are not kept here", "prompt")
        if self.background and not self.store:
            raise bad_request("background needs store=true", "background")
        rules.check_cache_salt(self.cache_salt)


class ResponseObject(Struct, kw_only=True):
    """A response in one of its states, with keys in vLLM's order. `created_at` is in Unix seconds.

    `status`: `queued`, `in_progress`, `completed`, `incomplete`, `failed` or `cancelled`.
    """

    id: str
    created_at: int
    incomplete_details: JsonObject | None = None
    instructions: str | None
    metadata: Mapping[str, str] | None
    model: str
    object: str = "response"
    output: Sequence[JsonObject | Raw] | Raw = ()
    parallel_tool_calls: bool
    temperature: float
    tool_choice: Raw
    tools: Raw
    top_p: float
    background: bool
    max_output_tokens: int
    max_tool_calls: int | None
    previous_response_id: str | None
    prompt: None = None
    reasoning: Reasoning | None
    service_tier: str
    status: str = "in_progress"
    text: Raw
    top_logprobs: int | None
    truncation: str
    usage: JsonObject | None = None
    user: str | None
    metrics: PerRequestMetrics | UnsetType = UNSET
    presence_penalty: float
    frequency_penalty: float
    kv_transfer_params: KVTransferParams | None = None
    ec_transfer_params: ECTransferParams | None = None
    input_messages: Sequence[JsonObject] | None = None
    output_messages: Sequence[JsonObject] | None = None
    error: JsonObject | UnsetType = UNSET


CALLS = ("function_call", "custom_tool_call")
RESULTS = ("function_call_output", "custom_tool_call_output")
SAME = (
    *options.SamplingFields.__struct_fields__,
    *("chat_template_kwargs", "include_reasoning", "media_io_kwargs", "mm_processor_kwargs"),
)


class ResponsesChat(ChatCompletionRequest, kw_only=True):
    after_results: bool = False
    """True after results of tools:

    a simulation then replies with text, but a script may call tools again.
    """


def chat_request(asked: ResponsesRequest) -> ResponsesChat:
    """Converts `asked` to a chat. ApiError 400 when the chat breaks a rule."""
    items = (
        [InputItem(role="user", content=asked.input)]
        if isinstance(asked.input, str)
        else asked.input
    )
    system: list[Message] = (
        [{"role": "system", "content": asked.instructions}] if asked.instructions else []
    )
    last = items[-1] if items else None
    partial = (
        last
        and last.kind in ("message", "reasoning")
        and last.status in ("in_progress", "incomplete")
    )
    chat = ResponsesChat(
        messages=[*system, *_turns(items)],
        continue_final_message=bool(partial),
        add_generation_prompt=not partial,
        max_completion_tokens=asked.max_output_tokens,
        reasoning_effort=asked.reasoning.effort if asked.reasoning else None,
        parallel_tool_calls=False,
        **{name: getattr(asked, name) for name in SAME},
    )
    _take_tools(chat, asked)
    if asked.logprobs is not None:
        if asked.logprobs < -1:
            raise bad_request("logprobs must be 0 or more, or -1", "logprobs")
        chat.logprobs, chat.top_logprobs = True, asked.logprobs
    form = asked.text.format if asked.text else None
    if form is not None:
        if asked.structured_outputs is not None:
            raise bad_request(
                "structured_outputs and text.format exclude each other", "structured_outputs"
            )
        schema = None
        if form.type == "json_schema":
            schema = options.JsonSchema(name=form.name or "", json_schema=form.json_schema)
        chat.response_format = options.ResponseFormat(type=form.type, json_schema=schema)
    chat.check_rules()
    return chat


def go_on(chat: ResponsesChat, before: Sequence[Message], output: Sequence[JsonObject]) -> None:
    """Prepends an earlier exchange to `chat`: messages `before`, and the response's items `output`.

    Earlier instructions and reasoning are dropped.
    """
    leading = 1 if chat.messages[:1] and chat.messages[0]["role"] == "system" else 0
    said = [msgspec.convert(item, InputItem) for item in output if item["type"] != "reasoning"]
    earlier = [message for message in before if message["role"] != "system"]
    chat.messages[leading:leading] = [*earlier, *_turns(said)]
    _answer_results(chat)


def echo_text(asked: str | Sequence[InputItem]) -> str:
    """Returns the reply of mode `echo`: the text of the last item (simulator.md 5.2)."""
    if isinstance(asked, str):
        return asked
    if not asked:
        return ""
    last = asked[-1]
    if last.kind in CALLS:
        return f"{last.name}({last.arguments or last.payload})"
    content = last.output if last.kind in RESULTS else last.content or last.summary
    if isinstance(content, str):
        return content
    parts = content or ()
    return "\n".join(
        f"image: {part.image_url}" if part.type == "input_image" else part.said or ""
        for part in parts
    )


def _turns(items: Iterable[InputItem]) -> list[Message]:
    """Returns the messages of `items`; consecutive items of the assistant become one message."""
    messages: list[Message] = []
    for item in items:
        turn = _turn(item)
        last = messages[-1] if messages else None
        # Calls always join the last message; reasoning and text only one that has none.
        joins = last is not None and not any(
            key in last for key in ("content", "reasoning") if key in turn
        )
        if last is not None and joins and turn["role"] == last["role"] == "assistant":
            calls = [*cast(list[JsonObject], turn.pop("tool_calls", []))]
            last |= turn
            if calls:
                last["tool_calls"] = [*cast(list[JsonObject], last.get("tool_calls", [])), *calls]
        else:
            messages.append(turn)
    return messages


def _turn(item: InputItem) -> Message:
    if item.kind in CALLS:
        name, arguments = item.name or "", item.arguments
        if item.kind == "custom_tool_call":
            arguments = json.dumps({response_tools.CUSTOM_INPUT: item.payload}, ensure_ascii=False)
        elif item.namespace:
            name = response_tools.flat_name(item.namespace, name)
        function = {"name": name, "arguments": arguments}
        call = {"id": item.call_id, "type": "function", "function": function}
        return {"role": "assistant", "tool_calls": [call]}
    if item.kind in RESULTS:
        return {
            "role": "tool",
            "tool_call_id": item.call_id or "",
            "content": _content(item.output),
        }
    if item.kind == "reasoning":
        if item.encrypted_content:
            raise bad_request("encrypted reasoning cannot be read here", "input")
        return {"role": "assistant", "reasoning": _first_text(item.content or item.summary)}
    if item.role == "assistant":
        return {"role": item.role, "content": _first_text(item.content)}
    return {"role": item.role, "content": _content(item.content)}


def _first_text(content: Content | None) -> str:
    if isinstance(content, str):
        return content
    return (content[0].said or "") if content else ""


def _content(content: Content | None) -> str | list[JsonObject]:
    if isinstance(content, str):
        return content
    parts: list[JsonObject] = []
    for part in content or ():
        if part.type == "input_file":
            raise bad_request(f"Unsupported chat content part type: {part.type!r}.", "type")
        if part.type == "input_image":
            parts.append({"type": "image_url", "image_url": {"url": part.image_url}})
        else:
            parts.append({"type": "text", "text": part.said})
    return parts


def _take_tools(chat: ResponsesChat, asked: ResponsesRequest) -> None:
    """Sets tools and tool choice; ``auto`` becomes ``required`` (simulator.md 7.1)."""
    chat.tools = [
        options.Tool(function=function)
        for function, _ in response_tools.callable_functions(asked.tools)
    ] or None
    must_call = asked.tool_choice == "required" or _is_named(asked.tool_choice)
    if asked.tools and chat.tools is None and must_call:
        raise bad_request("tool_choice asks for a call, and no tool can be called", "tool_choice")
    chat.tool_choice = "none" if chat.tools is None else _tool_choice(asked.tool_choice)
    _answer_results(chat)


def _answer_results(chat: ResponsesChat) -> None:
    """Forces no call after the result of a function, or an agent would never end."""
    if any(message["role"] == "tool" for message in chat.messages):
        chat.after_results = True
        if chat.tool_choice != "none":
            chat.tool_choice = "auto"


def _tool_choice(choice: str | JsonObject) -> options.ToolChoice:
    if isinstance(choice, str):
        return "none" if choice == "none" else "required"
    if _is_named(choice):
        return options.NamedToolChoice(function=msgspec.convert(choice, options.NamedFunction))
    if choice["type"] != "allowed_tools":
        return "auto"
    allowed = cast(list[JsonObject], choice["tools"])
    names = [name for tool in allowed if isinstance(name := tool.get("name"), str)]
    if not names:
        return "none"
    tools = [options.Tool(function=options.FunctionDefinition(name=name)) for name in names]
    mode = cast(Literal["auto", "required"], choice["mode"])
    return options.NamedToolChoice(
        type="allowed_tools", allowed_tools=options.AllowedTools(mode=mode, tools=tools)
    )


def _is_named(choice: str | JsonObject) -> bool:
    return isinstance(choice, dict) and choice["type"] in ("function", "custom")
