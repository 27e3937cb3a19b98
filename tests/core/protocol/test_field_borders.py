"""Limits of fields that depend on another field."""

from typing import Any

from app.core.protocol.validation import ModelLimits, ValidatedRequest
from tests.core.protocol.refused import chat, completion, refused

PROMPT_TOKENS = 16


def check_completion(**fields: Any) -> None:
    limits = ModelLimits(max_model_len=2048, vocab_size=4096)
    ValidatedRequest(completion(**fields), "model", limits).check_sampling([PROMPT_TOKENS])


def test_prompt_logprobs_are_rejected_in_a_stream() -> None:
    error = refused(chat, prompt_logprobs=-1, stream=True)
    assert error == (400, "BadRequestError", "prompt_logprobs")


def test_max_tokens_of_zero_is_allowed_only_if_the_prompt_is_echoed() -> None:
    check_completion(max_tokens=0, echo=True)
    error = refused(check_completion, max_tokens=0)
    assert error == (400, "BadRequestError", "max_tokens")
