"""What ``POST /v1/messages`` answers (vllm-api.md section 7): keys in vLLM's order, UNSET is left out.

`Raw` is JSON that is written by itself, in parts where it is long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import UNSET, Raw, Struct, UnsetType

from app.protocol.common import ECTransferParams, KVTransferParams


class TextBlock(Struct, tag_field="type", tag="text"):
    """What is said."""

    text: str | Raw


class ThinkingBlock(Struct, tag_field="type", tag="thinking"):
    """What is thought."""

    thinking: str | Raw
    signature: str | UnsetType = UNSET
    """UNSET at the begin of a stream's block, which a `SignatureDelta` ends."""


class ToolUseBlock(Struct, tag_field="type", tag="tool_use"):
    """A tool that is called; `input` is an object."""

    id: str
    name: str
    input: Mapping[str, object] | Raw


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
    content: Sequence[ContentBlock] | Raw
    model: str
    stop_reason: str | None | UnsetType = UNSET
    stop_sequence: str | None | UnsetType = UNSET
    usage: MessageUsage
    kv_transfer_params: KVTransferParams | UnsetType = UNSET
    ec_transfer_params: ECTransferParams | UnsetType = UNSET


class MessageStart(Struct, tag_field="type", tag="message_start"):
    """The event that a stream begins with."""

    message: MessageResponse


class ContentBlockStart(Struct, tag_field="type", tag="content_block_start"):
    """The event of a new block, `index` counted from 0."""

    content_block: ContentBlock
    index: int


class TextDelta(Struct, tag_field="type", tag="text_delta"):
    """More of a text."""

    text: str | Raw


class ThinkingDelta(Struct, tag_field="type", tag="thinking_delta"):
    """More of a thought."""

    thinking: str | Raw


class InputJSONDelta(Struct, tag_field="type", tag="input_json_delta"):
    """More of the input of a tool: a piece of JSON, as text."""

    partial_json: str | Raw


class SignatureDelta(Struct, tag_field="type", tag="signature_delta"):
    """What ends a thought."""

    signature: str


class ContentBlockDelta(Struct, tag_field="type", tag="content_block_delta"):
    """The event of something more in a block."""

    delta: TextDelta | ThinkingDelta | InputJSONDelta | SignatureDelta
    index: int | Raw


class ContentBlockStop(Struct, tag_field="type", tag="content_block_stop"):
    """The event of a block's end."""

    index: int


class StopDelta(Struct):
    """Why a message ended, and the stop sequence that was met."""

    stop_reason: str | None
    stop_sequence: str | None


class MessageDelta(Struct, tag_field="type", tag="message_delta"):
    """The event of a message's end."""

    delta: StopDelta
    usage: MessageUsage


class MessageStop(Struct, tag_field="type", tag="message_stop"):
    """The last event of a stream."""


class ErrorDetail(Struct):
    """What an error is called, and what it says."""

    type: str
    message: str
    details: dict[str, str] | UnsetType = UNSET


class ErrorResponse(Struct, tag_field="type", tag="error"):
    """An error, as a body or as an event."""

    error: ErrorDetail
