"""Requests of Cohere's Chat API, and their conversion to chats.

See https://docs.cohere.com/reference/chat and vLLM's translation.
"""

import json
from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

import msgspec
from msgspec import Struct

from app.core.base.clock.pause import Slices
from app.core.protocol import options
from app.core.protocol.chat import ChatCompletionRequest, Message
from app.core.protocol.coercion import ConversionError, JsonObject, LaxFields
from app.core.protocol.convert import convert_value
from app.core.protocol.decoding import RawRequest, Request
from app.core.server.http.errors import bad_request

SCHEMA_NAME = "cohere_v2_json_schema"
TEMPLATE_FIELDS = ("citation_options", "thinking")
"""Fields that a chat template gets as they are."""


class ContentBlock(Struct, kw_only=True):
    """A part of a message."""

    type: Literal["text", "image_url", "thinking", "document"]
    text: str = ""
    thinking: str = ""
    image_url: JsonObject | None = None
    document: JsonObject | None = None


class CalledFunction(Struct, kw_only=True):
    """Name of a called function, and its arguments as JSON."""

    name: str | None = None
    arguments: str | None = None


class ToolCall(Struct, kw_only=True):
    """A tool call of an earlier reply."""

    id: str = ""
    function: CalledFunction = msgspec.field(default_factory=CalledFunction)


class ChatMessage(Struct, kw_only=True):
    """A message of any role; `developer` is `system`, as in vLLM."""

    role: Literal["user", "assistant", "system", "developer", "tool"]
    content: str | list[ContentBlock] | None = None
    tool_plan: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str = ""

    def __post_init__(self) -> None:
        if self.content is None and self.role != "assistant":
            raise ConversionError("a content", "content", kind="missing")

    @property
    def blocks(self) -> Sequence[ContentBlock]:
        """The content as blocks."""
        if isinstance(self.content, str):
            return [ContentBlock(type="text", text=self.content)]
        return self.content or ()


class ToolFunction(Struct, kw_only=True):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: JsonObject | None = None


class ChatTool(Struct, kw_only=True):
    """A tool for the model."""

    function: ToolFunction
    type: Literal["function"] = "function"


class Format(Struct, kw_only=True):
    """The required form of the answer."""

    type: Literal["text", "json_object"]
    json_schema: JsonObject | None = None


def convert_documents(value: object) -> list[str | JsonObject] | None:
    """Converts texts and objects, or raises `ConversionError`."""
    documents: list[str | JsonObject] | None
    try:  # at once: one by one, 100,000 documents would take half a second
        documents = msgspec.convert(value, list[str | JsonObject] | None)
    except (msgspec.ValidationError, UnicodeEncodeError):
        documents = convert_value(list[str | JsonObject] | None, value)
    return documents


