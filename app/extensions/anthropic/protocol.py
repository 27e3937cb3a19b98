"""``POST /v1/messages`` and ``/count_tokens``: the bodies, their chats, and errors.

UNSET fields are omitted.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from app.core.base.clock.pause import paced
from app.core.protocol import options
from app.core.protocol.chat import ChatCompletionRequest, Message
from app.core.protocol.coercion import ConversionError, JsonObject
from app.core.protocol.decoding import Request
from app.core.server.http.errors import malformed

Name = Annotated[str, Meta(min_length=1)]
Display = Literal["summarized", "omitted", "updates"]

BILLING_HEADER = "x-anthropic-billing-header"
"""Start of system texts that are dropped.

They change with each request, and would keep the prefix cache from matching.
"""


class ToolParam(Struct, kw_only=True):
    """A tool for the model; the type of its schema defaults to object."""

    name: str
    description: str | None = None
    input_schema: JsonObject
    strict: bool | None = None
    defer_loading: bool | None = None

    def __post_init__(self) -> None:
        self.input_schema.setdefault("type", "object")

    def function(self) -> options.FunctionDefinition:
        """Returns the same function as a tool of a chat."""
        return options.FunctionDefinition(
            name=self.name,
            description=self.description,
            parameters=self.input_schema,
            strict=self.strict,
            defer_loading=self.defer_loading,
        )


class AnthropicBlock(Struct, kw_only=True):
    """One content block; its type decides which fields are used, and which are ignored."""

    type: Literal[
        "text",
        "image",
        "tool_use",
        "tool_result",
        "tool_reference",
        "thinking",
        "redacted_thinking",
    ]
    text: str | None = None
    source: JsonObject | None = None
    """An image's URL, or its bytes in base64."""
    id: str | None = None
    tool_use_id: str | None = None
    name: str | None = None
    input: JsonObject | None = None
    content: str | list[JsonObject] | None = None
    is_error: bool | None = None
    tool_name: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None


class MessageParam(Struct, kw_only=True):
    """One turn of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | list[AnthropicBlock]


class ToolChoiceParam(Struct, kw_only=True):
    """How the model uses tools.

    It decides (auto), calls at least one (any), calls the tool `name` (tool), or calls none.
    """

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    def __post_init__(self) -> None:
        if self.type == "tool" and not self.name:
            raise ConversionError("the name of a tool")


class OutputFormat(Struct, kw_only=True):
    """A reply in JSON; ``schema`` on the wire is `json_schema` here."""

    json_schema: JsonObject | None = msgspec.field(default=None, name="schema")
    type: Literal["json_schema"] = "json_schema"


class OutputConfig(Struct, kw_only=True):
    """Options for the reply."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class ThinkingEnabled(Struct, tag_field="type", tag="enabled"):
    """Thinking for at most `budget_tokens` tokens; `display` has no effect."""

    budget_tokens: Annotated[int, Meta(ge=1024)]
    display: Display | None = None


class ThinkingDisabled(Struct, tag_field="type", tag="disabled"):
    """No thinking, or the least that the chat template can request."""


class ThinkingAdaptive(Struct, tag_field="type", tag="adaptive"):
    """Thinking without a budget."""

    display: Display | None = None


Thinking = ThinkingEnabled | ThinkingDisabled | ThinkingAdaptive


class ThreadCreate(Struct, tag_field="type", tag="create"):
    """Requests that the server stores the conversation."""


class ThreadContinue(Struct, tag_field="type", tag="continue"):
    """Continues the conversation that was stored with a reply's id."""

    previous_message_id: str


