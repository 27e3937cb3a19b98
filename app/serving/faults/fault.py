"""The fault of a request: its errors (simulator.md 2.2, 11), rules with their counters, damage to
its bytes.

The request's own greenlet writes a damaged stream chunk by chunk. The configured number of chunks
is sent before a break, over TLS and HTTP/1.0, too.
"""

import errno
import math
import re
from collections.abc import Iterator, Sequence
from fnmatch import translate
from random import Random
from typing import NoReturn

from msgspec.structs import replace

from app.base.clock.token_bucket import TokenBucket
from app.serving.api.fault import Fault, RequestFacts
from app.serving.http.client_connection import BrokenOffError, ClientConnection
from app.serving.http.context import RequestContext
from app.serving.http.errors import ApiError, too_many
from app.serving.http.response import Response, StreamingBody
from app.serving.middleware.rate_limits import Buckets
from config.fault_rules import (
    DisconnectRule,
    EmptyRule,
    ErrorRule,
    FaultRule,
    MalformedChunkRule,
    MissingDoneRule,
    RateLimitRule,
    SlowFirstTokenRule,
    StallRule,
    TruncatedJsonRule,
    TruncateRule,
)

Damage = (
    DisconnectRule
    | TruncateRule
    | TruncatedJsonRule
    | MalformedChunkRule
    | MissingDoneRule
    | EmptyRule
)

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
}
_FAILURES = {
    "rate_limit": (
        429,
        "More requests came for {model} than its rate allows; try again later.",
        None,
    ),
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
"""Status, message and param of each failure type.

Clients recognize a too long prompt by its message.
"""
BEYOND = 404
"""Excess of a too long prompt in its error message, in tokens."""


def error_type(status: int) -> str:
    """Returns the error type of an injected status (simulator.md 3.1)."""
    return _TYPES.get(status) or ("InternalServerError" if status >= 500 else "APIConnectionError")


def failure(kind: str, model: str, context: int) -> ApiError:
    """Builds the error of failure type `kind`; `model` is the served model, `context` its tokens."""
    status, message, param = _FAILURES[kind]
    text = message.format(model=model, context=context, beyond=context + BEYOND)
    return ApiError(status, error_type(status), text, param)


PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "generate": "/inference/v1/generate",
    "grpc": "/vllm.grpc.engine.VllmEngine/Generate",
}


class FaultScript:
    """Rules in order; the first that applies decides.

    Rules that are also in `before` keep their counters.
    """

    def __init__(
        self, rules: Sequence[FaultRule], now_s: float, before: "FaultScript | None" = None
    ) -> None:
        known = list(before._rules) if before else []
        self._rules: list[_Rule] = []
        for rule in rules:
            same = next((each for each in known if each.rule == rule), None)
            if same is not None:
                known.remove(same)
            self._rules.append(same or _Rule(rule, now_s))

    def fault_for(self, request: RequestFacts, rng: Random, now_s: float) -> Fault | None:
        """Returns the fault of this request; None when no rule applies."""
        decided, headers = Fault(), dict[str, str]()
        for rule in self._rules:
            if rule.fits(request) and rule.is_turn() and not decided.name and rule.applies(rng):
                decided = rule.fault(request, now_s)
                rule.applied += bool(decided.name)
                headers |= decided.headers  # from a quota that still allows the request
        return replace(decided, headers=headers) if decided.name or headers else None


class _Rule:
    """A rule with its counters, and the token buckets of a `rate-limit` rule."""

    def __init__(self, rule: FaultRule, now_s: float) -> None:
        self.rule = rule
        self._path = PATHS[rule.api] if rule.api else None
        self._fits_path = re.compile(translate(rule.path)).match if rule.path is not None else None
        self._met = self.applied = 0
        if isinstance(rule, RateLimitRule):
            self._requests = TokenBucket(rule.rate, max(rule.burst or rule.rate, 1.0), now_s)
            token_rate = rule.token_rate
            self._tokens = TokenBucket(token_rate, rule.token_burst, now_s) if token_rate else None

    def fits(self, request: RequestFacts) -> bool:
        rule = self.rule
        return (
            (rule.model is None or rule.model == request.model)
            and (self._path is None or self._path == request.path)
            and (self._fits_path is None or self._fits_path(request.path) is not None)
            and all(
                (found := request.header(name)) is not None and wanted in (None, found)
                for name, wanted in rule.headers.items()
            )
        )

    def is_turn(self) -> bool:
        """Counts a matching request; True when `nth` and `every` select it."""
        self._met += 1
        rule = self.rule
        return rule.nth in (None, self._met) and (rule.every is None or self._met % rule.every == 0)

    def applies(self, rng: Random) -> bool:
        """True unless `times` are used up or the draw of `probability` fails."""
        rule = self.rule
        is_spent = rule.times is not None and self.applied >= rule.times
        return not is_spent and (rule.probability >= 1 or rng.random() < rule.probability)

    def fault(self, request: RequestFacts, now_s: float) -> Fault:
        """Returns the fault for this request; one without a name only adds headers."""
        rule = self.rule
        name = rule.name or rule.action
        match rule:
            case RateLimitRule():
                wait_s = self._take(request.tokens, now_s)
                headers = Buckets(self._requests, self._tokens).headers(now_s)
                if not wait_s:
                    return Fault(headers=headers)
                rate, retry_after_s = self._requests.per_minute, math.ceil(wait_s)
                message = (
                    f"The quota of {rate:g} requests per minute "
                    f"is used up; try again in {retry_after_s} s."
                )
                return Fault(name=name, error=too_many(message, retry_after_s), headers=headers)
            case ErrorRule():
                message = rule.message or f"A scripted fault: status {rule.status}."
                headers = {} if rule.retry_after is None else {"Retry-After": str(rule.retry_after)}
                kind = rule.type or error_type(rule.status)
                return Fault(
                    name=name, error=ApiError(rule.status, kind, message, rule.param, headers)
                )
            case StallRule():
                return Fault(name=name, delays=((rule.after, rule.seconds),))
            case SlowFirstTokenRule():
                return Fault(name=name, delays=((0, rule.seconds),))
        assert isinstance(rule, Damage)
        return Fault(name=name, damage=rule)

    def _take(self, tokens: float, now_s: float) -> float:
        """Takes a request and its tokens and returns 0, or takes nothing and returns the wait in
        seconds.

        A request with more tokens than the bucket can hold takes a full bucket.
        """
        amounts = [(self._requests, 1.0)]
        if self._tokens is not None:
            amounts.append((self._tokens, min(tokens, self._tokens.burst)))
        wait_s = max(bucket.wait(amount, now_s) for bucket, amount in amounts)
        if not wait_s:
            for bucket, amount in amounts:
                bucket.spend(amount, now_s)
        return wait_s


