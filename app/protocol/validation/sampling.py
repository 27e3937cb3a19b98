"""Sampling parameters against each other (vllm-api.md section 4): what is wrong with them for any model.

These rules run before the answer begins, so their errors have a status even for a stream. All of them raise
`ApiError`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from app.http.errors import bad_request
from app.protocol.chat import ChatCompletionRequest
from app.protocol.coercion import JsonObject
from app.protocol.completions import CompletionRequest
from app.protocol.options import INT64_MIN, ResponseFormat, StopStrings, StructuredOutputs

GenerationRequest = ChatCompletionRequest | CompletionRequest

MAX_CHOICES = 16384
GREEDY_BELOW = 1e-5
_UINT64_END = 2**64


def check_choices(n: int) -> None:
    """The number of choices is one that may be thought of at all."""
    if n < 1:
        raise bad_request(f"n must be at least 1, got {n}")
    if n > MAX_CHOICES:
        raise bad_request(f"n must be at most {MAX_CHOICES}, got {n}")


def constrained_outputs(request: GenerationRequest) -> StructuredOutputs | None:
    """What `structured_outputs` and `response_format` ask for together; they must not be in conflict."""
    wanted, form = request.structured_outputs, request.response_format
    if form is None or form.type == "text":
        return wanted
    fields = {name: getattr(wanted, name) for name in StructuredOutputs.__struct_fields__} if wanted else {}
    if form.type == "json_object":
        fields["json_object"] = True
    elif form.type == "json_schema":
        fields["json"] = form.json_schema.json_schema if form.json_schema else None
    else:
        fields["structural_tag"] = _structural_tag(form)
    return StructuredOutputs(**fields)


def _structural_tag(form: ResponseFormat) -> str:
    """The tag as JSON. ApiError 400 for one that is too deep."""
    tag: JsonObject = {"format": form.format}
    if form.format is None:
        tag = {"structures": form.structures, "triggers": form.triggers}
    try:
        return msgspec.json.encode(tag).decode()
    except RecursionError:
        raise bad_request("response_format is nested too deeply", "response_format") from None


def biased_ids(logit_bias: Mapping[str, float] | None) -> list[int]:
    """The token ids that are the keys of `logit_bias`."""
    ids = []
    for key in logit_bias or ():
        try:
            ids.append(int(key))
        except ValueError:
            raise bad_request(f"logit_bias takes token ids as keys, got {key[:40]!r}", "logit_bias") from None
    return ids


def check_extra_arguments(request: GenerationRequest) -> None:
    """What is passed on has integers of up to 64 bits only, however deep they are."""
    pending: list[object] = [request.vllm_xargs, request.kv_transfer_params, request.ec_transfer_params]
    while pending:
        value = pending.pop()
        if isinstance(value, int) and not INT64_MIN <= value < _UINT64_END:
            raise bad_request("integers of extra arguments must fit 64 bits", "extra_args")
        if isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)


def check_penalties(request: GenerationRequest) -> None:
    """Presence and frequency are in [-2, 2], repetition is a finite number above 0."""
    presence, frequency = request.presence_penalty, request.frequency_penalty
    if presence is not None and not -2 <= presence <= 2:
        raise bad_request(f"presence_penalty must be in [-2, 2], got {presence}")
    if frequency is not None and not -2 <= frequency <= 2:
        raise bad_request(f"frequency_penalty must be in [-2, 2], got {frequency}")
    repetition = request.repetition_penalty
    if repetition is not None and not 0 < repetition < math.inf:
        raise bad_request(f"repetition_penalty must be a finite number above 0, got {repetition}")


def check_distribution(request: GenerationRequest) -> None:
    """Temperature, top-p, top-k and min-p are in their ranges."""
    if request.temperature is not None and not 0 <= request.temperature <= 2:
        raise bad_request(f"temperature must be in [0, 2], got {request.temperature}", "temperature")
    if request.top_p is not None and not 0 < request.top_p <= 1:
        raise bad_request(f"top_p must be in (0, 1], got {request.top_p}", "top_p")
    if request.top_k is not None and request.top_k < -1:
        raise bad_request(f"top_k must be 0 (off) or at least 1, got {request.top_k}")
    if request.min_p is not None and not 0 <= request.min_p <= 1:
        raise bad_request(f"min_p must be in [0, 1], got {request.min_p}")


def check_token_counts(request: GenerationRequest, max_tokens: int) -> None:
    """Some token may be generated, and not fewer than at least wanted; echo alone needs none."""
    if request.max_tokens == 0 and request.echo and isinstance(request, CompletionRequest):
        max_tokens = 1
    if max_tokens < 1:
        raise bad_request(f"max_tokens must be at least 1, got {max_tokens}", "max_tokens")
    if request.min_tokens < 0:
        raise bad_request(f"min_tokens must be at least 0, got {request.min_tokens}")
    if request.min_tokens > max_tokens:
        raise bad_request(f"min_tokens={request.min_tokens} is more than max_tokens={max_tokens}")


def check_words(stop: StopStrings, bad_words: Sequence[str]) -> None:
    """Nothing that ends an answer, or is kept out of it, is an empty string."""
    if stop == "" or isinstance(stop, list) and "" in stop:
        raise bad_request("stop must not contain an empty string")
    if "" in bad_words:
        raise bad_request("bad_words must not contain an empty string")


def check_greedy(n: int, temperature: float | None) -> None:
    """Greedy sampling has one choice."""
    if n > 1 and temperature is not None and 0 <= temperature < GREEDY_BELOW:
        raise bad_request(f"n must be 1 with greedy sampling, got {n}")
