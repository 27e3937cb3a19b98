"""How one client behaves after errors and faults: what it did wrong, as far as a server can see."""

from __future__ import annotations

from collections import Counter, deque

from cachetools import LRUCache
from msgspec import Struct

from app.faults.findings import Findings

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


class _Failed:
    """A body that failed the last time it came."""

    __slots__ = ("at_s", "request_id", "retries", "truncated", "waits")

    def __init__(self) -> None:
        self.at_s = 0.0
        self.request_id = ""
        self.truncated = False
        self.waits: deque[float] = deque(maxlen=BACK_OFF_RETRIES)
        self.retries: deque[float] = deque(maxlen=STORM_RETRIES)


class ClientAudit:
    """What one client asked and got since its first error or fault, and what was found wrong with it."""

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        self.requests = 0
        self.disconnects = 0
        self.errors: Counter[int] = Counter()
        self.faults: Counter[str] = Counter()
        self._not_before: LRUCache[str, tuple[float, float]] = LRUCache(MOST_PATHS)
        """Endpoint to when it first said Retry-After, and when the last one is over."""
        self._failed: LRUCache[tuple[str, int | None], _Failed] = LRUCache(MOST_FAILED)

    @property
    def awaiting_retry(self) -> int:
        """Streams that were cut off and may still be asked for again."""
        return sum(failed.truncated for failed in self._failed.values())

    def asked(self, exchange: Exchange) -> None:
        """A request came, and its answer begins."""
        self.requests += 1
        failed = self._failed.get((exchange.path, exchange.body)) if exchange.body is not None else None
        again = failed is not None and exchange.arrived_s >= failed.at_s
        self._look_at_patience(exchange, again)
        if failed is not None and again:
            self._look_at_retry(exchange, failed)
        if exchange.status >= 400:
            self.errors[exchange.status] += 1
        if exchange.fault:
            known = exchange.fault in self.faults or len(self.faults) < MOST_NAMES
            self.faults[exchange.fault if known else OTHERS] += 1
        if exchange.retry_after_s is not None:
            self._tell_to_wait(exchange.path, exchange.answered_s, exchange.retry_after_s)

    def got(self, exchange: Exchange, at_s: float, failed: bool, truncated: bool = False) -> None:
        """The answer has ended at `at_s`; `truncated` tells that it was a stream and was cut off."""
        key = exchange.path, exchange.body
        if not failed:
            self._failed.pop(key, None)
        elif exchange.body is not None:
            known = self._failed.setdefault(key, _Failed())
            known.at_s, known.request_id, known.truncated = at_s, exchange.request_id, truncated

    def settle(self, now_s: float, window_s: float = RETRY_WINDOW_S) -> None:
        """Streams that were cut off `window_s` ago or longer will not be asked for again."""
        for (path, _), failed in list(self._failed.items()):
            if failed.truncated and now_s - failed.at_s >= window_s:
                self._not_retried(path, failed)

    def _tell_to_wait(self, path: str, now_s: float, retry_after_s: float) -> None:
        said_s, over_s = self._not_before.get(path, (now_s, now_s))
        self._not_before[path] = said_s if over_s > now_s else now_s, now_s + retry_after_s

    def _look_at_patience(self, exchange: Exchange, again: bool) -> None:
        said_s, over_s = self._not_before.get(exchange.path, (0.0, 0.0))
        early_s = over_s - exchange.arrived_s
        told = again or exchange.arrived_s - said_s > ON_ITS_WAY_S
        if early_s > EARLY_S and told and exchange.arrived_s >= said_s:
            self.findings.add(
                "retry_after_ignored",
                exchange.request_id,
                f"It asked {exchange.path} {early_s:.2f} s before the Retry-After that it was told was over.",
            )

    def _look_at_retry(self, exchange: Exchange, failed: _Failed) -> None:
        if failed.truncated:
            if exchange.arrived_s - failed.at_s >= RETRY_WINDOW_S:
                self._not_retried(exchange.path, failed)
            failed.truncated = False
        waits, retries = failed.waits, failed.retries
        waits.append(exchange.arrived_s - failed.at_s)
        retries.append(exchange.arrived_s)
        if len(waits) == BACK_OFF_RETRIES and sum(waits) < BACK_OFF_S and not _grows(waits):
            self.findings.add(
                "no_backoff",
                exchange.request_id,
                f"It sent a body that had failed to {exchange.path} again {BACK_OFF_RETRIES} times "
                f"within {sum(waits):.2f} s, without waiting longer from time to time.",
            )
            waits.clear()
        span_s = retries[-1] - retries[0]
        if len(retries) == STORM_RETRIES and span_s < STORM_S:
            self.findings.add(
                "retry_storm",
                exchange.request_id,
                f"It retried one body at {exchange.path} {STORM_RETRIES} times within {span_s:.2f} s.",
            )
            retries.clear()

    def _not_retried(self, path: str, failed: _Failed) -> None:
        failed.truncated = False
        self.findings.add(
            "truncated_stream_not_retried",
            failed.request_id,
            f"A stream of {path} was cut off and not asked for again in time; "
            "whether the client noticed cannot be seen from here.",
        )


def _grows(waits: deque[float]) -> bool:
    """The last wait is a real one and clearly longer than the one before."""
    return waits[-1] > max(NO_WAIT_S, BACK_OFF_GROWTH * waits[-2])
