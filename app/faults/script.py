"""A list of fault rules at work: what each has met so far, and what it does to a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from random import Random

from msgspec import Struct

from app.faults.fault import DAMAGE, Fault
from app.faults.injection import error_type
from app.faults.quota import Quota
from app.http.errors import ApiError
from config.fault_rules import ErrorRule, FaultRule, RateLimitRule, SlowFirstTokenRule, StallRule

PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "generate": "/inference/v1/generate",
}


class Asking(Struct, frozen=True):
    """A request, as far as a rule looks at it; `tokens` is an estimate of what it will use."""

    path: str
    model: str | None
    header: Callable[[str], str | None]
    client: Callable[[], str]
    tokens: float = 0.0


class Script:
    """Rules in order. Each counts the requests that fit it; the first that strikes decides."""

    def __init__(self, rules: Sequence[FaultRule], now_s: float) -> None:
        self._rules = [_Rule(rule, now_s) for rule in rules]

    def strike(self, asking: Asking, rng: Random, now_s: float) -> Fault | None:
        """The fault of this request; None when no rule has anything to say."""
        struck, headers = Fault(), dict[str, str]()
        for rule in self._rules:
            if not (rule.fits(asking) and rule.is_turn()) or struck.name:
                continue
            if rule.strikes(rng):
                struck = rule.fault(asking, now_s)
                headers |= struck.headers  # of a quota that still allows it
        return struck.with_headers(headers) if struck.name or headers else None


class _Rule:
    """One rule, and what it has met."""

    def __init__(self, rule: FaultRule, now_s: float) -> None:
        self._rule = rule
        self._path = PATHS[rule.api] if rule.api else None
        self._quota = Quota(rule, now_s) if isinstance(rule, RateLimitRule) else None
        self._met = self._struck = 0

    def fits(self, asking: Asking) -> bool:
        rule = self._rule
        return (
            (rule.model is None or rule.model == asking.model)
            and (self._path is None or self._path == asking.path)
            and (rule.path is None or fnmatchcase(asking.path, rule.path))
            and all(_has(asking.header(name), value) for name, value in rule.headers.items())
        )

    def is_turn(self) -> bool:
        """Count a request that fits; True when it is one of those that may be struck."""
        self._met += 1
        rule = self._rule
        return (rule.nth is None or self._met == rule.nth) and (
            rule.every is None or self._met % rule.every == 0
        )

    def strikes(self, rng: Random) -> bool:
        """Chance, and how often it has struck, allow it."""
        rule = self._rule
        if rule.times is not None and self._struck >= rule.times:
            return False
        return rule.probability >= 1 or rng.random() < rule.probability

    def fault(self, asking: Asking, now_s: float) -> Fault:
        """What happens to the request now; without a name when a quota still allows it."""
        rule = self._rule
        fault = self._fault(rule, asking, now_s)
        self._struck += bool(fault.name)
        return fault

    def _fault(self, rule: FaultRule, asking: Asking, now_s: float) -> Fault:
        name = rule.name or rule.action
        if self._quota is not None:
            error = self._quota.ask(asking.tokens, now_s)
            return Fault(name=name if error else "", error=error, headers=self._quota.headers(now_s))
        if isinstance(rule, ErrorRule):
            return Fault(name=name, error=_error(rule))
        if isinstance(rule, StallRule):
            return Fault(name=name, delays=((rule.after, rule.seconds),))
        if isinstance(rule, SlowFirstTokenRule):
            return Fault(name=name, delays=((0, rule.seconds),))
        assert isinstance(rule, DAMAGE)
        return Fault(name=name, damage=rule)


def _has(found: str | None, wanted: str | None) -> bool:
    return found is not None if wanted is None else found == wanted


def _error(rule: ErrorRule) -> ApiError:
    message = rule.message or f"A scripted fault: status {rule.status}."
    headers = {} if rule.retry_after is None else {"Retry-After": str(rule.retry_after)}
    return ApiError(rule.status, rule.type or error_type(rule.status), message, rule.param, headers)
