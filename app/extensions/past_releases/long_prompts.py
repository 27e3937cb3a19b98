"""Errors of prompts that leave too little room for their replies, as older releases word them."""

from __future__ import annotations

from typing import Any

from app.core.protocol.completions import DEFAULT_MAX_TOKENS
from app.core.server.http.errors import ApiError, bad_request

LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""Fields of requests that limit the reply."""


class LongPromptError(ApiError):
    """Such an error, with its numbers of tokens.

    Attributes:
        context: Tokens of the context.
        limit: The request's limit of tokens for the reply.
        tokens: Tokens of the prompt, or the least number that leaves no room.
    """

    def __init__(self, words: ApiError, *, context: int, limit: int, tokens: int) -> None:
        super().__init__(words.status, words.type, words.message, words.param)
        self.context = context
        self.limit = limit
        self.tokens = tokens


def exceed_at_least(context: int, limit: int, tokens: int) -> ApiError:
    """Returns the error of a release that reads no more tokens than show that they are too many."""
    return exceed(context, limit, tokens=context - limit + 1, qualifier="at least ")


def exceed(context: int, limit: int, tokens: int, qualifier: str = "") -> LongPromptError:
    """Returns the error of vLLM 0.18 to 0.31."""
    words = bad_request(
        f"This model's maximum context length is {context} tokens. However, you requested {limit} "
        f"output tokens and your prompt contains {qualifier}{tokens} input tokens, for a total of "
        f"{qualifier}{tokens + limit} tokens. Please reduce the length of the input prompt or the "
        "number of requested output tokens.",
        "input_tokens",
        tokens,
    )
    return LongPromptError(words, context=context, limit=limit, tokens=tokens)


def limit_of(request: Any) -> int:
    """Returns the limit of tokens in a decoded request."""
    for name in LIMITS:
        if isinstance(request.get(name), int):
            return int(request[name])
    return DEFAULT_MAX_TOKENS if "prompt" in request else 0


def with_words(error: LongPromptError, words: ApiError) -> LongPromptError:
    """Returns an error with the words of another release, and the same numbers."""
    return LongPromptError(words, context=error.context, limit=error.limit, tokens=error.tokens)


def rest_exceeded(error: LongPromptError) -> ApiError:
    """Returns the error of a prompt that exceeds what its limit leaves of the context."""
    return bad_request(
        f"This model's maximum context length is {error.context - error.limit} tokens. However, "
        f"your request has {error.tokens} input tokens. Please reduce the length of the input "
        "messages."
    )


def fail_with_cause(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of a prompt that is too long, which ends with the cause, Python's None."""
    if not isinstance(error, LongPromptError):
        return None
    return with_words(error, ApiError(error.status, error.type, f"{error.message} None"))
