"""Failure injection: decides if and how a request fails, and audits how clients behave then.

GET /admin/verdict returns the audit, as far as a server can see.
"""

import re
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from random import Random

from cachetools import LRUCache
from msgspec import Struct
from msgspec.structs import replace

from app.serving.api.fault import Fault, RequestFacts
from app.serving.faults.fault import FaultScript, damage, error_type, failure
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
MOST_HEADER_RULES, MOST_CHARACTERS, RULE_BYTES = 500, 2048, 4096
"""Remembered rules of X-Fault headers, by last use; longest such header; estimated memory of a
rule.
"""

FaultSource = Callable[[RequestFacts], Fault | None]
"""Returns the fault of a request; None for no fault."""


class FaultInjector:
    """Decides which requests fail. `now` returns monotonic seconds.

    The first source with a fault decides: X-Return-Error, X-Fault, plugins, rules, chance. Later
    sources do not see the request.
    """

    def __init__(
        self, rng: Random, now: Callable[[], float], sources: Sequence[FaultSource] = ()
    ) -> None:
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

    def use_sources(self, sources: Sequence[FaultSource]) -> None:
        """Asks `sources` about each request, before rules and chance."""
        self._sources = tuple(sources)

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
        self.active = False
        self._read_rules(None)
        self._header_rules.clear()

    def _read_rules(self, before: FaultScript | None) -> None:
        rules = parse_fault_rules(self._rules)
        self._script = FaultScript(rules, self._now(), before) if rules else None

    def fault_for(self, request: RequestFacts) -> Fault | None:
        """Returns the fault of a request, or None. An invalid header is a fault, too: 400."""
        headers: dict[str, str] = {}
        for source in (_returned, self._asked_for, *self._sources, self._scripted, self._drawn):
            fault = source(request)
            if fault is not None:
                headers |= fault.headers
                if fault.name:
                    return replace(fault, headers=headers)
        return Fault(headers=headers) if headers else None

    def _asked_for(self, request: RequestFacts) -> Fault | None:
        """Applies X-Fault.

        Requests of one client with the same text share one rule and its counters.
        """
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
        return (
            None
            if self._script is None
            else self._script.fault_for(request, self._rng, self._now())
        )

    def _drawn(self, request: RequestFacts) -> Fault | None:
        """Draws one of the failure types, or of all if none is named, with a probability of the
        rate in %.
        """
        failures, model = self._settings.failures, self._settings.model
        if (
            not failures.failure_injection_rate
            or self._rng.randint(1, 100) > failures.failure_injection_rate
        ):
            return None
        kind = self._rng.choice(failures.failure_types or FAILURE_TYPES)
        return Fault(name=kind, error=failure(kind, model.model, model.max_model_len))

    def inject(self, context: RequestContext, model: str | None) -> None:
        """Decides about a decoded generation request. ApiError as `apply`."""
        context.is_generation, headers = True, context.headers
        if self.is_quiet and not ("x-fault" in headers or "x-return-error" in headers):
            return
        fault = self.fault_for(facts_of(context, model))
        if fault is not None:
            self.apply(context, fault)

    def apply(self, context: RequestContext, fault: Fault) -> None:
        """Keeps the fault in the request's context. ApiError for an error instead of an answer."""
        context.keep(fault)
        self.active = True
        if fault.error is not None:
            fault.error.headers = {**fault.headers, **fault.error.headers}
            raise fault.error

    def damage(self, response: Response, fault: Fault | None, context: RequestContext) -> Response:
        """Returns `response` with the headers and the damage of a fault."""
        return damage(response, fault, context)


def facts_of(context: RequestContext, model: str | None) -> RequestFacts:
    return RequestFacts(
        context.path if context.route is None else context.route.path,
        model,
        lambda name: context.headers.get(name.lower()),
        partial(client_name, context),
        (context.content_length or 0) / BYTES_PER_TOKEN,
    )


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
        error = ApiError(
            status, error_type(status), f"{RETURN_ERROR} asked for this status, {status}."
        )
    return Fault(name="return-error", error=error)


MOST_CLIENTS, MOST_FAILED = 1000, 4096
"""Most clients, and most failed bodies of all clients, by last use."""
CLIENT_BYTES, FAILED_BYTES = 4096, 1024
"""Estimated memory of a client and of a failed body, in bytes."""
MOST_NAMES, OTHERS = 32, "others"
"""Most fault names counted separately for a client; further names are counted as OTHERS."""
EARLY_S, ON_ITS_WAY_S = 0.05, 0.1
"""Tolerance of an early retry, and delivery time of a Retry-After, in seconds:

timers are coarse.
"""
BACK_OFF_RETRIES, BACK_OFF_S, BACK_OFF_GROWTH, NO_WAIT_S = 3, 1.0, 1.5, 0.05
"""Retries within BACK_OFF_S that are misconduct unless the last wait grew so, and exceeds
NO_WAIT_S.
"""
STORM_RETRIES, STORM_S = 5, 2.0
"""Retries of one body, and their time span in seconds, that make a retry storm."""
RETRY_WINDOW_S = 30.0
"""Longest time in seconds until a client should retry a stream that was cut off."""


