"""Audits how clients behave after errors and faults, as far as a server can see.

GET /admin/verdict returns the report.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypedDict, TypeVar

from cachetools import LRUCache
from msgspec import Struct

from app.base.clock.pause import pause

MOST_PATHS, MOST_FAILED = 16, 64
"""Most entries per client: endpoints with a Retry-After, and failed bodies."""
MOST_NAMES, OTHERS = 32, "others"
"""Most fault names counted separately; further names are counted as OTHERS."""
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
AUDIT_BYTES, FAILED_BYTES, PATH_BYTES, COUNT_BYTES, FINDING_BYTES = 1536, 1024, 320, 512, 1536
"""Most memory in bytes of an empty audit, and of each entry."""

LIMIT_BYTES = 4 * 2**20
"""Most memory of all audits, in bytes: about 1,000 clients, by last use."""
ENTRY_BYTES = 512
"""Memory of an entry without its audit, in bytes."""
SLICE = 32
"""Clients reported between two pauses."""

K = TypeVar("K")
V = TypeVar("V")


class Exchange(Struct, frozen=True):
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
    """The audit of one client."""

    requests: int
    errors: dict[str, int]
    faults: dict[str, int]
    disconnects: int
    awaiting_retry: int
    findings: list[FindingReport]


class _Failed(Struct):
    """A body that failed when last sent. `waits` and `retries` describe its latest retries."""

    at_s: float = 0.0
    request_id: str = ""
    truncated: bool = False
    waits: tuple[float, ...] = ()
    retries: tuple[float, ...] = ()


class ClientAudit:
    """Requests, errors and misconduct of one client since its first error or fault.

    `now` returns Unix seconds. Request ids have at most 128 characters, names of faults at most 64.
    """

    def __init__(self, client: str, now: Callable[[], float]) -> None:
        self.client = client
        self.requests = 0
        self.disconnects = 0
        self.errors: Counter[int] = Counter()
        self.faults: Counter[str] = Counter()
        self._now = now
        self._not_before: dict[str, tuple[float, float]] = {}
        """Maps an endpoint to the time of its first Retry-After, and the end of the last one."""
        self._failed: dict[tuple[str, int | None], _Failed] = {}
        """Failed bodies by endpoint and hash; the latest failure is last."""
        self._findings: dict[str, FindingReport] = {}

    @property
    def size_bytes(self) -> int:
        return (
            AUDIT_BYTES
            + FAILED_BYTES * len(self._failed)
            + PATH_BYTES * len(self._not_before)
            + COUNT_BYTES * (len(self.errors) + len(self.faults))
            + FINDING_BYTES * len(self._findings)
        )

    def begin(self, exchange: Exchange) -> None:
        """Records a request at the start of its answer."""
        self.requests += 1
        failed = self._failed.get((exchange.path, exchange.body)) if exchange.body is not None else None
        again = failed is not None and exchange.arrived_s >= failed.at_s
        self._check_patience(exchange, again)
        if failed is not None and again:
            self._check_retry(exchange, failed)
        if exchange.status >= 400:
            self.errors[exchange.status] += 1
        if exchange.fault:
            known = exchange.fault in self.faults or len(self.faults) < MOST_NAMES
            self.faults[exchange.fault if known else OTHERS] += 1
        if exchange.retry_after_s is not None:
            self._ask_to_wait(exchange.path, exchange.answered_s, exchange.retry_after_s)

    def end(self, exchange: Exchange, at_s: float, failed: bool, truncated: bool = False) -> None:
        key = exchange.path, exchange.body
        if not failed:
            self._failed.pop(key, None)
        elif exchange.body is not None:
            known = self._failed.get(key) or _Failed()
            known.at_s, known.request_id, known.truncated = at_s, exchange.request_id, truncated
            _put_last(self._failed, key, known, MOST_FAILED)

    def settle(self, now_s: float, window_s: float = RETRY_WINDOW_S) -> None:
        """Reports streams that were cut off at least `window_s` ago and not retried."""
        for (path, _), failed in self._failed.items():
            if failed.truncated and now_s - failed.at_s >= window_s:
                self._find_not_retried(path, failed)

    def report(self) -> ClientReport:
        """Returns the client's report; `awaiting_retry` counts cut-off streams that may still be retried."""
        return {
            "requests": self.requests,
            "errors": {str(status): count for status, count in sorted(self.errors.items())},
            "faults": dict(sorted(self.faults.items())),
            "disconnects": self.disconnects,
            "awaiting_retry": sum(failed.truncated for failed in self._failed.values()),
            "findings": [{**finding} for finding in self._findings.values()],
        }

    def _ask_to_wait(self, path: str, now_s: float, retry_after_s: float) -> None:
        said_s, over_s = self._not_before.get(path, (now_s, now_s))
        wait = said_s if over_s > now_s else now_s, now_s + retry_after_s
        _put_last(self._not_before, path, wait, MOST_PATHS)

    def _check_patience(self, exchange: Exchange, again: bool) -> None:
        said_s, over_s = self._not_before.get(exchange.path, (0.0, 0.0))
        early_s = over_s - exchange.arrived_s
        knew = again or exchange.arrived_s - said_s > ON_ITS_WAY_S
        if early_s > EARLY_S and knew and exchange.arrived_s >= said_s:
            self._find(
                "retry_after_ignored",
                exchange.request_id,
                f"It asked {exchange.path} {early_s:.2f} s before the Retry-After that it was told was over.",
            )

    def _check_retry(self, exchange: Exchange, failed: _Failed) -> None:
        if failed.truncated:
            if exchange.arrived_s - failed.at_s >= RETRY_WINDOW_S:
                self._find_not_retried(exchange.path, failed)
            failed.truncated = False
        waits = failed.waits = (*failed.waits, exchange.arrived_s - failed.at_s)[-BACK_OFF_RETRIES:]
        retries = failed.retries = (*failed.retries, exchange.arrived_s)[-STORM_RETRIES:]
        if len(waits) == BACK_OFF_RETRIES and sum(waits) < BACK_OFF_S and not _grows(waits):
            self._find(
                "no_backoff",
                exchange.request_id,
                f"It sent a body that had failed to {exchange.path} again {BACK_OFF_RETRIES} times "
                f"within {sum(waits):.2f} s, without waiting longer from time to time.",
            )
            failed.waits = ()
        span_s = retries[-1] - retries[0]
        if len(retries) == STORM_RETRIES and span_s < STORM_S:
            self._find(
                "retry_storm",
                exchange.request_id,
                f"It retried one body at {exchange.path} {STORM_RETRIES} times within {span_s:.2f} s.",
            )
            failed.retries = ()

    def _find_not_retried(self, path: str, failed: _Failed) -> None:
        failed.truncated = False
        self._find(
            "truncated_stream_not_retried",
            failed.request_id,
            f"A stream of {path} was cut off and not asked for again in time; "
            "whether the client noticed cannot be seen from here.",
        )

    def _find(self, kind: str, request_id: str, sentence: str) -> None:
        now, known = timestamp(self._now()), self._findings.get(kind)
        self._findings[kind] = {
            "kind": kind,
            "count": known["count"] + 1 if known else 1,
            "first": known["first"] if known else now,
            "last": now,
            "example_request_id": request_id,
            "what": sentence,
        }


