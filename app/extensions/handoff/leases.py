"""Blocks that a prefill pod holds for decode pods, each under a lease that ends by itself."""

from __future__ import annotations

import logging
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf

from msgspec import Struct

from app.core.base.clock.timer_wheel import TimerWheel
from app.extensions.handoff.counters import Counters
from app.extensions.handoff.messages import Done, Heartbeat, LeaseMessage, Read

EXTENSION = 2 / 3
"""A heartbeat extends a lease to this share of its first duration from now, as in vLLM 0.32."""
MAX_LEASES = 10_000
"""Maximum number of leases. Without a KV cache no block limits them: the oldest one ends then."""
NOT_HELD = "the blocks are not held: they have been read, or their lease has ended"
SECOND_READ = "another request reads the blocks"
ROUNDING_S = 2e-6
"""Maximum time that the wheel is too early by rounding, in seconds."""
MAX_STALE = 64
"""Maximum stale entries among the ends, beyond the number of leases, before a cleanup."""
log = logging.getLogger(__name__)


class Lease(Struct):
    """The blocks of one prompt; `release` frees them, once."""

    release: Callable[[], None]
    end_s: float
    reader: str = ""
    """Number of the only read; empty before it."""


class Leases:
    """The leases of one engine, by the id of the request. The wheel calls `run_due` at their ends.

    Blocks are released exactly once: by the notification of their reader, or at the end of the
    lease.
    """

    def __init__(
        self,
        wheel: TimerWheel,
        now: Callable[[], float],
        duration_s: float,
        counters: Counters,
    ) -> None:
        self._wheel = wheel
        self._now = now
        self._duration_s = duration_s
        self._counters = counters
        self._leases: dict[str, Lease] = {}
        self._ends: list[tuple[float, str]] = []
        """A heap of ends and ids. A lease that was extended, or has ended, is there, too."""
        self._alarm_s = inf
        """Time of the next `run_due`."""

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._leases

    def hold(self, request_id: str, release: Callable[[], None]) -> None:
        """Starts a lease; `release` frees its blocks."""
        if len(self._leases) >= MAX_LEASES:
            self._expire(next(iter(self._leases)))
        replaced = self._leases.pop(request_id, None)
        end_s = self._now() + self._duration_s
        self._leases[request_id] = Lease(release, end_s)
        self._watch(request_id, end_s)
        # Last, because released blocks start prompts: one may have this id, and end at once.
        if replaced is not None:
            self._end(request_id, replaced)

    def respond(self, message: LeaseMessage) -> str:
        """Carries out a message of a decode pod; returns the problem, or an empty text."""
        if isinstance(message, Read):
            return self._read(message)
        if isinstance(message, Done):
            return self.release(message)
        self._extend(message)
        return ""

    def release(self, message: Done) -> str:
        """Frees blocks that their reader needs no more; returns the problem, or an empty text."""
        lease = self._leases.get(message.request_id)
        if lease is None:
            self._counters.notified_late()
            return NOT_HELD
        if lease.reader and lease.reader != message.reader:
            return SECOND_READ
        del self._leases[message.request_id]
        lease.release()
        return ""

    def _read(self, message: Read) -> str:
        lease = self._leases.get(message.request_id)
        if lease is None:
            return NOT_HELD
        if lease.reader and lease.reader != message.reader:
            return SECOND_READ
        lease.reader = message.reader
        self._extend(Heartbeat([message.request_id]))
        return ""

    def _extend(self, message: Heartbeat) -> None:
        end_s = self._now() + self._duration_s * EXTENSION
        for request_id in message.request_ids:
            lease = self._leases.get(request_id)
            if lease is not None:
                lease.end_s = max(lease.end_s, end_s)

    def _watch(self, request_id: str, end_s: float) -> None:
        heappush(self._ends, (end_s, request_id))
        if len(self._ends) > 2 * len(self._leases) + MAX_STALE:
            self._ends = [(lease.end_s, name) for name, lease in self._leases.items()]
            heapify(self._ends)
        if end_s < self._alarm_s:
            self._alarm_s = end_s
            self._wheel.add(end_s, self)

    def run_due(self, now_s: float) -> float | None:
        """Ends the leases that are due; returns the time of the next end."""
        if now_s < self._alarm_s - ROUNDING_S:
            return None  # a stale entry of the wheel
        # Released blocks start prompts, whose leases may replace the heap.
        while self._ends and self._ends[0][0] <= now_s:
            _, request_id = heappop(self._ends)
            lease = self._leases.get(request_id)
            if lease is None:
                continue
            if lease.end_s > now_s:
                heappush(self._ends, (lease.end_s, request_id))
            else:
                self._expire(request_id)
        if not self._ends:
            self._alarm_s = inf
            return None
        self._alarm_s = self._ends[0][0]
        return self._alarm_s

    def fail(self, error: Exception) -> None:
        """Watches the ends again after a turn that raised an error."""
        self._alarm_s = self._now() + self._duration_s
        self._wheel.add(self._alarm_s, self)

    def _expire(self, request_id: str) -> None:
        self._end(request_id, self._leases.pop(request_id))

    def _end(self, request_id: str, lease: Lease) -> None:
        self._counters.expired()
        log.warning("the lease for request %s has expired; releasing its blocks", request_id)
        lease.release()
