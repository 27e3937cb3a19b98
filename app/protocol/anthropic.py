"""The bodies of ``POST /v1/messages`` and ``POST /v1/messages/count_tokens`` (vllm-api.md section 7)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from app.clock.pause import Slices
from app.http.errors import malformed
from app.protocol.coercion import JsonObject, Misfit
from app.protocol.decoding import Request
from app.protocol.options import MAX_STOP_STRINGS, CacheSalt, ExtraArg, Int64

MIN_THINKING_TOKENS = 1024

Name = Annotated[str, Meta(min_length=1)]


class Block(Struct, kw_only=True):
    """One content block; which fields count depends on its type, and all others are ignored."""

    type: Literal[
        "text", "image", "tool_use", "tool_result", "tool_reference", "thinking", "redacted_thinking"
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


class MessageParam(Struct, kw_only=True):
    """One turn of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class ToolParam(Struct, kw_only=True):
    """A tool that may be used; a schema without a type is one of an object."""

    name: str
    description: str | None = None
    input_schema: JsonObject
    strict: bool | None = None
    defer_loading: bool | None = None

    def __post_init__(self) -> None:
        self.input_schema.setdefault("type", "object")


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


class Thinking(Struct, kw_only=True):
    """Whether the model thinks aloud: `enabled` with a budget of tokens, `disabled`, or as it likes."""

    type: str = ""
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted", "updates"] | None = None

    def __post_init__(self) -> None:
        if self.type not in ("enabled", "disabled", "adaptive"):
            raise Misfit("type to be enabled, disabled or adaptive")
        if self.type == "enabled" and (self.budget_tokens or 0) < MIN_THINKING_TOKENS:
            # Between the two steps clients see which of the three forms was tried.
            raise Misfit(f"at least {MIN_THINKING_TOKENS}", "enabled", "budget_tokens")


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
    cache_salt: CacheSalt | None = None
    kv_transfer_params: JsonObject | None = None
    ec_transfer_params: JsonObject | None = None
    vllm_xargs: dict[str, ExtraArg] | None = None
    chat_template_kwargs: JsonObject | None = None
    priority: Int64 = 0
    """Not vLLM's; what the other generating endpoints have."""

    def check(self, within: Slices) -> None:
        self.check_converted(within)

    def check_converted(self, within: Slices) -> None:
        thinking = self.thinking
        if thinking is None or thinking.type != "enabled" or thinking.budget_tokens is None:
            return
        if thinking.budget_tokens >= self.max_tokens:
            raise malformed("body: thinking.budget_tokens must be less than max_tokens", "body")


class CountTokensRequest(Request, kw_only=True):
    """A conversation whose prompt is to be counted."""

    model: Name
    messages: list[MessageParam]
    system: str | list[Block] | None = None
    tool_choice: ToolChoiceParam | None = None
    tools: list[ToolParam] | None = None
    chat_template_kwargs: JsonObject | None = None