def timestamp(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _grows(waits: tuple[float, ...]) -> bool:
    """True if the last wait is long enough, and clearly longer than the wait before."""
    return waits[-1] > max(NO_WAIT_S, BACK_OFF_GROWTH * waits[-2])


def _put_last(kept: dict[K, V], key: K, value: V, most: int) -> None:
    """Puts an entry at the end of `kept`, and drops the first ones beyond `most`."""
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > most:
        del kept[next(iter(kept))]


class AuditReport(TypedDict):
    """The body of GET /admin/verdict. `since` is ISO 8601 in UTC; `clients` are keyed by name."""

    since: str
    clean: bool
    clients: dict[str, ClientReport]


class AuditTrail:
    """Audits each client from its first error or fault on; keeps nothing about other clients.

    `now` returns Unix seconds, for the report only.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self.limit_bytes = LIMIT_BYTES
        self.restart()

    def restart(self) -> None:
        self._since_s = self._now()
        self._clients: LRUCache[str, ClientAudit]
        self._clients = LRUCache(LIMIT_BYTES, getsizeof=lambda audit: ENTRY_BYTES + audit.size_bytes)

    @property
    def size_bytes(self) -> int:
        return int(self._clients.currsize)

    def begin(self, client: str, exchange: Exchange) -> ClientAudit | None:
        """Records a request at the start of its answer. Returns None for a client without a failure."""
        audit = self._clients.get(client)
        if audit is None:
            if exchange.status < 400 and not exchange.fault:
                return None
            audit = ClientAudit(client, self._now)
        audit.begin(exchange)
        self._clients[client] = audit
        return audit

    def end(
        self, audit: ClientAudit, exchange: Exchange, at_s: float, failed: bool, truncated: bool = False
    ) -> None:
        audit.end(exchange, at_s, failed, truncated)
        if self._clients.get(audit.client) is audit:  # otherwise evicted from the cache
            self._clients[audit.client] = audit

    def report(self, now_s: float, over: bool = False) -> AuditReport:
        """Reports all clients at `now_s` (monotonic). `over` closes the retry window of every stream."""
        clients = {}
        for number, (client, audit) in enumerate(list(self._clients.items()), 1):
            audit.settle(now_s, 0.0 if over else RETRY_WINDOW_S)
            clients[client] = audit.report()
            if number % SLICE == 0:
                pause()
        clean = not any(report["findings"] for report in clients.values())
        return {"since": timestamp(self._since_s), "clean": clean, "clients": clients}
