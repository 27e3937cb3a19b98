"""How clients behave after errors and faults: what they did wrong, as far as a server can see.

It is the report of GET /admin/verdict.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypedDict, TypeVar

from cachetools import LRUCache
from msgspec import Struct

from app.clock.pause import pause

MOST_PATHS, MOST_FAILED = 16, 64
"""Remembered per client: endpoints that said Retry-After, and bodies that failed."""
MOST_NAMES, OTHERS = 32, "others"
"""Names of faults that are counted one by one."""
EARLY_S = 0.05
"""So much too early is in time: timers are coarse."""
ON_ITS_WAY_S = 0.1
"""Another request that comes so soon after a Retry-After was perhaps sent before it arrived."""
BACK_OFF_RETRIES, BACK_OFF_S, BACK_OFF_GROWTH, NO_WAIT_S = 3, 1.0, 1.5, 0.05
"""Retries that come within so many seconds altogether, the last wait not longer by this factor than the one
before, or no wait at all, are without back-off."""
STORM_RETRIES, STORM_S = 5, 2.0
"""So many retries of one body within so many seconds are a storm."""
RETRY_WINDOW_S = 30.0
"""A client that noticed that its stream was cut off is expected to be back within this time."""
AUDIT_BYTES, FAILED_BYTES, PATH_BYTES, COUNT_BYTES, FINDING_BYTES = 1536, 1024, 320, 512, 1536
"""Most memory of an audit that has seen nothing yet, and of each thing that it remembers."""

LIMIT_BYTES = 4 * 2**20
"""Memory of all audits: about 1,000 clients, those that were seen last, are remembered."""
ENTRY_BYTES = 512
"""Memory of an entry without its audit."""
SLICE = 32
"""Clients that are reported at a time."""

K = TypeVar("K")
V = TypeVar("V")


class Exchange(Struct, frozen=True):
    """A request and the beginning of its answer. Moments are monotonic seconds."""

    path: str
    body: int | None
    """A hash of the body; None when it was not read."""
    request_id: str
    arrived_s: float
    answered_s: float
    status: int
    retry_after_s: float | None = None
    fault: str = ""
    """Name of the fault that was served."""


class FindingReport(TypedDict):
    """One kind of misconduct; `first` and `last` are ISO 8601 in UTC, the id is that of the last time."""

    kind: str
    count: int
    first: str
    last: str
    example_request_id: str
    what: str


class ClientReport(TypedDict):
    """A client's audit as JSON has it."""

    requests: int
    errors: dict[str, int]
    faults: dict[str, int]
    disconnects: int
    awaiting_retry: int
    findings: list[FindingReport]


class _Failed(Struct):
    """A body that failed the last time it came; `waits` and `retries` are of the last few retries."""

    at_s: float = 0.0
    request_id: str = ""
    truncated: bool = False
    waits: tuple[float, ...] = ()
    retries: tuple[float, ...] = ()


class ClientAudit:
    """What one client asked and got since its first error or fault, and what was found wrong with it.

    `client` is its name, `now` gives Unix seconds. Request ids of at most 128 characters are expected, and
    names of faults of at most 64.
    """

    def __init__(self, client: str, now: Callable[[], float]) -> None:
        self.client = client
        self.requests = 0
        self.disconnects = 0
        self.errors: Counter[int] = Counter()
        self.faults: Counter[str] = Counter()
        self._now = now
        self._not_before: dict[str, tuple[float, float]] = {}
        """Endpoint to when it first said Retry-After, and when the last one is over."""
        self._failed: dict[tuple[str, int | None], _Failed] = {}
        """By endpoint and body, the one that failed last at the end."""
        self._findings: dict[str, FindingReport] = {}
        """At most one of each kind."""

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
        """Notes a request whose answer begins."""
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
        """Streams that were cut off `window_s` ago or longer will not be asked for again."""
        for (path, _), failed in self._failed.items():
            if failed.truncated and now_s - failed.at_s >= window_s:
                self._find_not_retried(path, failed)

    def report(self) -> ClientReport:
        """All that is known; `awaiting_retry` counts streams that were cut off and may be asked for again."""
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
    """The last wait is a real one and clearly longer than the one before."""
    return waits[-1] > max(NO_WAIT_S, BACK_OFF_GROWTH * waits[-2])


def _put_last(kept: dict[K, V], key: K, value: V, most: int) -> None:
    """Put an entry at the end of `kept`, which drops its first ones beyond `most`."""
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > most:
        del kept[next(iter(kept))]


class AuditReport(TypedDict):
    """The body of GET /admin/verdict; `since` is ISO 8601 in UTC, clients are by name."""

    since: str
    clean: bool
    clients: dict[str, ClientReport]


class AuditTrail:
    """Knows each client from its first error or fault on; before that nothing is kept of it.

    `now` gives Unix seconds, for the report only.
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
        """Notes a request whose answer begins."""
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
        if self._clients.get(audit.client) is audit:  # else it is forgotten
            self._clients[audit.client] = audit

    def report(self, now_s: float, over: bool = False) -> AuditReport:
        """All that is known at `now_s` (monotonic); `over`: what was not retried by now never will be."""
        clients = {}
        for number, (client, audit) in enumerate(list(self._clients.items()), 1):
            audit.settle(now_s, 0.0 if over else RETRY_WINDOW_S)
            clients[client] = audit.report()
            if number % SLICE == 0:
                pause()
        clean = not any(report["findings"] for report in clients.values())
        return {"since": timestamp(self._since_s), "clean": clean, "clients": clients}
