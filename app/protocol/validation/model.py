"""The last rules: a request against the model that serves it (vllm-api.md section 4).

vLLM applies them when the engine takes the request. A stream has answered 200 by then and carries the error
as an event; any other answer gets its status.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from app.http.errors import bad_request
from app.protocol.completions import CompletionRequest
from app.protocol.options import StructuredOutputs
from app.protocol.validation.limits import GenerateRequest, constrained_outputs

MAX_LOGPROB_TOKEN_IDS = 128
MAX_BAD_WORDS = 128
MAX_SCHEMA_DEPTH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """What the served model allows: context and vocabulary in tokens, log probabilities a token (-1: all)."""

    max_model_len: int
    vocab_size: int
    max_logprobs: int = 20
    reasons: bool = False
    """The model thinks before it answers."""

    @property
    def logprobs_cap(self) -> int:
        """Log probabilities per token, with "all" spelled out."""
        return self.vocab_size if self.max_logprobs == -1 else self.max_logprobs


def check_engine(request: GenerateRequest, prompt_ids: Sequence[int], limits: ModelLimits) -> None:
    """The request against the model, in vLLM's order; `prompt_ids` are those of one (truncated) prompt.

    Raises `ApiError`; in a stream the error belongs into the stream.
    """
    _check_logprob_counts(request, limits)
    _check_vocabulary("logit_bias", [int(key) for key in request.logit_bias or ()], limits)
    _check_vocabulary("stop_token_ids", request.stop_token_ids or (), limits)
    if request.allowed_token_ids is not None and not request.allowed_token_ids:
        raise bad_request("allowed_token_ids must not be empty", "allowed_token_ids")
    _check_vocabulary("allowed_token_ids", request.allowed_token_ids or (), limits)
    _check_constraint(constrained_outputs(request))
    if request.thinking_token_budget is not None and not limits.reasons:
        raise bad_request("thinking_token_budget needs a reasoning parser")
    _check_prompt(prompt_ids, limits)
    if request.routed_experts_prompt_start > len(prompt_ids):
        raise bad_request("routed_experts_prompt_start lies behind the prompt", "routed_experts_prompt_start")
    if len(set(request.bad_words)) > MAX_BAD_WORDS:
        raise bad_request(f"at most {MAX_BAD_WORDS} bad_words are possible", "bad_words")


def wanted_logprobs(request: GenerateRequest) -> int | None:
    """Alternatives per generated token (-1: all); None when no log probabilities are wanted."""
    if request.logprob_token_ids:
        return None
    if isinstance(request, CompletionRequest):
        return request.logprobs
    return request.top_logprobs if request.logprobs else None


def wanted_prompt_logprobs(request: GenerateRequest) -> int | None:
    """Alternatives per prompt token; echo alone asks for as many as for generated ones."""
    if request.prompt_logprobs is not None or not request.echo:
        return request.prompt_logprobs
    return request.logprobs if isinstance(request, CompletionRequest) else request.top_logprobs


def _check_logprob_counts(request: GenerateRequest, limits: ModelLimits) -> None:
    _check_logprob_count("logprobs", wanted_logprobs(request), limits)
    ids = request.logprob_token_ids or ()
    if len(ids) > MAX_LOGPROB_TOKEN_IDS:
        raise bad_request(
            f"at most {MAX_LOGPROB_TOKEN_IDS} logprob_token_ids are possible, got {len(ids)}",
            "logprob_token_ids",
        )
    _check_vocabulary("logprob_token_ids", ids, limits)
    _check_logprob_count("prompt_logprobs", wanted_prompt_logprobs(request), limits)


def _check_logprob_count(param: str, wanted: int | None, limits: ModelLimits) -> None:
    count = limits.vocab_size if wanted == -1 else wanted or 0
    if count > limits.logprobs_cap:
        raise bad_request(
            f"{count} {param} were asked for, at most {limits.logprobs_cap} are possible", param
        )


def _check_vocabulary(param: str, token_ids: Sequence[int], limits: ModelLimits) -> None:
    wrong = [token_id for token_id in token_ids if not 0 <= token_id < limits.vocab_size]
    if wrong:
        raise bad_request(
            f"{param}: {wrong[:5]} are not in the vocabulary of {limits.vocab_size} tokens", param
        )


def _check_constraint(wanted: StructuredOutputs | None) -> None:
    if wanted is None:
        return
    if wanted.choice == []:
        raise bad_request("structured_outputs.choice must not be empty")
    texts = {"grammar": wanted.grammar, "json": wanted.json, "structural_tag": wanted.structural_tag}
    for name, text in texts.items():
        if isinstance(text, str) and not text.strip():
            raise bad_request(f"structured_outputs.{name} must not be empty")
    if _is_deeper_than(MAX_SCHEMA_DEPTH, wanted.json):
        raise bad_request(f"a JSON schema nests at most {MAX_SCHEMA_DEPTH} levels")
    if wanted.json_object is False:
        raise bad_request("structured_outputs.json_object is true or absent")
    if wanted.regex is not None and "\0" in wanted.regex:
        raise bad_request("structured_outputs.regex must not contain NUL")


def _is_deeper_than(levels: int, value: Any) -> bool:
    layer = [value]
    for _ in range(levels + 1):
        containers = [item for item in layer if isinstance(item, dict | list)]
        if not containers:
            return False
        layer = list(chain.from_iterable(c.values() if isinstance(c, dict) else c for c in containers))
    return True


def _check_prompt(prompt_ids: Sequence[int], limits: ModelLimits) -> None:
    if not prompt_ids:
        raise bad_request("the prompt has no tokens")
    if len(prompt_ids) >= limits.max_model_len:
        raise bad_request(f"{len(prompt_ids)} prompt tokens leave no room in {limits.max_model_len}")
    if min(prompt_ids) < 0 or max(prompt_ids) >= limits.vocab_size:
        raise bad_request("a token id of the prompt is not in the vocabulary")
