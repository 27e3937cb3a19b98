"""``POST /v1/messages`` and ``/count_tokens``: bodies, their chats, and answers (vllm-api.md
section 7).

Answers have their keys in vLLM's order; UNSET fields are omitted.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from app.serving.http.errors import malformed
from app.serving.protocol import options
from app.serving.protocol.chat import ChatCompletionRequest, Message
from app.serving.protocol.coercion import ConversionError, JsonObject
from app.serving.protocol.decoding import Request

Name = Annotated[str, Meta(min_length=1)]


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
        same = {
            name: getattr(self, name) for name in ("name", "description", "strict", "defer_loading")
        }
        return options.FunctionDefinition(**same, parameters=self.input_schema)


class AnthropicBlock(Struct, kw_only=True):
    """One content block; its type decides which fields are used, and all others are ignored."""

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
    role: Literal["user", "assistant", "system"]
    content: str | list[AnthropicBlock]


class ToolChoiceParam(Struct, kw_only=True):
    """The use of tools:

    the model's choice (auto), at least one (any), the named one (tool), or none.
    """

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    def __post_init__(self) -> None:
        if self.type == "tool" and not self.name:
            raise ConversionError("the name of a tool")


class OutputFormat(Struct, kw_only=True):
    """JSON of a schema; ``schema`` on the wire is `json_schema` here."""

    json_schema: JsonObject | None = msgspec.field(default=None, name="schema")
    type: Literal["json_schema"] = "json_schema"


class OutputConfig(Struct, kw_only=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


Display = Literal["summarized", "omitted", "updates"]


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
    """Asks for the conversation to be kept."""


class ThreadContinue(Struct, tag_field="type", tag="continue"):
    """Continues the conversation that was kept with the reply of this id."""

    previous_message_id: str


class MessagesRequest(options.SharedFields, kw_only=True):
    """The body of ``POST /v1/messages``; `max_tokens` covers thoughts and reply together."""

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
    """A beta of Anthropic's SDK; not in vLLM, which sees the new turns alone."""

    def check_converted(self) -> None:
        is_prefill = (self.kv_transfer_params or {}).get("do_remote_decode")
        if is_prefill or not isinstance(self.thinking, ThinkingEnabled):
            return
        if self.thinking.budget_tokens >= self.max_tokens:
            raise malformed("body: thinking.budget_tokens must be less than max_tokens", "body")


class CountTokensRequest(Request, kw_only=True):
    model: Name
    messages: list[MessageParam]
    output_config: OutputConfig | None = None
    system: str | list[AnthropicBlock] | None = None
    thinking: Thinking | None = None
    tool_choice: ToolChoiceParam | None = None
    tools: list[ToolParam] | None = None
    chat_template_kwargs: JsonObject | None = None


BILLING_HEADER = "x-anthropic-billing-header"
"""Start of system texts that are dropped:

they change with each request, and would spoil the prefix cache.
"""


Asked = MessagesRequest | CountTokensRequest


def chat_request(
    asked: Asked, merges_system: Callable[[], bool], disabled_effort: Callable[[], options.Effort]
) -> ChatCompletionRequest:
    """Converts `asked` to a chat request. ApiError 400 when tools or salt break the rules of a
    chat.

    `merges_system`: the chat template requires all system turns first. `disabled_effort`: the
    template's effort without thinking. Each is called only when needed.
    """
    inline = any(message.role == "system" for message in asked.messages)
    choice = asked.tool_choice
    chat = ChatCompletionRequest(
        model=asked.model,
        messages=_messages(asked.system, asked.messages, inline and merges_system()),
        chat_template_kwargs=asked.chat_template_kwargs,
        parallel_tool_calls=choice is None or not choice.disable_parallel_tool_use,
        tools=[options.Tool(function=tool.function()) for tool in asked.tools or ()] or None,
    )
    if chat.tools is None:
        chat.tool_choice = "none"
    elif choice is None or choice.type == "auto":
        chat.tool_choice = "auto"
    elif choice.type == "tool":
        chat.tool_choice = options.NamedToolChoice(
            function=options.NamedFunction(name=choice.name or "")
        )
    else:
        chat.tool_choice = "required" if choice.type == "any" else "none"
    if isinstance(asked, MessagesRequest):
        for name in options.SharedFields.__struct_fields__:
            setattr(chat, name, getattr(asked, name))
        chat.max_tokens = chat.max_completion_tokens = asked.max_tokens
        chat.stop = asked.stop_sequences
    if asked.output_config is not None:
        form, chat.reasoning_effort = asked.output_config.format, asked.output_config.effort
        if form is not None and form.json_schema:
            schema = options.JsonSchema(name=form.type, json_schema=form.json_schema)
            chat.response_format = options.ResponseFormat(type=form.type, json_schema=schema)
    if isinstance(asked.thinking, ThinkingDisabled):
        chat.reasoning_effort = disabled_effort()
    elif isinstance(asked.thinking, ThinkingEnabled):
        chat.thinking_token_budget = asked.thinking.budget_tokens
    chat.check_rules()
    return chat


