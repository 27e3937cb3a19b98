"""The bodies of ``POST /v1/messages`` and ``POST /v1/messages/count_tokens`` (vllm-api.md section 7)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta, Struct

from app.http.errors import malformed
from app.protocol.coercion import JsonObject, Misfit, convert_value
from app.protocol.decoding import Request
from app.protocol.options import MAX_STOP_STRINGS, CacheSalt, ExtraArg, Int64

Name = Annotated[str, Meta(min_length=1)]


TOOL_CHANGES = ("tool_addition", "tool_removal")
"""Types of blocks that change the tools; only system turns may have them."""


class ToolParam(Struct, kw_only=True):
    """A tool that may be used; a schema without a type is one of an object."""

    name: str
    description: str | None = None
    input_schema: JsonObject
    strict: bool | None = None
    defer_loading: bool | None = None

    def __post_init__(self) -> None:
        self.input_schema.setdefault("type", "object")


class ToolReference(Struct, tag_field="type", tag="tool_reference"):
    """A tool that the request declares."""

    name: str


class ToolDefinition(Struct, tag_field="type", tag="tool_definition"):
    """A tool that a turn declares."""

    definition: ToolParam


class Block(Struct, kw_only=True):
    """One content block; which fields count depends on its type, and all others are ignored."""

    type: Literal[
        "text",
        "image",
        "tool_use",
        "tool_result",
        "tool_reference",
        "thinking",
        "redacted_thinking",
        "tool_addition",
        "tool_removal",
    ]
    text: str | None = None
    source: JsonObject | None = None
    """Of an image: its URL, or its bytes in base64."""
    id: str | None = None
    tool_use_id: str | None = None
    name: str | None = None
    input: JsonObject | None = None
    content: str | list[JsonObject] | None = None
    """Of a tool result."""
    is_error: bool | None = None
    tool_name: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    tool: ToolReference | ToolDefinition | None = None
    """Of a change of the tools."""

    def __post_init__(self) -> None:
        if self.type not in TOOL_CHANGES:
            return
        if self.tool is None:
            raise Misfit(f"a tool in a block of type {self.type}")
        if self.type == "tool_removal" and isinstance(self.tool, ToolDefinition):
            raise Misfit("the reference of a tool that is removed")


def check_content(content: str | list[Block] | None) -> None:
    """Raises Misfit for blocks that change the tools outside a system turn."""
    for block in content if isinstance(content, list) else ():
        if block.type in TOOL_CHANGES:
            raise Misfit(f'blocks of type {block.type} in messages of role "system" only')


def convert_system(value: object) -> object:
    """Returns the system text or blocks in `value`. Raises `Misfit`."""
    system = convert_value(str | list[Block] | None, value)
    check_content(system)
    return system


class MessageParam(Struct, kw_only=True):
    """One turn of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]

    def __post_init__(self) -> None:
        if self.role != "system":
            check_content(self.content)


class ToolChoiceParam(Struct, kw_only=True):
    """Whether a tool is used: if the model likes (auto), one of them (any), the one named (tool), none."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    def __post_init__(self) -> None:
        if self.type == "tool" and not self.name:
            raise Misfit("the name of a tool")


class OutputFormat(Struct, kw_only=True):
    """JSON of a schema; ``schema`` on the wire is `json_schema` here."""

    json_schema: JsonObject | None = msgspec.field(default=None, name="schema")
    type: Literal["json_schema"] = "json_schema"


class OutputConfig(Struct, kw_only=True):
    """How much effort the reply may take, and what form it has."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


Display = Literal["summarized", "omitted", "updates"]


class ThinkingEnabled(Struct, tag_field="type", tag="enabled"):
    """The model thinks aloud, for `budget_tokens` at the most; `display` changes nothing."""

    budget_tokens: Annotated[int, Meta(ge=1024)]
    display: Display | None = None


class ThinkingDisabled(Struct, tag_field="type", tag="disabled"):
    """The model does not think, or as little as its chat template can say."""


class ThinkingAdaptive(Struct, tag_field="type", tag="adaptive"):
    """The model thinks as it likes."""

    display: Display | None = None


Thinking = ThinkingEnabled | ThinkingDisabled | ThinkingAdaptive


class ThreadCreate(Struct, tag_field="type", tag="create"):
    """The server is to keep the conversation."""


class ThreadContinue(Struct, tag_field="type", tag="continue"):
    """The messages follow on the reply of this id."""

    previous_message_id: str


class MessagesRequest(Request, kw_only=True):
    """Every field that vLLM knows; `max_tokens` counts thoughts and reply together."""

    model: Name
    messages: list[MessageParam]
    max_tokens: Annotated[int, Meta(ge=1)]
    metadata: JsonObject | None = None
    output_config: OutputConfig | None = None
    thinking: Thinking | None = None
    stop_sequences: Annotated[list[str], Meta(max_length=MAX_STOP_STRINGS)] | None = None
    stream: bool | None = False
    system: str | list[Block] | None = None
    temperature: float | None = None
    tool_choice: ToolChoiceParam | None = None
    tools: list[ToolParam] | None = None
    top_k: int | None = None
    top_p: float | None = None
    mm_payload: Literal["tensors", "none"] = "tensors"
    return_mm_kwargs: bool | None = None
    cache_salt: CacheSalt | None = None
    watermarking: bool | None = None
    kv_transfer_params: JsonObject | None = None
    ec_transfer_params: JsonObject | None = None
    vllm_xargs: dict[str, ExtraArg] | None = None
    chat_template_kwargs: JsonObject | None = None
    priority: Int64 = 0
    """Not vLLM's; what the other generating endpoints have."""
    thread: ThreadCreate | ThreadContinue | None = None
    """Not vLLM's, which answers the new turns alone: the conversation that the server keeps."""

    lax: ClassVar[Mapping[str, Hashable]] = {"system": convert_system}

    def check(self) -> None:
        check_content(self.system)
        self.check_converted()

    def check_converted(self) -> None:
        is_prefill = (self.kv_transfer_params or {}).get("do_remote_decode")
        if is_prefill or not isinstance(self.thinking, ThinkingEnabled):
            return
        if self.thinking.budget_tokens >= self.max_tokens:
            raise malformed("body: thinking.budget_tokens must be less than max_tokens", "body")


class CountTokensRequest(Request, kw_only=True):
    """A conversation whose prompt is to be counted."""

    model: Name
    messages: list[MessageParam]
    output_config: OutputConfig | None = None
    system: str | list[Block] | None = None
    thinking: Thinking | None = None
    tool_choice: ToolChoiceParam | None = None
    tools: list[ToolParam] | None = None
    chat_template_kwargs: JsonObject | None = None

    lax: ClassVar[Mapping[str, Hashable]] = {"system": convert_system}

    def check(self) -> None:
        check_content(self.system)
