"""Failure injection: decides if and how a request fails, in generation or as middleware."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from cachetools import LRUCache

from app.serving.faults.audit import AuditedExchange, AuditReport, AuditTrail
from app.serving.faults.fault import Fault, FaultScript, RequestFacts, error_type, failure
from app.serving.http.context import RequestContext, client_name
from app.serving.http.errors import ApiError, bad_request
from app.serving.http.response import CLIENT_GONE, Response, StreamingBody
from app.serving.middleware.stack import Middleware
from config.fault_rules import MissingDoneRule, parse_fault, parse_fault_rules
from config.sections.api import FAILURE_TYPES
from config.settings import Settings

RETURN_ERROR, FAULT = "X-Return-Error", "X-Fault"
BYTES_PER_TOKEN = 4
_WHOLE = re.compile(r"[+-]?\d{1,9}", re.ASCII)
MOST_HEADER_RULES, MOST_CHARACTERS = 500, 2048
"""Most remembered rules of X-Fault headers, by last use, and the longest such header."""
RULE_BYTES = 4096
"""Estimated memory of the rule of a header, in bytes."""

FaultSource = Callable[[RequestFacts], Fault | None]
"""Returns the fault of a request; None for no fault."""


class FaultInjector:
    """Decides which requests fail. `now` returns monotonic seconds.

    The first source with a fault decides: X-Return-Error, X-Fault, plugins, rules, chance. Later sources do
    not see the request.
    """

    def __init__(self, rng: Random, now: Callable[[], float], sources: Sequence[FaultSource] = ()) -> None:
        """`sources` come from plugins."""
        self.active = False
        """True after the first injected fault."""
        self._rng, self._now, self._sources = rng, now, tuple(sources)
        self._settings = Settings()
        self._rules: str | None = None
        self._script: FaultScript | None = None
        self.limit_bytes = MOST_HEADER_RULES * RULE_BYTES
        self._header_rules: LRUCache[tuple[str, str], FaultScript] = LRUCache(MOST_HEADER_RULES)
        """Rules of X-Fault headers, by client and text."""

    @property
    def is_quiet(self) -> bool:
        """True when only faults requested by a header can occur; changes with the settings only."""
        rate = self._settings.failures.failure_injection_rate
        return not rate and self._script is None and not self._sources

    @property
    def size_bytes(self) -> int:
        return len(self._header_rules) * RULE_BYTES

    def on_settings(self, settings: Settings) -> None:
        """Applies `settings`; unchanged rules keep their counters."""
        self._settings, rules = settings, settings.failures.fault_rules
        if rules != self._rules:
            self._rules = rules
            self._read_rules(self._script)

    def restart(self) -> None:
        """Restarts the counters of all rules and forgets the rules of headers."""
        self.active = False
        self._read_rules(None)
        self._header_rules.clear()

    def _read_rules(self, before: FaultScript | None) -> None:
        rules = parse_fault_rules(self._rules)
        self._script = FaultScript(rules, self._now(), before) if rules else None

    def fault_for(self, request: RequestFacts) -> Fault | None:
        """Returns the fault of a request, or None. An invalid header is a fault, too: 400."""
        headers: dict[str, str] = {}
        sources = (_returned, self._asked_for, *self._sources, self._scripted, self._drawn)
        for source in sources:
            fault = source(request)
            if fault is not None:
                headers |= fault.headers
                if fault.name:
                    return fault.with_headers(headers)
        return Fault(headers=headers) if headers else None

    def _asked_for(self, request: RequestFacts) -> Fault | None:
        """Applies X-Fault. Requests of one client with the same text share one rule and its counters."""
        text = request.header(FAULT)
        if not text:
            return None
        key = request.client(), text
        script = self._header_rules.get(key)
        try:
            if len(text) > MOST_CHARACTERS:
                raise ValueError(f"it has more than {MOST_CHARACTERS} characters")
            if script is None:
                script = self._header_rules[key] = FaultScript([parse_fault(text)], self._now())
        except ValueError as error:
            return Fault(name="x-fault", error=bad_request(f"{FAULT}: {error}."))
        return script.fault_for(request, self._rng, self._now())

    def _scripted(self, request: RequestFacts) -> Fault | None:
        return None if self._script is None else self._script.fault_for(request, self._rng, self._now())

    def _drawn(self, request: RequestFacts) -> Fault | None:
        """Draws one of the failure types, or of all if none is named, with a probability of the rate in %."""
        failures, model = self._settings.failures, self._settings.model
        if not failures.failure_injection_rate or self._rng.randint(1, 100) > failures.failure_injection_rate:
            return None
        kind = self._rng.choice(failures.failure_types or FAILURE_TYPES)
        return Fault(name=kind, error=failure(kind, model.model, model.max_model_len))

    def exempt(self, context: RequestContext) -> bool:
        """True when no fault can occur: no rule is set, and the request has no fault header."""
        headers = context.headers
        return self.is_quiet and not ("x-fault" in headers or "x-return-error" in headers)

    def inject(self, context: RequestContext, model: str | None) -> None:
        """Decides about a decoded generation request, and keeps its `Fault` in the context.

        ApiError when the fault is an error instead of an answer.
        """
        context.is_generation = True
        if self.exempt(context):
            return
        facts = RequestFacts(
            context.path,
            model,
            lambda name: context.headers.get(name.lower()),
            partial(client_name, context),
            (context.content_length or 0) / BYTES_PER_TOKEN,
        )
        fault = self.fault_for(facts)
        if fault is not None:
            self.apply(context, fault)

    def apply(self, context: RequestContext, fault: Fault) -> None:
        """Keeps the fault in the request's context. ApiError when the fault is an error instead of an
        answer.
        """
        context.keep(fault)
        self.active = True
        if fault.error is not None:
            fault.error.headers = {**fault.headers, **fault.error.headers}
            raise fault.error


def _returned(request: RequestFacts) -> Fault | None:
    """Applies X-Return-Error: an error of this status, or status 400 for an invalid one."""
    asked = request.header(RETURN_ERROR)
    if not asked:
        return None
    if not _WHOLE.fullmatch(asked):
        error = bad_request(f"{RETURN_ERROR} is {asked[:40]!r}, which is not an integer.")
    elif not 400 <= (status := int(asked)) <= 599:
        error = bad_request(f"{RETURN_ERROR} is {status}; it can be from 400 to 599.")
    else:
        error = ApiError(status, error_type(status), f"{RETURN_ERROR} asked for this status, {status}.")
    return Fault(name="return-error", error=error)


def fault_of(context: RequestContext) -> Fault | None:
    return context.kept(Fault)


LONGEST_ID = 128
"""Most characters of a request id in the verdict."""


class FaultAudit(Middleware):
    """Audits how clients handle the failures of `injector`. `now` returns monotonic seconds."""

    def __init__(self, injector: FaultInjector, trail: AuditTrail, now: Callable[[], float]) -> None:
        self.trail, self._injector, self._now = trail, injector, now
        self._looks = False
        """True after the first error or fault; before, there is no client to judge."""

    def report(self, over: bool = False) -> AuditReport:
        return self.trail.report(self._now(), over)

    def restart(self) -> None:
        """Forgets all clients and restarts the counters of the rules."""
        self._looks = False
        self.trail.restart()
        self._injector.restart()

    def end(self, context: RequestContext, response: Response) -> None:
        """Audits an answer at its start. Returns at once until the first failure."""
        if response.status < 400 and not self._looks and not self._injector.active:
            return
        route = context.route
        if route is None or not (context.is_generation or "Retry-After" in response.headers):
            return
        self._looks = True
        fault, gone = context.kept(Fault) or Fault(), response.status == CLIENT_GONE
        retry_after = response.headers.get("Retry-After", "")
        exchange = AuditedExchange(
            path=route.path,
            body=None if context.body is None else hash(context.body),
            request_id=(context.request_id or "-")[:LONGEST_ID],
            arrived_s=context.arrival_s,
            answered_s=self._now(),
            status=200 if gone else response.status,
            retry_after_s=float(retry_after) if retry_after.isdecimal() and len(retry_after) < 19 else None,
            fault=fault.name,
        )
        client = client_name(context)
        report = self.trail.begin(client, exchange)
        if report is None:
            return
        stream = response.body
        if isinstance(stream, StreamingBody):

            def ended() -> None:
                report.disconnects += stream.gone
                if not stream.gone:
                    self.trail.end(client, exchange, self._now(), stream.was_damaged, stream.is_cut_off)

            response.on_close(ended)
        elif gone:
            report.disconnects += 1
        else:
            damaged = fault.damage is not None and not isinstance(fault.damage, MissingDoneRule)
            self.trail.end(client, exchange, exchange.answered_s, exchange.status >= 400 or damaged)