class AuditedExchange(Struct, frozen=True):
    """A request of a client, and the start of its answer. Times are monotonic seconds."""

    client: str
    path: str
    body: int | None
    """Hash of the body; None when the body was not read."""
    request_id: str
    arrived_s: float
    answered_s: float
    status: int
    retry_after_s: float | None = None
    fault: str = ""
    """Name of the injected fault."""


class Finding(Struct):
    """One kind of misconduct.

    `first` and `last` are ISO 8601 in UTC; the id is the last request's.
    """

    kind: str
    count: int = 0
    first: str = ""
    last: str = ""
    example_request_id: str = ""
    what: str = ""


class ClientReport(Struct):
    """The audit of one client; `awaiting_retry` counts cut-off streams that may still be retried."""

    requests: int = 0
    errors: dict[int, int] = {}
    faults: dict[str, int] = {}
    disconnects: int = 0
    awaiting_retry: int = 0
    findings: list[Finding] = []


class AuditReport(Struct):
    """The body of GET /admin/verdict. `since` is ISO 8601 in UTC; `clients` are keyed by name."""

    since: str
    clean: bool
    clients: dict[str, ClientReport]


class _Failed(Struct):
    """A body that failed when last sent. `waits` and `retries` describe its latest retries."""

    at_s: float = 0.0
    request_id: str = ""
    truncated: bool = False
    waits: tuple[float, ...] = ()
    retries: tuple[float, ...] = ()


LONGEST_ID = 128
"""Most characters of a request id in the verdict."""