class CohereChatRequest(Request, kw_only=True):
    """The body of ``POST /cohere/v2/chat``."""

    model: str
    messages: list[ChatMessage]
    stream: bool | None = False
    tools: list[ChatTool] | None = None
    strict_tools: bool | None = None
    tool_choice: Literal["REQUIRED", "NONE"] | None = None
    documents: list[str | JsonObject] | None = None
    citation_options: JsonObject | None = None
    response_format: Format | None = None
    safety_mode: str | None = None
    max_tokens: int | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    seed: options.Int64 | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    k: int | None = None
    p: float | None = None
    logprobs: bool | None = None
    thinking: JsonObject | None = None
    priority: options.Int64 | None = None
    kv_transfer_params: JsonObject | None = None
    chat_template_kwargs: JsonObject | None = None

    lax_fields: ClassVar[LaxFields] = {
        "documents": convert_documents,
        "citation_options": JsonObject | None,
        "thinking": JsonObject | None,
    }

    def check_rules(self: "CohereChatRequest | RawRequest") -> None:
        """Requires a model, a message, and no negative number of tokens."""
        if self.model == "":
            raise bad_request("model is required", "model")
        if self.messages == []:
            raise bad_request("messages must contain at least one message", "messages")
        if isinstance(self.max_tokens, int) and self.max_tokens < 0:
            raise bad_request("max_tokens must be non-negative", "max_tokens")

    def as_chat(self) -> ChatCompletionRequest:
        """Returns the chat that vLLM makes of the request.

        Raises:
            ApiError: Status 400 when the chat's rules forbid it.
        """
        chat = ChatCompletionRequest(
            model=self.model,
            messages=_messages(self.messages),
            max_tokens=self.max_tokens,
            max_completion_tokens=self.max_tokens,
            stop=self.stop_sequences,
            temperature=self.temperature,
            top_p=self.p,
            top_k=self.k,
            seed=self.seed,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            logprobs=self.logprobs,
            return_token_ids=self.logprobs,
            priority=self.priority or 0,
            kv_transfer_params=self.kv_transfer_params,
            tools=self._tools(),
            response_format=self._response_format(),
        )
        if self.stream:
            chat.stream = True
            chat.stream_options = options.StreamOptions(include_usage=True)
        if self.tool_choice == "REQUIRED":
            chat.tool_choice = "required"
        elif self.tool_choice == "NONE":
            chat.tool_choice = "none"
        chat.chat_template_kwargs = self._template_kwargs() or None
        chat.check_rules()
        return chat

    def _tools(self) -> list[options.Tool] | None:
        tools = []
        slices = Slices()
        for tool in self.tools or ():
            slices.spend()
            function = options.FunctionDefinition(
                name=tool.function.name,
                description=tool.function.description,
                parameters=tool.function.parameters,
                strict=self.strict_tools or None,
            )
            tools.append(options.Tool(function=function))
        return tools or None

    def _response_format(self) -> options.ResponseFormat | None:
        form = self.response_format
        if form is None or form.type == "text":
            return None
        if not form.json_schema:
            return options.ResponseFormat(type="json_object")
        schema = options.JsonSchema(name=SCHEMA_NAME, json_schema=form.json_schema)
        return options.ResponseFormat(type="json_schema", json_schema=schema)

    def _template_kwargs(self) -> JsonObject:
        """Returns the variables of the chat template, which Cohere's fields add to."""
        kwargs: JsonObject = {}
        if self.documents:
            kwargs["documents"] = [
                _document(number, document) for number, document in enumerate(self.documents)
            ]
        if self.safety_mode is not None:
            kwargs["safety_mode"] = self.safety_mode.lower()
        for name in TEMPLATE_FIELDS:
            value = getattr(self, name)
            if value is not None:
                kwargs[name] = value
        return kwargs | (self.chat_template_kwargs or {})


def _document(number: int, document: str | JsonObject) -> JsonObject:
    if isinstance(document, str):
        document = {"data": document}
    data = document.get("data")
    if not isinstance(data, dict):
        data = {"text": data}
    return {"id": document.get("id") or f"doc_{number}", "data": data}


def _messages(messages: Iterable[ChatMessage]) -> list[Message]:
    converted: list[Message] = []
    slices = Slices()
    for message in messages:
        converted.append(_message(message))
        slices.spend()
    return converted


def _message(message: ChatMessage) -> Message:
    """Converts a message; thoughts and the plan of calls become its reasoning."""
    if message.role == "assistant":
        return _assistant_message(message)
    if message.role in ("system", "developer"):
        text = "".join(block.text for block in message.blocks)
        return {"role": "system", "content": text}
    content: str | list[JsonObject] = [_part(block) for block in message.blocks]
    if isinstance(message.content, str):
        content = message.content
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": content}
    blocks = message.blocks
    if len(blocks) == 1 and blocks[0].type == "text":
        content = blocks[0].text
    return {"role": "user", "content": content}


def _part(block: ContentBlock) -> JsonObject:
    if block.type == "image_url":
        return {"type": "image_url", "image_url": block.image_url or {}}
    if block.type == "document":
        return {"type": "text", "text": json.dumps(block.document)}
    return {"type": "text", "text": block.text or block.thinking}


def _assistant_message(message: ChatMessage) -> Message:
    turn: Message = {"role": "assistant"}
    texts = [block.text for block in message.blocks if block.type == "text"]
    thoughts = [block.thinking for block in message.blocks if block.type == "thinking"]
    if message.tool_plan:
        thoughts.append(message.tool_plan)
    if texts:
        turn["content"] = "".join(texts)
    if thoughts:
        turn["reasoning"] = "".join(thoughts)
    if message.tool_calls:
        turn["tool_calls"] = [_call(call) for call in message.tool_calls]
    return turn


def _call(call: ToolCall) -> JsonObject:
    function = {"name": call.function.name or "", "arguments": call.function.arguments or "{}"}
    return {"id": call.id, "type": "function", "function": function}


class CohereError(Struct):
    """The body of an error."""

    message: str