def _messages(
    system: str | Sequence[AnthropicBlock] | None, messages: Sequence[MessageParam], merges: bool
) -> list[Message]:
    """Returns the conversation; `merges` joins all system turns at the front.

    System turns otherwise keep their places: a turn moved to the front would change the whole
    prompt.
    """
    texts = [system if isinstance(system, str) else _system_text(system or ())]
    if merges:
        turns = (message for message in messages if message.role == "system")
        texts += [_system_text(message.content) for message in turns]
    prompt = "".join(texts)
    chat: list[Message] = [{"role": "system", "content": prompt}] if prompt else []
    for message in messages:
        if message.role != "system" or not merges:
            chat += _turns(message)
    return chat


def _system_text(content: str | Iterable[AnthropicBlock]) -> str:
    blocks = (
        content if not isinstance(content, str) else [AnthropicBlock(type="text", text=content)]
    )
    texts = [block.text for block in blocks if block.type == "text" and block.text]
    return "".join(text for text in texts if not text.startswith(BILLING_HEADER))


def _turns(message: MessageParam) -> Iterator[Message]:
    """Yields the chat messages of one turn: results of tools come before the user's text."""
    if message.role == "system":
        if text := _system_text(message.content):
            yield {"role": "system", "content": text}
        return
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
        return
    if message.role == "user":
        for block in message.content:
            if block.type == "tool_result":
                yield from _tool_results(block)
    said = _said(message.role, message.content)
    if message.role == "assistant" or "content" in said:
        yield said


def _said(role: str, blocks: Sequence[AnthropicBlock]) -> Message:
    """Returns the message of a turn without results of tools; no `content` key when there is none."""
    parts: list[JsonObject] = []
    thoughts: list[str] = []
    calls: list[JsonObject] = []
    for block in blocks:
        if block.type == "text" and block.text:
            parts.append({"type": "text", "text": block.text})
        elif block.type == "image" and block.source:
            parts.append(_image(block.source))
        elif block.type == "tool_result" and role == "assistant":
            parts.append({"type": "text", "text": f"Tool result: {block.content or ''}"})
        elif block.type == "thinking" and block.thinking is not None:
            thoughts.append(block.thinking)
        elif block.type == "tool_use":
            function = {"name": block.name or "", "arguments": json.dumps(block.input or {})}
            calls.append({"id": block.id or "", "type": "function", "function": function})
    said: Message = {"role": role}
    if thoughts:
        said["reasoning"] = "".join(thoughts)
    if calls:
        said["tool_calls"] = calls
    if parts:
        alone = len(parts) == 1 and parts[0]["type"] == "text"
        said["content"] = parts[0]["text"] if alone else parts
    return said


def _image(source: JsonObject) -> JsonObject:
    if source.get("type") == "url":
        url = source.get("url", "")
    else:
        url = f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _tool_results(block: AnthropicBlock) -> Iterator[Message]:
    """Yields a tool message with the result, a user message with images, a tool message with
    references.
    """
    texts, images = [block.content] if isinstance(block.content, str) else [], list[JsonObject]()
    references: list[JsonObject] = []
    for item in block.content if isinstance(block.content, list) else ():
        source, name = item.get("source"), item.get("tool_name") or item.get("name")
        if item.get("type") == "text":
            texts.append(str(item.get("text", "")))
        elif item.get("type") == "image" and isinstance(source, dict):
            images.append(_image(source))
        elif item.get("type") == "tool_reference" and isinstance(name, str):
            references.append({"type": "tool_reference", "name": name})
    answer: Message = {"role": "tool", "tool_call_id": block.tool_use_id or ""}
    yield {**answer, "content": "\n".join(texts)}
    if images:
        yield {"role": "user", "content": images}
    if references:
        yield {**answer, "content": references}


class ErrorDetail(Struct):
    type: str
    message: str
    details: Mapping[str, str] | UnsetType = UNSET


class ErrorResponse(Struct, tag_field="type", tag="error"):
    error: ErrorDetail