class FaultAudit(Middleware):
    """Audits how clients handle failures: each client from its first error or fault on, and no
    others.

    `now` returns monotonic seconds, `unix` Unix seconds for the report.
    """

    limit_bytes = CLIENT_BYTES * MOST_CLIENTS + FAILED_BYTES * MOST_FAILED

    def __init__(
        self,
        injector: FaultInjector,
        now: Callable[[], float],
        unix: Callable[[], float] = time.time,
    ) -> None:
        self._injector, self._now, self._unix = injector, now, unix
        self.restart()

    def restart(self) -> None:
        """Forgets all clients and restarts the counters of the rules."""
        self._injector.restart()
        self._looks = False
        """True after the first error or fault; before, there is no client to judge."""
        self._since = self._timestamp()
        self._clients: LRUCache[str, ClientReport] = LRUCache(MOST_CLIENTS)
        self._failed: LRUCache[tuple[str, str, int | None], _Failed] = LRUCache(MOST_FAILED)
        """Failed bodies by client, route and hash."""
        self._not_before: LRUCache[tuple[str, str], tuple[float, float]] = LRUCache(MOST_FAILED)
        """Time of the first Retry-After, and the end of the last one, by client and route."""

    @property
    def size_bytes(self) -> int:
        return CLIENT_BYTES * len(self._clients) + FAILED_BYTES * len(self._failed)

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
            client=client_name(context),
            path=route.path,
            body=None if context.body is None else hash(context.body),
            request_id=(context.request_id or "-")[:LONGEST_ID],
            arrived_s=context.arrival_s,
            answered_s=self._now(),
            status=200 if gone else response.status,
            retry_after_s=float(retry_after)
            if retry_after.isdecimal() and len(retry_after) < 19
            else None,
            fault=fault.name,
        )
        report = self.note_answer(exchange)
        if report is None:
            return
        stream = response.body
        if isinstance(stream, StreamingBody):

            def ended() -> None:
                report.disconnects += stream.gone
                if not stream.gone:
                    self.note_end(exchange, self._now(), stream.was_damaged, stream.is_cut_off)

            response.on_close(ended)
        elif gone:
            report.disconnects += 1
        else:
            damaged = fault.damage is not None and not isinstance(fault.damage, MissingDoneRule)
            self.note_end(exchange, exchange.answered_s, exchange.status >= 400 or damaged)

    def note_answer(self, exchange: AuditedExchange) -> ClientReport | None:
        """Records a request at the start of its answer.

        Returns None for a client without a failure.
        """
        report = self._clients.get(exchange.client)
        if report is None:
            if exchange.status < 400 and not exchange.fault:
                return None
            report = self._clients[exchange.client] = ClientReport()
        report.requests += 1
        failed = self._failed.get((exchange.client, exchange.path, exchange.body))
        if failed is not None and exchange.arrived_s < failed.at_s:
            failed = None  # the request was on its way when the other one failed
        self._check_patience(report, exchange, failed is not None)
        if failed is not None:
            self._check_retry(report, exchange, failed)
        if exchange.status >= 400:
            report.errors[exchange.status] = report.errors.get(exchange.status, 0) + 1
        if exchange.fault:
            known = exchange.fault in report.faults or len(report.faults) < MOST_NAMES
            name = exchange.fault if known else OTHERS
            report.faults[name] = report.faults.get(name, 0) + 1
        return report

    def note_end(
        self, exchange: AuditedExchange, at_s: float, failed: bool, truncated: bool = False
    ) -> None:
        """Records the end of an answer, at `at_s` monotonic seconds."""
        key = exchange.client, exchange.path, exchange.body
        if not failed:
            self._failed.pop(key, None)
        elif exchange.body is not None:
            known = self._failed.get(key) or _Failed()
            known.at_s, known.request_id, known.truncated = at_s, exchange.request_id, truncated
            self._failed[key] = known

    def report(self, over: bool = False) -> AuditReport:
        """Reports all clients. `over` closes the retry window of every stream."""
        now_s = self._now()
        for report in self._clients.values():
            report.awaiting_retry = 0
        for (client, path, _), failed in list(self._failed.items()):
            known = self._clients.get(client)
            if known is not None and failed.truncated:
                if over or now_s - failed.at_s >= RETRY_WINDOW_S:
                    self._find_not_retried(known, path, failed)
                known.awaiting_retry += failed.truncated
        clean = not any(report.findings for report in self._clients.values())
        return AuditReport(self._since, clean, dict(self._clients))

    def _check_patience(
        self, report: ClientReport, exchange: AuditedExchange, is_retry: bool
    ) -> None:
        key, now_s = (exchange.client, exchange.path), exchange.answered_s
        told_s, over_s = self._not_before.get(key, (0.0, 0.0))
        early_s, since_s = over_s - exchange.arrived_s, exchange.arrived_s - told_s
        if early_s > EARLY_S and since_s >= 0 and (is_retry or since_s > ON_ITS_WAY_S):
            what = (
                f"It asked {exchange.path} {early_s:.2f} s before "
                f"the Retry-After that it was told was over."
            )
            self._find(report, "retry_after_ignored", exchange.request_id, what)
        if exchange.retry_after_s is not None:
            self._not_before[key] = (
                told_s if over_s > now_s else now_s,
                now_s + exchange.retry_after_s,
            )

    def _check_retry(
        self, report: ClientReport, exchange: AuditedExchange, failed: _Failed
    ) -> None:
        if failed.truncated and exchange.arrived_s - failed.at_s >= RETRY_WINDOW_S:
            self._find_not_retried(report, exchange.path, failed)
        failed.truncated = False
        waits = failed.waits = (*failed.waits, exchange.arrived_s - failed.at_s)[-BACK_OFF_RETRIES:]
        retries = failed.retries = (*failed.retries, exchange.arrived_s)[-STORM_RETRIES:]
        are_hasty = len(waits) == BACK_OFF_RETRIES and sum(waits) < BACK_OFF_S
        if are_hasty and waits[-1] <= max(NO_WAIT_S, BACK_OFF_GROWTH * waits[-2]):
            failed.waits = ()
            what = (
                f"It sent a body that had failed to {exchange.path} again {BACK_OFF_RETRIES} times "
                f"within {sum(waits):.2f} s, without waiting longer from time to time."
            )
            self._find(report, "no_backoff", exchange.request_id, what)
        span_s = retries[-1] - retries[0]
        if len(retries) == STORM_RETRIES and span_s < STORM_S:
            failed.retries = ()
            what = f"It retried one body at {exchange.path} {STORM_RETRIES} times within {span_s:.2f} s."
            self._find(report, "retry_storm", exchange.request_id, what)

    def _find_not_retried(self, report: ClientReport, path: str, failed: _Failed) -> None:
        failed.truncated = False
        what = (
            f"A stream of {path} was cut off and not asked for again in time; "
            "whether the client noticed cannot be seen from here."
        )
        self._find(report, "truncated_stream_not_retried", failed.request_id, what)

    def _find(self, report: ClientReport, kind: str, request_id: str, what: str) -> None:
        now = self._timestamp()
        finding = next((each for each in report.findings if each.kind == kind), None)
        if finding is None:
            finding = Finding(kind, first=now)
            report.findings.append(finding)
        finding.count += 1
        finding.last, finding.example_request_id, finding.what = now, request_id, what

    def _timestamp(self) -> str:
        now = datetime.fromtimestamp(self._unix(), UTC)
        return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
