"""Audits how clients behave after errors and faults, as far as a server can see.

GET /admin/verdict returns the report.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from cachetools import LRUCache
from msgspec import Struct

MOST_CLIENTS, MOST_FAILED = 1000, 4096
"""Most clients, and most failed bodies of all clients, by last use."""
CLIENT_BYTES, FAILED_BYTES = 4096, 1024
"""Estimated memory of a client and of a failed body, in bytes."""
MOST_NAMES, OTHERS = 32, "others"
"""Most fault names counted separately for a client; further names are counted as OTHERS."""
EARLY_S = 0.05
"""Tolerance in seconds of an early retry: timers are coarse."""
ON_ITS_WAY_S = 0.1
"""Delivery time in seconds: a request this soon after a Retry-After may have been sent before it arrived."""
BACK_OFF_RETRIES, BACK_OFF_S, BACK_OFF_GROWTH, NO_WAIT_S = 3, 1.0, 1.5, 0.05
"""Limits of "no back-off": retries, their total time in seconds, growth of the wait, shortest wait in
seconds.

Retries within the total time are misconduct unless the client backs off. It does if the last wait exceeds
both the shortest wait and the wait before times the growth.
"""
STORM_RETRIES, STORM_S = 5, 2.0
"""Retries of one body, and their time span in seconds, that make a retry storm."""
RETRY_WINDOW_S = 30.0
"""Longest time in seconds until a client should retry a stream that was cut off."""


class AuditedExchange(Struct, frozen=True):
    """A request and the start of its answer. Times are monotonic seconds."""

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
    """One kind of misconduct. `first` and `last` are ISO 8601 in UTC; the id is the last request's."""

    kind: str
    count: int = 0
    first: str = ""
    last: str = ""
    example_request_id: str = ""
    what: str = ""


class ClientReport(Struct):
    """The audit of one client since its first error or fault. `awaiting_retry` counts cut-off streams that
    may still be retried.
    """

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


class AuditTrail:
    """Audits each client from its first error or fault on; keeps nothing about other clients.

    `now` returns Unix seconds, for the report only.
    """

    limit_bytes = CLIENT_BYTES * MOST_CLIENTS + FAILED_BYTES * MOST_FAILED

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self.restart()

    def restart(self) -> None:
        self._since = self._timestamp()
        self._clients: LRUCache[str, ClientReport] = LRUCache(MOST_CLIENTS)
        self._failed: LRUCache[tuple[str, str, int | None], _Failed] = LRUCache(MOST_FAILED)
        """Failed bodies by client, route and hash."""
        self._not_before: LRUCache[tuple[str, str], tuple[float, float]] = LRUCache(MOST_FAILED)
        """Time of the first Retry-After, and the end of the last one, by client and route."""

    @property
    def size_bytes(self) -> int:
        return CLIENT_BYTES * len(self._clients) + FAILED_BYTES * len(self._failed)

    def begin(self, client: str, exchange: AuditedExchange) -> ClientReport | None:
        """Records a request at the start of its answer. Returns None for a client without a failure."""
        report = self._clients.get(client)
        if report is None:
            if exchange.status < 400 and not exchange.fault:
                return None
            report = self._clients[client] = ClientReport()
        report.requests += 1
        failed = self._failed.get((client, exchange.path, exchange.body))
        if failed is not None and exchange.arrived_s < failed.at_s:
            failed = None  # the request was on its way when the other one failed
        self._check_patience(report, client, exchange, failed is not None)
        if failed is not None:
            self._check_retry(report, exchange, failed)
        if exchange.status >= 400:
            report.errors[exchange.status] = report.errors.get(exchange.status, 0) + 1
        if exchange.fault:
            known = exchange.fault in report.faults or len(report.faults) < MOST_NAMES
            name = exchange.fault if known else OTHERS
            report.faults[name] = report.faults.get(name, 0) + 1
        return report

    def end(
        self, client: str, exchange: AuditedExchange, at_s: float, failed: bool, truncated: bool = False
    ) -> None:
        """Records the end of an answer, at `at_s` monotonic seconds."""
        key = client, exchange.path, exchange.body
        if not failed:
            self._failed.pop(key, None)
        elif exchange.body is not None:
            known = self._failed.get(key) or _Failed()
            known.at_s, known.request_id, known.truncated = at_s, exchange.request_id, truncated
            self._failed[key] = known

    def report(self, now_s: float, over: bool = False) -> AuditReport:
        """Reports all clients at `now_s` (monotonic). `over` closes the retry window of every stream."""
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
        self, report: ClientReport, client: str, exchange: AuditedExchange, is_retry: bool
    ) -> None:
        key, now_s = (client, exchange.path), exchange.answered_s
        told_s, over_s = self._not_before.get(key, (0.0, 0.0))
        early_s, since_s = over_s - exchange.arrived_s, exchange.arrived_s - told_s
        if early_s > EARLY_S and since_s >= 0 and (is_retry or since_s > ON_ITS_WAY_S):
            what = (
                f"It asked {exchange.path} {early_s:.2f} s before the Retry-After that it was told was over."
            )
            self._find(report, "retry_after_ignored", exchange.request_id, what)
        if exchange.retry_after_s is not None:
            self._not_before[key] = told_s if over_s > now_s else now_s, now_s + exchange.retry_after_s

    def _check_retry(self, report: ClientReport, exchange: AuditedExchange, failed: _Failed) -> None:
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
        now = datetime.fromtimestamp(self._now(), UTC)
        return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
