"""The response of the Responses family and its items (vllm-api.md section 6).

Keys are in vLLM's order; `Raw` is JSON that is written by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import UNSET, Raw, Struct, UnsetType, field

from app.protocol.common import (
    ECTransferParams,
    ItemLogprob,
    KVTransferParams,
    PerRequestMetrics,
)
from app.protocol.responses import Reasoning


class OutputText(Struct, kw_only=True):
    """What a message says."""

    annotations: tuple[()] = ()
    text: str | Raw
    type: str = "output_text"
    logprobs: Sequence[ItemLogprob] | Raw | None = None


class ReasoningText(Struct, kw_only=True):
    """What a thought says."""

    text: str | Raw
    type: str = "reasoning_text"


class MessageItem(Struct, kw_only=True):
    """A message; without a content when it says nothing."""

    id: str
    content: Sequence[OutputText]
    role: str = "assistant"
    status: str | None
    type: str = "message"
    phase: None = None


class ReasoningItem(Struct, kw_only=True):
    """A thought."""

    id: str
    summary: tuple[()] = ()
    type: str = "reasoning"
    content: Sequence[ReasoningText] | None
    encrypted_content: None = None
    status: str | None


class FunctionCallItem(Struct, kw_only=True):
    """A function that is called; `arguments` is JSON as text."""

    arguments: str | Raw
    call_id: str
    name: str
    type: str = "function_call"
    id: str
    is_async: None = field(default=None, name="async")
    caller: None = None
    namespace: str | None = None
    status: str | None


class CustomCallItem(Struct, kw_only=True):
    """A custom tool that is called; `payload` is a text."""

    call_id: str
    payload: str | Raw = field(name="input")
    name: str
    type: str = "custom_tool_call"
    id: str
    is_async: None = field(default=None, name="async")
    caller: None = None
    namespace: None = None


OutputItem = MessageItem | ReasoningItem | FunctionCallItem | CustomCallItem


class InputTokensDetails(Struct):
    """Where the prompt's tokens came from; a turn is what a server does that calls tools itself."""

    cached_tokens: int
    cache_write_tokens: int
    input_tokens_per_turn: tuple[()] = ()
    cached_tokens_per_turn: tuple[()] = ()


class OutputTokensDetails(Struct):
    """What the reply's tokens were."""

    reasoning_tokens: int
    tool_output_tokens: int = 0
    output_tokens_per_turn: tuple[()] = ()
    tool_output_tokens_per_turn: tuple[()] = ()


class ResponseUsage(Struct):
    """`usage` of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(Struct):
    """Why a response is incomplete."""

    reason: str


class ResponseError(Struct):
    """Why a response has failed."""

    code: str
    message: str


class RawMessage(Struct):
    """Prompt or reply as it looks to the model."""

    message: str | Raw
    tokens: Sequence[int] | Raw
    type: str = "raw_message_tokens"


class ResponseObject(Struct, kw_only=True):
    """A response in one of its states, all its keys in vLLM's order. `created_at` is Unix seconds.

    `status`: `queued`, `in_progress`, `completed`, `incomplete`, `failed` or `cancelled`.
    """

    id: str
    created_at: int
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    metadata: Mapping[str, str] | None
    model: str
    object: str = "response"
    output: Sequence[OutputItem] | Sequence[Raw] | Raw = ()
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
    usage: ResponseUsage | None = None
    user: str | None
    metrics: PerRequestMetrics | UnsetType = UNSET
    presence_penalty: float
    frequency_penalty: float
    kv_transfer_params: KVTransferParams | None = None
    ec_transfer_params: ECTransferParams | None = None
    input_messages: Sequence[RawMessage] | None = None
    output_messages: Sequence[RawMessage] | None = None
    error: ResponseError | UnsetType = UNSET