class MessagesRequest(options.SharedFields, kw_only=True):
    """The body of ``POST /v1/messages``; `max_tokens` covers thinking and reply together."""

    schemas: ClassVar[Sequence[str]] = ("AnthropicMessagesRequest",)
    model: Name
    messages: list[MessageParam]
    max_tokens: Annotated[int, Meta(ge=1)]
    metadata: JsonObject | None = None
    output_config: OutputConfig | None = None
    thinking: Thinking | None = None
    stop_sequences: Annotated[list[str], Meta(max_length=options.MAX_STOP_STRINGS)] | None = None
    system: str | list[AnthropicBlock] | None = None
    tool_choice: ToolChoiceParam | None = None
    tools: list[ToolParam] | None = None
    chat_template_kwargs: JsonObject | None = None
    thread: ThreadCreate | ThreadContinue | None = None
    """A beta of Anthropic's SDK; not in vLLM, which sees only the new turns."""

    def check_converted(self) -> None:
        """Checks the budget of thinking against `max_tokens`."""
        is_prefill = (self.kv_transfer_params or {}).get("do_remote_decode")
        if is_prefill or not isinstance(self.thinking, ThinkingEnabled):
            return
        if self.thinking.budget_tokens >= self.max_tokens:
            raise malformed("body: thinking.budget_tokens must be less than max_tokens", "body")


class CountTokensRequest(Request, kw_only=True):
    """The body of ``POST /v1/messages/count_tokens``."""

    schemas: ClassVar[Sequence[str]] = ("AnthropicCountTokensRequest",)
    model: Name
    messages: list[MessageParam]
    output_config: OutputConfig | None = None
    system: str | list[AnthropicBlock] | None = None
    thinking: Thinking | None = None
    tool_choice: ToolChoiceParam | None = None
    tools: list[ToolParam] | None = None
    chat_template_kwargs: JsonObject | None = None


AnthropicRequest = MessagesRequest | CountTokensRequest


def chat_request(
    request: AnthropicRequest,
    merges_system: Callable[[], bool],
    disabled_effort: Callable[[], options.Effort],
) -> ChatCompletionRequest:
    """Converts `request` to a chat request.

    `merges_system` returns true if the chat template requires all system turns first.
    `disabled_effort` returns the template's effort without thinking. Each is called only when
    needed.

    Raises:
        ApiError: Status 400 when tools or salt break the rules of a chat.
    """
    has_system_turns = any(message.role == "system" for message in request.messages)
    merges = has_system_turns and merges_system()
    choice = request.tool_choice
    chat = ChatCompletionRequest(
        model=request.model,
        messages=_messages(request.system, request.messages, merges),
        chat_template_kwargs=request.chat_template_kwargs,
        parallel_tool_calls=choice is None or not choice.disable_parallel_tool_use,
        tools=[options.Tool(function=tool.function()) for tool in request.tools or ()] or None,
    )
    chat.tool_choice = "none" if chat.tools is None else _tool_choice(choice)
    if isinstance(request, MessagesRequest):
        for name in options.SharedFields.__struct_fields__:
            setattr(chat, name, getattr(request, name))
        chat.max_tokens = request.max_tokens
        chat.max_completion_tokens = request.max_tokens
        chat.stop = request.stop_sequences
    if request.output_config is not None:
        chat.reasoning_effort = request.output_config.effort
        output_format = request.output_config.format
        if output_format is not None and output_format.json_schema:
            chat.response_format = options.ResponseFormat(
                type=output_format.type,
                json_schema=options.JsonSchema(
                    name=output_format.type, json_schema=output_format.json_schema
                ),
            )
    if isinstance(request.thinking, ThinkingDisabled):
        chat.reasoning_effort = disabled_effort()
    elif isinstance(request.thinking, ThinkingEnabled):
        chat.thinking_token_budget = request.thinking.budget_tokens
    chat.check_rules()
    if request.tools is not None and not request.tools:
        chat.tools = []  # templates get the empty list, which the rules of a chat reject
    return chat


def _tool_choice(choice: ToolChoiceParam | None) -> options.ToolChoice:
    if choice is None or choice.type == "auto":
        return "auto"
    if choice.type == "tool":
        return options.NamedToolChoice(function=options.NamedFunction(name=choice.name or ""))
    if choice.type == "any":
        return "required"
    return "none"


