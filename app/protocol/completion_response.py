"""What ``POST /v1/completions`` answers (vllm-api.md 3.3, 3.4): keys in vLLM's order, UNSET is left out.

`Raw` is JSON that is written by itself, for instance in slices.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw, Struct

from app.protocol.logprobs import CompletionLogprobs, PromptLogprobs
from app.protocol.transfer import KVTransferParams
from app.protocol.usage import Usage


class CompletionChoice(Struct):
    """One choice of a whole answer."""

    index: int
    text: str | Raw
    logprobs: CompletionLogprobs | None
    finish_reason: str
    stop_reason: str | int | None
    token_ids: Sequence[int] | Raw | None
    prompt_logprobs: PromptLogprobs | Raw | None
    prompt_token_ids: Sequence[int] | Raw | None
    routed_experts: None = None


class Completion(Struct, kw_only=True):
    """A whole answer. `created` is Unix seconds."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: Sequence[CompletionChoice] | Raw
    service_tier: None = None
    system_fingerprint: str
    usage: Usage
    kv_transfer_params: KVTransferParams | None = None
    ec_transfer_params: None = None
    metrics: None = None


class CompletionChunkChoice(Struct):
    """The choice that an event of a stream is about."""

    index: int | Raw
    text: str | Raw
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    prompt_token_ids: Sequence[int] | Raw | None = None
    token_ids: Sequence[int] | None = None
