"""The fault that was decided for a request, and the errors that it may get (simulator.md 2.2, 11)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from app.http.errors import ApiError, bad_request
from config.fault_rules import (
    DisconnectRule,
    EmptyRule,
    MalformedChunkRule,
    MissingDoneRule,
    TruncatedJsonRule,
    TruncateRule,
)
from config.sections.api import FAILURE_TYPES

Damage = DisconnectRule | TruncateRule | TruncatedJsonRule | MalformedChunkRule | MissingDoneRule | EmptyRule
"""Damage to the bytes of an answer."""
DAMAGE = (DisconnectRule, TruncateRule, TruncatedJsonRule, MalformedChunkRule, MissingDoneRule, EmptyRule)

STATUSES = range(400, 600)
_WHOLE = re.compile(r"[+-]?\d{1,9}", re.ASCII)
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
"""Status, message and param of every failure type. Clients know a prompt that is too long by these words."""
BEYOND = 404
"""Tokens by which a prompt is said to be too long."""


class Fault(Struct, frozen=True, kw_only=True):
    """One request's fault; what is not given goes as usual."""

    name: str = ""
    """The name in the audit; empty when nothing goes wrong, and there are only `headers`."""
    error: ApiError | None = None
    """Sent instead of an answer."""
    headers: Mapping[str, str] = {}
    """Added to the answer."""
    delays: tuple[tuple[int, float], ...] = ()
    """(before token n, seconds), as an engine request has them."""
    damage: Damage | None = None

    def named(self, name: str) -> Fault:
        return replace(self, name=name)

    def with_headers(self, headers: Mapping[str, str]) -> Fault:
        return replace(self, headers=headers)


def error_type(status: int) -> str:
    """The type of an error on purpose, by its status (simulator.md 3.1)."""
    return _TYPES.get(status) or ("InternalServerError" if status >= 500 else "APIConnectionError")


def failure(kind: str, model: str, context: int) -> ApiError:
    """The error of failure type `kind`; `model` is the one that is served, `context` its tokens."""
    status, message, param = _FAILURES[kind]
    text = message.format(model=model, context=context, beyond=context + BEYOND)
    return ApiError(status, error_type(status), text, param)


def draw_failure(rate: int, kinds: Sequence[str], rng: Random) -> str | None:
    """A failure type in `rate` % of all cases: one of `kinds`, or of all when there are none."""
    if rate and rng.randint(1, 100) <= rate:
        return rng.choice(kinds or FAILURE_TYPES)
    return None


def returned_error(asked: str) -> ApiError:
    """The error that a request asks for in X-Return-Error; 400 when that is no status of an error."""
    if not _WHOLE.fullmatch(asked):
        return bad_request(f"X-Return-Error is {asked[:40]!r}, which is not an integer.")
    status = int(asked)
    if status not in STATUSES:
        return bad_request(f"X-Return-Error is {status}; it can be from 400 to 599.")
    return ApiError(status, error_type(status), f"X-Return-Error asked for this status, {status}.")
