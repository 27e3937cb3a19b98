"""Audits how clients behave after errors and faults, as far as a server can see.

GET /admin/verdict returns the report.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypedDict

from cachetools import LRUCache
from msgspec import Struct, field

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


class FindingReport(TypedDict):
    """One kind of misconduct. `first` and `last` are ISO 8601 in UTC; the id is the last request's."""

    kind: str
    count: int
    first: str
    last: str
    example_request_id: str
    what: str


class ClientReport(TypedDict):
    """The audit of one client. `awaiting_retry` counts cut-off streams that may still be retried."""

    requests: int
    errors: dict[str, int]
    faults: dict[str, int]
    disconnects: int
    awaiting_retry: int
    findings: list[FindingReport]


class AuditReport(TypedDict):
    """The body of GET /admin/verdict. `since` is ISO 8601 in UTC; `clients` are keyed by name."""

    since: str
    clean: bool
    clients: dict[str, ClientReport]


class ClientAudit(Struct, eq=False):
    """Requests, errors and misconduct of one client since its first error or fault."""

    client: str
    requests: int = 0
    disconnects: int = 0
    errors: Counter[int] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    not_before: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Maps a route to the time of its first Retry-After, and the end of the last one."""
    findings: dict[str, FindingReport] = field(default_factory=dict)


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
        self._since_s = self._now()
        self._clients: LRUCache[str, ClientAudit] = LRUCache(MOST_CLIENTS)
        self._failed: LRUCache[tuple[str, str, int | None], _Failed] = LRUCache(MOST_FAILED)
        """Failed bodies by client, route and hash."""

    @property
    def size_bytes(self) -> int:
        return CLIENT_BYTES * len(self._clients) + FAILED_BYTES * len(self._failed)

    def begin(self, client: str, exchange: AuditedExchange) -> ClientAudit | None:
        """Records a request at the start of its answer. Returns None for a client without a failure."""
        audit = self._clients.get(client)
        if audit is None:
            if exchange.status < 400 and not exchange.fault:
                return None
            audit = self._clients[client] = ClientAudit(client)
        audit.requests += 1
        failed = self._failed.get((client, exchange.path, exchange.body))
        is_retry = failed is not None and exchange.arrived_s >= failed.at_s
        self._check_patience(audit, exchange, is_retry)
        if failed is not None and is_retry:
            self._check_retry(audit, exchange, failed)
        if exchange.status >= 400:
            audit.errors[exchange.status] += 1
        if exchange.fault:
            known = exchange.fault in audit.faults or len(audit.faults) < MOST_NAMES
            audit.faults[exchange.fault if known else OTHERS] += 1
        if exchange.retry_after_s is not None:
            now_s = exchange.answered_s
            said_s, over_s = audit.not_before.get(exchange.path, (now_s, now_s))
            audit.not_before[exchange.path] = (
                said_s if over_s > now_s else now_s,
                now_s + exchange.retry_after_s,
            )
        return audit

    def end(
        self,
        audit: ClientAudit,
        exchange: AuditedExchange,
        at_s: float,
        failed: bool,
        truncated: bool = False,
    ) -> None:
        """Records the end of an answer, at `at_s` monotonic seconds."""
        key = audit.client, exchange.path, exchange.body
        if not failed:
            self._failed.pop(key, None)
        elif exchange.body is not None:
            known = self._failed.get(key) or _Failed()
            known.at_s, known.request_id, known.truncated = at_s, exchange.request_id, truncated
            self._failed[key] = known

    def report(self, now_s: float, over: bool = False) -> AuditReport:
        """Reports all clients at `now_s` (monotonic). `over` closes the retry window of every stream."""
        awaiting: Counter[str] = Counter()
        for (client, path, _), failed in list(self._failed.items()):
            audit = self._clients.get(client)
            if audit is not None and failed.truncated:
                if over or now_s - failed.at_s >= RETRY_WINDOW_S:
                    self._find_not_retried(audit, path, failed)
                awaiting[client] += failed.truncated
        clients: dict[str, ClientReport] = {
            client: {
                "requests": audit.requests,
                "errors": {str(status): count for status, count in sorted(audit.errors.items())},
                "faults": dict(sorted(audit.faults.items())),
                "disconnects": audit.disconnects,
                "awaiting_retry": awaiting[client],
                "findings": list(audit.findings.values()),
            }
            for client, audit in self._clients.items()
        }
        clean = not any(report["findings"] for report in clients.values())
        return {"since": timestamp(self._since_s), "clean": clean, "clients": clients}

    def _check_patience(self, audit: ClientAudit, exchange: AuditedExchange, is_retry: bool) -> None:
        said_s, over_s = audit.not_before.get(exchange.path, (0.0, 0.0))
        early_s = over_s - exchange.arrived_s
        knew = is_retry or exchange.arrived_s - said_s > ON_ITS_WAY_S
        if early_s > EARLY_S and knew and exchange.arrived_s >= said_s:
            self._find(
                audit,
                "retry_after_ignored",
                exchange.request_id,
                f"It asked {exchange.path} {early_s:.2f} s before the Retry-After that it was told was over.",
            )

    def _check_retry(self, audit: ClientAudit, exchange: AuditedExchange, failed: _Failed) -> None:
        if failed.truncated and exchange.arrived_s - failed.at_s >= RETRY_WINDOW_S:
            self._find_not_retried(audit, exchange.path, failed)
        failed.truncated = False
        waits = failed.waits = (*failed.waits, exchange.arrived_s - failed.at_s)[-BACK_OFF_RETRIES:]
        retries = failed.retries = (*failed.retries, exchange.arrived_s)[-STORM_RETRIES:]
        are_hasty = len(waits) == BACK_OFF_RETRIES and sum(waits) < BACK_OFF_S
        if are_hasty and waits[-1] <= max(NO_WAIT_S, BACK_OFF_GROWTH * waits[-2]):
            self._find(
                audit,
                "no_backoff",
                exchange.request_id,
                f"It sent a body that had failed to {exchange.path} again {BACK_OFF_RETRIES} times "
                f"within {sum(waits):.2f} s, without waiting longer from time to time.",
            )
            failed.waits = ()
        span_s = retries[-1] - retries[0]
        if len(retries) == STORM_RETRIES and span_s < STORM_S:
            self._find(
                audit,
                "retry_storm",
                exchange.request_id,
                f"It retried one body at {exchange.path} {STORM_RETRIES} times within {span_s:.2f} s.",
            )
            failed.retries = ()

    def _find_not_retried(self, audit: ClientAudit, path: str, failed: _Failed) -> None:
        failed.truncated = False
        self._find(
            audit,
            "truncated_stream_not_retried",
            failed.request_id,
            f"A stream of {path} was cut off and not asked for again in time; "
            "whether the client noticed cannot be seen from here.",
        )

    def _find(self, audit: ClientAudit, kind: str, request_id: str, sentence: str) -> None:
        now, known = timestamp(self._now()), audit.findings.get(kind)
        audit.findings[kind] = {
            "kind": kind,
            "count": known["count"] + 1 if known else 1,
            "first": known["first"] if known else now,
            "last": now,
            "example_request_id": request_id,
            "what": sentence,
        }


def timestamp(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
