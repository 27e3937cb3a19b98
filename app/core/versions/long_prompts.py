"""Errors of prompts that leave too little room for their replies, as older releases word them.

Each release takes the numbers from the words of the next newer one.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from app.core.protocol.completions import DEFAULT_MAX_TOKENS
from app.core.server.http.errors import ApiError, bad_request

LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""Fields of requests that limit the reply."""
FORMS = (
    re.compile(
        r"This model's maximum context length is (?P<context>\d+) tokens\. However, you requested "
        r"(?P<limit>\d+) output tokens and your prompt contains (?:at least )?(?P<tokens>\d+) "
    ),
    re.compile(
        r"You passed (?P<tokens>\d+) input tokens and requested (?P<limit>\d+) output tokens\. "
        r"However, the model's context length is only (?P<context>\d+) "
    ),
)
"""Words of vLLM 0.18 to 0.31, and of 0.16 and 0.17."""
ENDS = ("reduce the length of the input messages.", "'max_completion_tokens' is too large: ")
"""Parts of the words of conversations up to vLLM 0.15."""


class Lengths(Struct, frozen=True):
    """Numbers of tokens in an error."""

    context: int
    limit: int
    """The request's limit for the reply."""
    tokens: int
    """Tokens of the prompt, or the least number that leaves no room."""

    @property
    def room(self) -> int:
        """Tokens that the limit leaves to the prompt, which can be negative."""
        return self.context - self.limit


def lengths_of(error: ApiError) -> Lengths | None:
    """Returns the numbers of such an error; None for another one."""
    for form in FORMS:
        match = form.match(error.message)
        if match is not None:
            return Lengths(int(match["context"]), int(match["limit"]), int(match["tokens"]))
    return None


def exceed_at_least(context: int, limit: int, tokens: int) -> ApiError:
    """Returns the error of a release that reads no more tokens than show that they are too many."""
    return exceed(context, limit, tokens=context - limit + 1, qualifier="at least ")


def exceed(context: int, limit: int, tokens: int, qualifier: str = "") -> ApiError:
    """Returns the error of vLLM 0.18 to 0.31."""
    return bad_request(
        f"This model's maximum context length is {context} tokens. However, you requested {limit} "
        f"output tokens and your prompt contains {qualifier}{tokens} input tokens, for a total of "
        f"{qualifier}{tokens + limit} tokens. Please reduce the length of the input prompt or the "
        "number of requested output tokens.",
        "input_tokens",
        tokens,
    )


def limit_of(request: Any) -> int:
    """Returns the limit of tokens in a decoded request."""
    for name in LIMITS:
        if isinstance(request.get(name), int):
            return int(request[name])
    return DEFAULT_MAX_TOKENS if "prompt" in request else 0


def with_words(error: ApiError, words: ApiError) -> ApiError:
    """Returns an error with the words of another release."""
    return ApiError(error.status, error.type, words.message, words.param)


def fail_with_cause(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of a prompt that is too long, which ends with the cause, Python's None."""
    if not any(end in error.message for end in ENDS):
        return None
    return ApiError(error.status, error.type, f"{error.message} None")
