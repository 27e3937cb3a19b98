"""The fault of a request, and its possible errors (simulator.md 2.2, 11)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from app.serving.http.errors import ApiError
from config.fault_rules import (
    DisconnectRule,
    EmptyRule,
    MalformedChunkRule,
    MissingDoneRule,
    TruncatedJsonRule,
    TruncateRule,
)

Damage = DisconnectRule | TruncateRule | TruncatedJsonRule | MalformedChunkRule | MissingDoneRule | EmptyRule
DAMAGE = (DisconnectRule, TruncateRule, TruncatedJsonRule, MalformedChunkRule, MissingDoneRule, EmptyRule)

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
}
_FAILURES = {
    "rate_limit": (429, "More requests came for {model} than its rate allows; try again later.", None),
    "invalid_api_key": (401, "This API key is not valid.", None),
    "context_length": (
        400,
        "This model's maximum context length is {context} tokens, and the messages have {beyond}.",
        "messages",
    ),
    "server_error": (503, "The server is overloaded or still starting.", None),
    "invalid_request": (400, "The request has no parameter 'model'.", "model"),
    "model_not_found": (404, "There is no model '{model}-nonexistent' here.", "model"),
}
"""Status, message and param of each failure type. Clients recognize a too long prompt by its message."""
BEYOND = 404
"""Excess of a too long prompt in its error message, in tokens."""


class Fault(Struct, frozen=True, kw_only=True):
    """The fault of one request; defaults change nothing."""

    name: str = ""
    """Name in the audit; empty when the fault only adds `headers`."""
    error: ApiError | None = None
    """Sent instead of an answer."""
    headers: Mapping[str, str] = {}
    """Added to the answer."""
    delays: tuple[tuple[int, float], ...] = ()
    """Pairs of token number and the wait before it in seconds, as in an engine request."""
    damage: Damage | None = None

    def named(self, name: str) -> Fault:
        return replace(self, name=name)

    def with_headers(self, headers: Mapping[str, str]) -> Fault:
        return replace(self, headers=headers)


def error_type(status: int) -> str:
    """Returns the error type of an injected status (simulator.md 3.1)."""
    return _TYPES.get(status) or ("InternalServerError" if status >= 500 else "APIConnectionError")


def failure(kind: str, model: str, context: int) -> ApiError:
    """Builds the error of failure type `kind`; `model` is the served model, `context` its tokens."""
    status, message, param = _FAILURES[kind]
    text = message.format(model=model, context=context, beyond=context + BEYOND)
    return ApiError(status, error_type(status), text, param)
