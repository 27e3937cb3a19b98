"""What the wire calls things, and what the engine does."""

from __future__ import annotations

from app.engine.wire import Generate, Said
from app.llm.requests import EngineOutput, EngineRequest
from app.llm.sampling_params import SamplingParams


def request_of(request_id: str, order: Generate) -> EngineRequest:
    """RequestError for parameters that are out of their ranges."""
    sampling = order.sampling
    params = SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=sampling.logit_bias,
        allowed_token_ids=sampling.allowed_token_ids,
        bad_words=sampling.bad_words,
        structured_outputs=order.form,
        skip_special_tokens=sampling.skip_special_tokens,
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


def said_of(key: int, output: EngineOutput, now_s: float) -> Said:
    """What a step adds to a choice; a step adds one token at most."""
    said = Said(
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
        said.scheduled_s, said.cached_tokens = output.scheduled_s, output.cached_tokens
        said.prompt_logprobs = output.prompt_logprobs
    if output.finish_reason is not None:
        said.preemptions = output.preemptions
    return said


def failed(key: int, error: str, now_s: float) -> Said:
    """A choice that ends without a token more."""
    return Said(key=key, at_s=now_s, finish="error", error=error)
