"""A model that computes: how it is to choose its tokens, how it thinks, and what it cannot be asked for."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from app.api.forms import ThoughtTokens
from app.engine.wire import Sampling
from app.http.errors import bad_request
from app.protocol.plain import PlainRequest
from app.protocol.validation.sampling import GenerationRequest


class SamplingDefaults(Struct, frozen=True, kw_only=True):
    """What holds where a request says nothing: vLLM takes it from the model's generation_config.json."""

    temperature: Annotated[float, Meta(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Meta(ge=-1)] = 0
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0)] = 1.0
    max_new_tokens: Annotated[int, Meta(ge=1)] | None = None
    """Of any reply, whatever is asked for."""

    def of(self, request: GenerationRequest) -> Sampling:
        """A request that is validated."""
        allowed, bias = request.allowed_token_ids, request.logit_bias
        return Sampling(
            temperature=_or(request.temperature, self.temperature),
            top_p=_or(request.top_p, self.top_p),
            top_k=max(0, self.top_k if request.top_k is None else request.top_k),
            min_p=_or(request.min_p, self.min_p),
            repetition_penalty=_or(request.repetition_penalty, self.repetition_penalty),
            presence_penalty=_or(request.presence_penalty, 0.0),
            frequency_penalty=_or(request.frequency_penalty, 0.0),
            logit_bias={int(token): value for token, value in bias.items()} if bias else {},
            allowed_token_ids=None if allowed is None else tuple(allowed),
            bad_words=tuple(request.bad_words),
            skip_special_tokens=request.skip_special_tokens,
        )

    def of_plain(self, request: PlainRequest) -> Sampling:
        """One of the fast path."""
        return Sampling(
            temperature=_or(request.temperature, self.temperature),
            top_p=_or(request.top_p, self.top_p),
            top_k=max(0, self.top_k),
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=_or(request.presence_penalty, 0.0),
            frequency_penalty=_or(request.frequency_penalty, 0.0),
        )


class RealModel(Struct, frozen=True, kw_only=True):
    """What the API has to know of the model."""

    defaults: SamplingDefaults = SamplingDefaults()
    thoughts: ThoughtTokens | None = None
    """Where it can think before it writes a text of a form."""


def check_real(request: GenerationRequest) -> None:
    """ApiError 400 for what only a simulation plays, or only vLLM's own engine does."""
    transfer = request.kv_transfer_params or {}
    asked = {
        "use_beam_search": request.use_beam_search,
        "kv_transfer_params": transfer.get("do_remote_prefill") or transfer.get("do_remote_decode"),
        "cache_hit_threshold": request.cache_hit_threshold,
        "repetition_detection": request.repetition_detection,
        "thinking_token_budget": request.thinking_token_budget,
        "logprob_token_ids": request.logprob_token_ids,
    }
    for name, value in asked.items():
        if value:
            raise bad_request(f"The engine of this server does not support {name}.", name)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