BLANK = b"\n\n"
NO_JSON = b"}{"
LAST_EVENTS = (
    b"data: [DONE]",
    b"event: message_stop",
    b"event: response.completed",
    b"event: response.incomplete",
)
"""Events that end a complete stream, in each API family."""


def damage(response: Response, fault: Fault | None, context: RequestContext) -> Response:
    """Applies the headers and the damage of a fault to `response`."""
    if fault is None:
        return response
    response.headers.update(fault.headers)
    if fault.damage is not None:
        if isinstance(response.body, StreamingBody):
            response.body = DamagedStream(response.body, fault.damage, context.connection)
        elif response.status == 200 and isinstance(response.body, bytes):
            _damage_whole(response, response.body, fault.damage, context.connection)
    return response


class DamagedStream(StreamingBody):
    """A damaged stream.

    Iterate once; always close. `was_damaged`: the stream reached the damaged place.
    """

    def __init__(
        self, stream: StreamingBody, damage: Damage, connection: ClientConnection | None
    ) -> None:
        super().__init__()
        self._stream = stream
        self._connection = connection
        self._damage = damage
        self.was_damaged = False

    @property
    def is_cut_off(self) -> bool:
        """True if the stream was damaged and its end is missing."""
        return self.was_damaged and not isinstance(self._damage, MalformedChunkRule)

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces():
            self.bytes_sent += len(piece)
            yield piece

    def _pieces(self) -> Iterator[bytes]:
        if ends_after(self._damage, 0):
            yield from self._end()
            return
        number = 0
        for data in self._stream:
            if not data:
                yield data  # sends the status line
            for chunk in self._chunks(data):
                number += 1
                yield self._altered(number, chunk)
                if ends_after(self._damage, number):
                    yield from self._end()
                    return

    def close(self) -> None:
        """Closes the stream. A client that was cut off does not count as gone."""
        self._stream.close()
        self.gone = self._stream.gone and not self.is_cut_off

    def _chunks(self, data: bytes) -> Sequence[bytes]:
        return data.split(BLANK)[:-1]

    def _altered(self, number: int, chunk: bytes) -> bytes:
        """Returns the bytes for chunk `number`, counted from 1, with any damage."""
        damage, whole = self._damage, chunk + BLANK
        if isinstance(damage, MalformedChunkRule) and number == damage.chunk:
            whole = chunk.replace(b"data: ", b"data: " + NO_JSON, 1) + BLANK
        elif isinstance(damage, TruncatedJsonRule) and number == damage.chunk:
            whole = chunk[: len(chunk) // 2]
        elif isinstance(damage, MissingDoneRule) and chunk.startswith(LAST_EVENTS):
            whole = b""
        else:
            return whole
        self.was_damaged = True
        return whole

    def _end(self) -> Iterator[bytes]:
        """Ends the stream early, or breaks the connection.

        An empty item sends the status line if needed.
        """
        self.was_damaged = True
        if isinstance(self._damage, DisconnectRule):
            break_off(self._connection)
        yield b""


def ends_after(damage: Damage, number: int) -> bool:
    """Returns True if the stream is cut off after chunk `number`, counted from 1; 0:

    before the first.
    """
    if isinstance(damage, DisconnectRule | TruncateRule):
        return number == damage.after
    if isinstance(damage, TruncatedJsonRule):
        return number == damage.chunk
    return isinstance(damage, EmptyRule)


def _damage_whole(
    response: Response, body: bytes, damage: Damage, connection: ClientConnection | None
) -> None:
    """Damages an unstreamed body. Only a disconnect contradicts Content-Length."""
    if isinstance(damage, DisconnectRule):
        response.body = _breaking(body[: len(body) // 2] if damage.after else b"", connection)
    elif isinstance(damage, TruncateRule | TruncatedJsonRule):
        response.replace_body(body[: len(body) // 2])
    elif isinstance(damage, MalformedChunkRule):
        response.replace_body(NO_JSON + body)
    elif isinstance(damage, EmptyRule):
        response.replace_body(b"")


def _breaking(first: bytes, connection: ClientConnection | None) -> Iterator[bytes]:
    """Yields a part of an answer, then breaks off; without a part the client gets no status line."""
    if first:
        yield first
    break_off(connection)


def break_off(connection: ClientConnection | None) -> NoReturn:
    """Ends the connection at once, without TLS close_notify; gunicorn takes this for a client that
    left.
    """
    if connection is not None:
        connection.shut()
    raise BrokenOffError(errno.ECONNRESET, "broken off on purpose")
