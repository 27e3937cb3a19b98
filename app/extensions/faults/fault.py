"""The fault of a request: its error, and the rules that decide about it, with their counters."""

import math
import re
from collections.abc import Sequence
from fnmatch import translate
from random import Random

from msgspec import UNSET
from msgspec.structs import replace

from app.core.api.fault import RequestFacts
from app.core.server.http.errors import ApiError, too_many
from app.core.server.http.fault import Fault
from app.extensions.faults.fault_rules import (
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
from app.shared.quotas import Buckets
from app.shared.token_bucket import TokenBucket

Damage = (
    DisconnectRule
    | TruncateRule
    | TruncatedJsonRule
    | MalformedChunkRule
    | MissingDoneRule
    | EmptyRule
)

ERROR_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
}
FAILURES = {
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

Clients recognize a prompt that is too long by the error's message.
"""
EXCESS_TOKENS = 404
"""Tokens beyond the context in the error for a prompt that is too long."""
PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "generate": "/inference/v1/generate",
    "grpc": "/vllm.grpc.engine.VllmEngine/Generate",
}
"""Path of each API family that a rule can name."""


class FaultScript:
    """Fault rules in order; the first that applies decides."""

    def __init__(
        self, rules: Sequence[FaultRule], now_s: float, previous: "FaultScript | None" = None
    ) -> None:
        """Rules that are also in `previous` keep their counters."""
        reusable: list[RuleState] = []
        if previous is not None:
            reusable += previous._rules
        self._rules: list[RuleState] = []
        for rule in rules:
            for state in reusable:
                if state.rule == rule:
                    reusable.remove(state)
                    break
            else:
                state = RuleState(rule, now_s)
            self._rules.append(state)

    def fault_for(self, request: RequestFacts, rng: Random, now_s: float) -> Fault | None:
        """Returns the fault of this request, or None when no rule applies."""
        decided = Fault()
        headers: dict[str, str] = {}
        for state in self._rules:
            # All rules count their requests, also after one has decided.
            if not state.matches(request) or not state.count_match():
                continue
            if not decided.name and state.draw(rng):
                decided = state.fault(request, now_s)
                state.applied += bool(decided.name)
                headers |= decided.headers  # from a quota that still allows the request
        if not decided.name and not headers:
            return None
        return replace(decided, headers=headers)


class RuleState:
    """A rule with its counters, and the token buckets of a `rate-limit` rule."""

    def __init__(self, rule: FaultRule, now_s: float) -> None:
        self.rule = rule
        self.applied = 0
        self._match_count = 0
        self._path = PATHS[rule.api] if rule.api else None
        self._path_pattern = None if rule.path is None else re.compile(translate(rule.path))
        self._tokens: TokenBucket | None = None
        if isinstance(rule, RateLimitRule):
            burst = max(rule.burst or rule.rate, 1.0)
            self._requests = TokenBucket(rule.rate, burst, now_s)
            if rule.token_rate:
                self._tokens = TokenBucket(rule.token_rate, rule.token_burst, now_s)

    def matches(self, request: RequestFacts) -> bool:
        """Returns true if the request has the rule's model, path and headers."""
        rule = self.rule
        if rule.model is not None and rule.model != request.model:
            return False
        if self._path is not None and self._path != request.path:
            return False
        if self._path_pattern is not None and not self._path_pattern.match(request.path):
            return False
        for name, required in rule.headers.items():
            value = request.header(name)
            if value is None or required not in (None, value):
                return False
        return True

    def count_match(self) -> bool:
        """Counts a matching request; returns true if `nth` and `every` select it."""
        self._match_count += 1
        rule = self.rule
        is_nth = rule.nth in (None, self._match_count)
        return is_nth and (rule.every is None or self._match_count % rule.every == 0)

    def draw(self, rng: Random) -> bool:
        """Returns true unless `times` is used up or the draw of `probability` fails."""
        rule = self.rule
        is_spent = rule.times is not None and self.applied >= rule.times
        return not is_spent and (rule.probability >= 1 or rng.random() < rule.probability)

    def fault(self, request: RequestFacts, now_s: float) -> Fault:
        """Returns the fault for this request; one without a name only adds headers."""
        rule = self.rule
        name = rule.name or rule.action
        match rule:
            case RateLimitRule():
                return self._rate_limit_fault(name, request, now_s)
            case ErrorRule():
                return Fault(name=name, error=_rule_error(rule))
            case StallRule():
                return Fault(name=name, delays=((rule.after, rule.seconds),))
            case SlowFirstTokenRule():
                return Fault(name=name, delays=((0, rule.seconds),))
        assert isinstance(rule, Damage)
        return Fault(name=name, damage=rule)

    def _rate_limit_fault(self, name: str, request: RequestFacts, now_s: float) -> Fault:
        wait_s = self._spend(request.tokens, now_s)
        headers = Buckets(self._requests, self._tokens).headers(now_s)
        if not wait_s:
            return Fault(headers=headers)
        retry_after_s = math.ceil(wait_s)
        message = (
            f"The quota of {self._requests.per_minute:g} requests per minute "
            f"is used up; try again in {retry_after_s} s."
        )
        return Fault(name=name, error=too_many(message, retry_after_s), headers=headers)

    def _spend(self, tokens: float, now_s: float) -> float:
        """Takes a request and its tokens from the buckets, if they have enough.

        Returns 0, or the wait in seconds until they have enough. A request with more tokens than
        the bucket can hold takes a full bucket.
        """
        amounts = [(self._requests, 1.0)]
        if self._tokens is not None:
            amounts.append((self._tokens, min(tokens, self._tokens.burst)))
        wait_s = max(bucket.wait(amount, now_s) for bucket, amount in amounts)
        if not wait_s:
            for bucket, amount in amounts:
                bucket.spend(amount, now_s)
        return wait_s


def error_type(status: int) -> str:
    """Returns the error type of an injected status."""
    if status in ERROR_TYPES:
        return ERROR_TYPES[status]
    if status >= 500:
        return "InternalServerError"
    return "APIConnectionError"


def failure(kind: str, model: str, context: int) -> ApiError:
    """Builds the error of failure type `kind` for a model with a context of `context` tokens."""
    status, message, param = FAILURES[kind]
    text = message.format(model=model, context=context, beyond=context + EXCESS_TOKENS)
    return ApiError(status, error_type(status), text, param)


def _rule_error(rule: ErrorRule) -> ApiError:
    headers: dict[str, str] = {}
    if rule.retry_after is not None:
        headers["Retry-After"] = str(rule.retry_after)
    message = rule.message or f"A scripted fault: status {rule.status}."
    kind = rule.type or error_type(rule.status)
    error = ApiError(rule.status, kind, message, param=rule.param, headers=headers)
    if rule.code is not UNSET:
        error.code = rule.code
    return error
