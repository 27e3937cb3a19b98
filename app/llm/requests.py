"""What goes into the engine and what comes out: plain structs, fit to cross to another process."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

from msgspec import Struct

from app.engine.wire import EndReason, WireLogprob
from app.llm.sampling_params import SamplingParams

FinishReason: TypeAlias = EndReason
TokenLogprobs: TypeAlias = WireLogprob


class Priority(IntEnum):
    """The seed's names; the numbers are vLLM's, of which the lower comes first."""

    URGENT = -2
    HIGH = -1
    NORMAL = 0
    LOW = 1


class EngineRequest(Struct, frozen=True, kw_only=True):
    """A prompt and how to go on from it."""

    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    priority: int = Priority.NORMAL
    cache_salt: str | None = None
    max_wait_s: float | None = None
    """How long it may wait for its first step."""


class EngineOutput(Struct, kw_only=True, omit_defaults=True):
    """What a step adds to one choice of a request."""

    request_id: str
    index: int = 0
    """Of the choice, where n is more than 1."""
    token_ids: list[int]
    text: str = ""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop string or token that ended it."""
    error: str | None = None
    is_refused: bool = False
    """With `error`: what the request asks for is at fault."""
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """With the first token; of the first token of a prompt nothing is known."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    first: bool = False
    """Nothing came before it."""
    scheduled_s: float | None = None
    """When it began to be computed."""
    preemptions: int = 0
    """How often it lost its blocks."""
