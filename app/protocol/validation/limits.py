"""The later rules: what a served model can do for a request that is well-formed (vllm-api.md section 4).

All of them run before the answer begins, so their errors have a status even for a stream. What is looked at
later is in `app.protocol.validation.model`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from app.http.errors import bad_request
from app.protocol.chat import ChatCompletionRequest
from app.protocol.completions import CompletionRequest
from app.protocol.options import INT64_MIN, StructuredOutputs

MAX_CHOICES = 16384
GREEDY_BELOW = 1e-5
_UINT64_END = 2**64

GenerateRequest = ChatCompletionRequest | CompletionRequest


def requested_max_tokens(request: GenerateRequest) -> tuple[int | None, str]:
    """How many tokens the client allows, if it says so, and in which field."""
    if isinstance(request, ChatCompletionRequest) and request.max_completion_tokens is not None:
        return request.max_completion_tokens, "max_completion_tokens"
    return request.max_tokens, "max_tokens"


def check_lengths(request: GenerateRequest, max_model_len: int) -> None:
    """Neither the wanted output nor the wanted truncation is longer than the context. Raises `ApiError`."""
    wanted, name = requested_max_tokens(request)
    for value, param in ((wanted, name), (request.truncate_prompt_tokens, "truncate_prompt_tokens")):
        if value is not None and value > max_model_len:
            raise bad_request(f"{param}={value} is more than the context of {max_model_len} tokens", param)


def check_prompt_text(text: str, max_model_len: int, max_chars_per_token: int) -> None:
    """A text that cannot fit even if every token were the longest one is not tokenized. Raises `ApiError`."""
    if len(text) > max_model_len * max_chars_per_token:
        raise bad_request(
            f"a prompt of {len(text)} characters cannot fit the context of {max_model_len} tokens",
            "input_text",
        )


def check_prompt_length(prompt_tokens: int, max_model_len: int) -> None:
    """The (truncated) prompt fits the context, output aside. Raises `ApiError`."""
    if prompt_tokens > max_model_len:
        raise bad_request(
            f"the prompt has {prompt_tokens} tokens, the context only {max_model_len}", "input_tokens"
        )


def truncate_prompt(token_ids: Sequence[int], request: GenerateRequest, max_model_len: int) -> Sequence[int]:
    """The part of the prompt that `truncate_prompt_tokens` keeps: its begin, or its end with side "left".

    -1 keeps what fits the context, less one token of room when an output length was asked for.
    """
    keep = request.truncate_prompt_tokens
    if keep is None:
        return token_ids
    if keep < 0:
        keep = max_model_len - 1 if requested_max_tokens(request)[0] else max_model_len
    if keep >= len(token_ids):
        return token_ids
    return token_ids[len(token_ids) - keep :] if request.truncation_side == "left" else token_ids[:keep]


def resolve_max_tokens(
    requested: int | None, prompt_tokens: int, max_model_len: int, default: int | None = None
) -> int:
    """Tokens that may be generated: never more than fit behind the prompt, which is no error.

    `default` is the model's own limit for requests that name none. 0 means that the prompt fills the context;
    `check_sampling` refuses that.
    """
    wanted = default if requested is None else requested
    room = max_model_len - prompt_tokens
    return room if wanted is None else min(room, wanted)


def check_sampling(request: GenerateRequest, max_tokens: int) -> None:
    """Sampling parameters against each other, in vLLM's order; `max_tokens` is the resolved one.

    Raises `ApiError`.
    """
    constrained_outputs(request)
    _check_logit_bias_keys(request.logit_bias)
    check_choices(request)
    if request.use_beam_search:
        return
    _check_extra_arguments(request)
    _check_penalties(request)
    _check_distribution(request)
    _check_token_counts(request, max_tokens)
    _check_words(request)
    n = 1 if request.n is None else request.n
    if n > 1 and request.temperature is not None and 0 <= request.temperature < GREEDY_BELOW:
        raise bad_request(f"n must be 1 with greedy sampling, got {n}")


def check_choices(request: GenerateRequest) -> None:
    """The number of choices is one that may be thought of at all. Raises `ApiError`."""
    n = 1 if request.n is None else request.n
    if n < 1:
        raise bad_request(f"n must be at least 1, got {n}")
    if n > MAX_CHOICES:
        raise bad_request(f"n must be at most {MAX_CHOICES}, got {n}")


def constrained_outputs(request: GenerateRequest) -> StructuredOutputs | None:
    """What `structured_outputs` and `response_format` ask for together. Raises `ApiError` on conflict."""
    wanted, form = request.structured_outputs, request.response_format
    if form is None or form.type == "text":
        return wanted
    fields = {name: getattr(wanted, name) for name in StructuredOutputs.__struct_fields__} if wanted else {}
    if form.type == "json_object":
        fields["json_object"] = True
    elif form.type == "json_schema":
        fields["json"] = form.json_schema.json_schema if form.json_schema else None
    else:
        fields["structural_tag"] = "{}"
    return StructuredOutputs(**fields)


def _check_logit_bias_keys(logit_bias: dict[str, float] | None) -> None:
    for key in logit_bias or ():
        try:
            int(key)
        except ValueError:
            raise bad_request(f"logit_bias takes token ids as keys, got {key[:40]!r}", "logit_bias") from None


def _check_extra_arguments(request: GenerateRequest) -> None:
    pending: list[Any] = [request.vllm_xargs, request.kv_transfer_params, request.ec_transfer_params]
    while pending:
        value = pending.pop()
        if isinstance(value, int) and not INT64_MIN <= value < _UINT64_END:
            raise bad_request("integers of extra arguments must fit 64 bits", "extra_args")
        if isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)


def _check_penalties(request: GenerateRequest) -> None:
    for name in ("presence_penalty", "frequency_penalty"):
        value = getattr(request, name)
        if value is not None and not -2 <= value <= 2:
            raise bad_request(f"{name} must be in [-2, 2], got {value}")
    repetition = request.repetition_penalty
    if repetition is not None and not 0 < repetition < math.inf:
        raise bad_request(f"repetition_penalty must be a finite number above 0, got {repetition}")


def _check_distribution(request: GenerateRequest) -> None:
    if request.temperature is not None and not 0 <= request.temperature <= 2:
        raise bad_request(f"temperature must be in [0, 2], got {request.temperature}", "temperature")
    if request.top_p is not None and not 0 < request.top_p <= 1:
        raise bad_request(f"top_p must be in (0, 1], got {request.top_p}", "top_p")
    if request.top_k is not None and request.top_k < -1:
        raise bad_request(f"top_k must be 0 (off) or at least 1, got {request.top_k}")
    if request.min_p is not None and not 0 <= request.min_p <= 1:
        raise bad_request(f"min_p must be in [0, 1], got {request.min_p}")


def _check_token_counts(request: GenerateRequest, max_tokens: int) -> None:
    if request.max_tokens == 0 and isinstance(request, CompletionRequest) and request.echo:
        max_tokens = 1
    if max_tokens < 1:
        raise bad_request(f"max_tokens must be at least 1, got {max_tokens}", "max_tokens")
    if request.min_tokens < 0:
        raise bad_request(f"min_tokens must be at least 0, got {request.min_tokens}")
    if request.min_tokens > max_tokens:
        raise bad_request(f"min_tokens={request.min_tokens} is more than max_tokens={max_tokens}")


def _check_words(request: GenerateRequest) -> None:
    if request.stop == "" or isinstance(request.stop, list) and "" in request.stop:
        raise bad_request("stop must not contain an empty string")
    if "" in request.bad_words:
        raise bad_request("bad_words must not contain an empty string")