def _messages(
    system: str | Sequence[AnthropicBlock] | None, messages: Sequence[MessageParam], merges: bool
) -> list[Message]:
    """Returns the messages of a chat; `merges` joins all system turns at the front.

    System turns otherwise keep their places: a turn moved to the front would change the whole
    prompt.
    """
    prompt = system if isinstance(system, str) else _system_text(system or ())
    turns: list[Message] = []
    for message in paced(messages):
        if merges and message.role == "system":
            prompt += _system_text(message.content)
        else:
            turns += _turns(message)
    if not prompt:
        return turns
    return [{"role": "system", "content": prompt}, *turns]


def _system_text(content: str | Sequence[AnthropicBlock]) -> str:
    if isinstance(content, str):
        texts = [content]
    else:
        texts = [block.text for block in content if block.type == "text" and block.text]
    return "".join(text for text in texts if not text.startswith(BILLING_HEADER))


def _turns(message: MessageParam) -> Iterator[Message]:
    """Yields the chat messages of one turn: results of tools come before the user's text."""
    if message.role == "system":
        text = _system_text(message.content)
        if text:
            yield {"role": "system", "content": text}
        return
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
        return
    if message.role == "user":
        for block in paced(message.content):
            if block.type == "tool_result":
                yield from _tool_results(block)
    turn = _turn_without_results(message.role, message.content)
    if message.role == "assistant" or "content" in turn:
        yield turn


def _turn_without_results(role: str, blocks: Sequence[AnthropicBlock]) -> Message:
    """Returns one message without the results of tools; `content` is missing if there is none."""
    parts: list[JsonObject] = []
    thoughts: list[str] = []
    calls: list[JsonObject] = []
    for block in paced(blocks):
        part = _part(role, block)
        if part is not None:
            parts.append(part)
        elif block.type == "thinking" and block.thinking is not None:
            thoughts.append(block.thinking)
        elif block.type == "tool_use":
            # The order of the keys is vLLM's, which a template may print.
            function = {"arguments": json.dumps(block.input or {}), "name": block.name or ""}
            calls.append({"id": block.id or "", "function": function, "type": "function"})
    message: Message = {"role": role}
    if thoughts:
        message["reasoning"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    if len(parts) == 1 and parts[0]["type"] == "text":
        message["content"] = parts[0]["text"]
    elif parts:
        message["content"] = parts
    return message


def _part(role: str, block: AnthropicBlock) -> JsonObject | None:
    if block.type == "text" and block.text:
        return {"type": "text", "text": block.text}
    if block.type == "image" and block.source:
        return _image(block.source)
    if block.type == "tool_result" and role == "assistant":
        return {"type": "text", "text": f"Tool result: {block.content or ''}"}
    return None


def _image(source: JsonObject) -> JsonObject:
    if source.get("type") == "url":
        url = source.get("url", "")
    else:
        url = f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _tool_results(block: AnthropicBlock) -> Iterator[Message]:
    """Yields a tool message with the text, a user message with images, and one with references."""
    texts: list[str] = []
    images: list[JsonObject] = []
    references: list[JsonObject] = []
    items = block.content or []
    if isinstance(items, str):
        items = [{"type": "text", "text": items}]
    for item in items:
        source = item.get("source")
        name = item.get("tool_name") or item.get("name")
        if item.get("type") == "text":
            texts.append(str(item.get("text", "")))
        elif item.get("type") == "image" and isinstance(source, dict):
            images.append(_image(source))
        elif item.get("type") == "tool_reference" and isinstance(name, str):
            references.append({"type": "tool_reference", "name": name})
    result: Message = {"role": "tool", "tool_call_id": block.tool_use_id or ""}
    yield {**result, "content": "\n".join(texts)}
    if images:
        yield {"role": "user", "content": images}
    if references:
        yield {**result, "content": references}


class ErrorDetail(Struct):
    """Type and message of an error."""

    type: str
    message: str
    details: Mapping[str, str] | UnsetType = UNSET


class ErrorResponse(Struct, tag_field="type", tag="error"):
    """The body of an error."""

    error: ErrorDetail
