"""What ``POST /v1/messages`` answers (vllm-api.md section 7): keys in vLLM's order, UNSET is left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import UNSET, Struct, UnsetType

from app.protocol.common import ECTransferParams, KVTransferParams


class TextBlock(Struct, tag_field="type", tag="text"):
    """What is said."""

    text: str


class ThinkingBlock(Struct, tag_field="type", tag="thinking"):
    """What is thought."""

    thinking: str
    signature: str | UnsetType = UNSET
    """UNSET at the begin of a stream's block."""


class ToolUseBlock(Struct, tag_field="type", tag="tool_use"):
    """A tool that is called; `input` is an object."""

    id: str
    name: str
    input: Mapping[str, object]


ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock


class MessageUsage(Struct):
    """Tokens; those of the prompt are apart when the server tells where they came from."""

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int | UnsetType = UNSET
    cache_read_input_tokens: int | UnsetType = UNSET


class MessageResponse(Struct, kw_only=True):
    """A message: whole, or as a stream begins with it."""

    id: str
    type: str = "message"
    role: str = "assistant"
    content: Sequence[ContentBlock]
    model: str
    stop_reason: str | None | UnsetType = UNSET
    stop_sequence: str | None | UnsetType = UNSET
    usage: MessageUsage
    kv_transfer_params: KVTransferParams | UnsetType = UNSET
    ec_transfer_params: ECTransferParams | UnsetType = UNSET


class StopDelta(Struct):
    """Why a message ended, and the stop sequence that was met."""

    stop_reason: str | None
    stop_sequence: str | None


class ErrorDetail(Struct):
    """What an error is called, and what it says."""

    type: str
    message: str
    details: dict[str, str] | UnsetType = UNSET


class ErrorResponse(Struct, tag_field="type", tag="error"):
    """An error, as a body or as an event."""

    error: ErrorDetail
