"""What goes into the engine and what comes out, and how both are told to another process."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import asdict

from app.engine.wire import EndReason, EngineCoreOutput, EngineCoreRequest, WireLogprob
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
    created_tokens: int = 0
    """Of the prompt: what was not cached, and is from now on."""
    first: bool = False
    """Nothing came before it."""
    queued_s: float = 0.0
    """When the engine got it."""
    scheduled_s: float | None = None
    """When it began to be computed."""
    preemptions: int = 0
    """How often it lost its blocks."""


def request_of(request_id: str, order: EngineCoreRequest) -> EngineRequest:
    """RequestError for parameters that are out of their ranges."""
    params = SamplingParams(
        **asdict(order.sampling),
        structured_outputs=order.form,
        max_tokens=order.max_tokens,
        min_tokens=order.min_tokens,
        ignore_eos=order.ignore_eos,
        stop=order.stop,
        stop_token_ids=order.stop_token_ids,
        include_stop_str_in_output=order.include_stop,
        seed=order.seed,
        logprobs=order.logprobs,
        prompt_logprobs=order.prompt_logprobs,
    )
    return EngineRequest(
        request_id=request_id,
        prompt_ids=order.prompt_ids,
        params=params,
        priority=order.priority,
        cache_salt=order.cache_salt,
    )


def said_of(key: int, output: EngineOutput, now_s: float) -> EngineCoreOutput:
    """What a step adds to a choice; a step adds one token at most."""
    said = EngineCoreOutput(
        key=key,
        ids=output.token_ids,
        texts=[output.text] if output.token_ids else [],
        at_s=now_s,
        finish=output.finish_reason,
        stop_reason=output.stop_reason,
        error=output.error,
        is_refused=output.is_refused,
    )
    if output.logprobs:
        said.logprobs = output.logprobs
    if output.first and output.scheduled_s is not None:
        said.queued_s, said.scheduled_s = output.queued_s, output.scheduled_s
        said.cached_tokens, said.created_tokens = output.cached_tokens, output.created_tokens
        said.prompt_logprobs = output.prompt_logprobs
    if output.finish_reason is not None:
        said.preemptions = output.preemptions
    return said


def failed(key: int, error: str, now_s: float) -> EngineCoreOutput:
    """A choice that ends without a token more."""
    return EngineCoreOutput(key=key, at_s=now_s, finish="error", error=error)
