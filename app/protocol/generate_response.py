"""What ``POST /inference/v1/generate`` answers: keys in vLLM's order, UNSET is left out.

`Raw` is JSON that is written by itself, for instance in slices.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Raw, Struct, UnsetType

from app.protocol.logprobs import LogprobContent, PromptLogprobs
from app.protocol.transfer import ECTransferParams, KVTransferParams
from app.protocol.usage import Usage


class WeightVersion(Struct):
    """Which weights made the tokens from number `start` up to `end`."""

    version: str
    start: int
    end: int


class GenerateChoice(Struct):
    """One choice: of a whole answer, or what a chunk adds to it."""

    index: int
    finish_reason: str | None
    stop_reason: str | int | None
    token_ids: Sequence[int] | Raw
    routed_experts: None = None
    sampling_mask: None = None
    weight_versions: Sequence[WeightVersion] | None = None
    text: str | Raw | UnsetType = UNSET
    logprobs: LogprobContent | None = None


class GenerateResponse(Struct, kw_only=True):
    """A whole answer. `created` is Unix seconds."""

    request_id: str
    model: str
    created: int
    usage: Usage
    prompt_logprobs: PromptLogprobs | Raw | None = None
    prompt_token_id_logprobs: None = None
    prompt_token_ids: Sequence[int] | Raw | None = None
    mm_placeholders: None = None
    metrics: None = None
    kv_transfer_params: KVTransferParams | None = None
    ec_transfer_params: ECTransferParams | None = None
    output_mode: str
    choices: Sequence[GenerateChoice] | Raw


class GenerateChunk(Struct, kw_only=True):
    """One event of a stream."""

    request_id: str
    usage: Usage | None
    prompt_token_ids: Sequence[int] | None | UnsetType = UNSET
    mm_placeholders: None | UnsetType = UNSET
    metrics: None | UnsetType = UNSET
    output_mode: str
    choices: Sequence[GenerateChoice]
