"""What ``POST /v1/chat/completions`` answers (vllm-api.md 3.3, 3.4): keys in vLLM's order, UNSET is left out.

`Raw` is JSON that is written by itself, in parts where it is long.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Raw, Struct, UnsetType

from app.protocol.common import (
    ECTransferParams,
    KVTransferParams,
    LogprobContent,
    PerRequestMetrics,
    PromptLogprobs,
    Usage,
)


class TextBlock(Struct, tag_field="type", tag="text"):
    """Text as a content block."""

    text: str | Raw


class ImageURL(Struct):
    """Where an image is; a data URL perhaps."""

    url: str


class ImageBlock(Struct, tag_field="type", tag="image_url"):
    """An image as a content block."""

    image_url: ImageURL


Content = str | Raw | Sequence[TextBlock | ImageBlock]


class FunctionCall(Struct):
    """Which function is called; `arguments` is JSON as text, in chunks a piece of it."""

    name: str | UnsetType = UNSET
    arguments: str | Raw | UnsetType = UNSET


class ToolCall(Struct):
    """One tool call. `index`, which counts the calls of a choice, is for chunks only."""

    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    index: int | UnsetType = UNSET
    function: FunctionCall | UnsetType = UNSET


class ChatMessage(Struct):
    """The message of a whole choice."""

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

    index: int
    message: ChatMessage
    logprobs: LogprobContent | None
    finish_reason: str
    stop_reason: str | int | None
    token_ids: Sequence[int] | Raw | None
    routed_experts: None = None


class ChatCompletion(Struct, kw_only=True):
    """A whole answer. `created` is Unix seconds."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: Sequence[ChatChoice] | Raw
    service_tier: None = None
    system_fingerprint: str | None
    usage: Usage
    prompt_logprobs: PromptLogprobs | Raw | None = None
    prompt_token_ids: Sequence[int] | Raw | None = None
    prompt_text: str | None = None
    kv_transfer_params: KVTransferParams | None = None
    ec_transfer_params: ECTransferParams | None = None
    metrics: PerRequestMetrics | None = None


class Delta(Struct):
    """What a chunk adds to the message."""

    role: str | UnsetType = UNSET
    content: Content | None | UnsetType = UNSET
    reasoning: str | Raw | UnsetType = UNSET
    tool_calls: Sequence[ToolCall] | UnsetType = UNSET


class ChunkChoice(Struct):
    """The choice that an event of a stream is about."""

    index: int | Raw
    delta: Delta
    logprobs: LogprobContent | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None | UnsetType = UNSET
    token_ids: Sequence[int] | None | UnsetType = UNSET
