"""The memory of all requests in flight: their bodies, and the work that follows.

Limits of single requests do not bound their sum: 500 bodies of 4 MB are 2 GB. `RequestMemory`
bounds the sum, and a `Claim` is the share of one request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Self

import gevent
from greenlet import getcurrent, greenlet

from app.core.base.overload import MemoryExceededError, MemoryFullError
from config.machine import resident_bytes
from config.settings import ServerSettings

REQUESTS_SHARE = 0.25
"""Part of the memory of a process that all requests in flight may take."""
MAX_REQUEST_SHARE = 0.75
"""Largest part of the free memory that one request may claim.

The free memory is never used up by large requests, so that smaller ones still pass.
"""
INCOMPLETE_SHARE = 0.75
"""Part of the memory for requests that are still arriving; complete ones also get the rest."""
STALL_S = 1.0
"""Seconds without a byte after which an incomplete body gives way to smaller requests."""
RESIDENT_SHARE = 0.9
"""Part of the process's memory above which no request may claim any."""
UNCHECKED_BYTES = 1 << 18
"""Claims that are so small do not look at the resident memory, which takes 20 to 100 us."""
Receiver = tuple[greenlet, gevent.Timeout]
FULL = (
    "The server holds too many large requests: {} of {} MiB are in use (--server-memory). "
    "Please retry later."
)
TOO_LARGE = "The request needs {} MiB of memory, but all requests together have {} MiB."


class RequestMemory:
    """Counts the memory that requests have claimed, and rejects claims above `limit_bytes`.

    Limits of single requests do not bound their sum: six bodies of 3.9 MB for /tokenize, or 500
    half bodies, ended a worker with 1 GiB.

    `resident` returns the memory of this process, which may not grow above `process_bytes`: the
    claims are estimates. `now` is monotonic, in seconds.
    """

    def __init__(
        self,
        limit_bytes: int,
        process_bytes: int,
        resident: Callable[[], int],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._max_resident_bytes = int(RESIDENT_SHARE * process_bytes)
        self._resident = resident
        self._now = now
        self._receiving: dict[Claim, float] = {}
        """Claims of incomplete bodies, by the time of their latest bytes; the oldest first."""

    @classmethod
    def of(cls, server: ServerSettings) -> Self:
        """Returns the memory of all requests of a server's process."""
        limit_bytes = int(REQUESTS_SHARE * server.process_memory)
        return cls(limit_bytes, server.process_memory, resident_bytes)

    def claim(self) -> Claim:
        """Returns a claim of a new request, which is empty."""
        return Claim(self)

    def reserve(self, size: int, held: int, *, is_incomplete: bool = False) -> None:
        """Counts `size` more bytes of a request that holds `held` bytes.

        `is_incomplete`: the request is still arriving, so that a part of the memory is not for it.

        Raises:
            MemoryExceededError: the request needs more than all requests may have.
            MemoryFullError: there is no room now, although stalled bodies have given way.
        """
        total = held + size
        if total > self.limit_bytes:
            raise MemoryExceededError(TOO_LARGE.format(total >> 20, self.limit_bytes >> 20))
        limit_bytes = self.limit_bytes
        if is_incomplete:
            limit_bytes = int(INCOMPLETE_SHARE * limit_bytes)
        while not self._has_room(size, total, limit_bytes):
            if not self._drop_stalled(total):
                raise MemoryFullError(FULL.format(self.size_bytes >> 20, self.limit_bytes >> 20))
        self.size_bytes += size

    def _has_room(self, size: int, total: int, limit_bytes: int) -> bool:
        others_bytes = self.size_bytes + size - total
        if others_bytes and total > MAX_REQUEST_SHARE * (limit_bytes - others_bytes):
            return False
        return size < UNCHECKED_BYTES or size <= self._max_resident_bytes - self._resident()

    def _drop_stalled(self, size: int) -> bool:
        """Ends the largest request whose body has stalled.

        Returns False if each one holds at most `size` bytes: small requests stay.
        """
        late_s = self._now() - STALL_S
        stalled = [
            claim
            for claim, latest_s in self._receiving.items()
            if latest_s <= late_s and claim.size_bytes > size
        ]
        if stalled:
            max(stalled, key=attrgetter("size_bytes")).give_way()
        return bool(stalled)

    def note_progress(self, claim: Claim) -> None:
        """Notes that bytes of an incomplete body have arrived."""
        self._receiving.pop(claim, None)
        self._receiving[claim] = self._now()

    def forget(self, claim: Claim) -> None:
        """Notes that a body is complete, or that its request has ended."""
        self._receiving.pop(claim, None)


class Claim:
    """The memory of one request; released at the latest when the request is dropped."""

    __slots__ = ("_memory", "_receiver", "is_incomplete", "size_bytes")

    def __init__(self, memory: RequestMemory) -> None:
        self._memory = memory
        self.size_bytes = 0
        self.is_incomplete = False
        """True while the request is still arriving."""
        self._receiver: Receiver | None = None
        """The greenlet that waits for the body, and the exception that ends its wait."""

    def grow(self, size: int) -> None:
        """Claims `size` more bytes. Raises the errors of `RequestMemory.reserve`."""
        self._memory.reserve(size, self.size_bytes, is_incomplete=self.is_incomplete)
        self.size_bytes += size

    def cover(self, size: int) -> None:
        """Claims what is missing to `size` bytes in all; notes the progress of a body."""
        if self._receiver is not None:
            self._memory.note_progress(self)
        if size > self.size_bytes:
            self.grow(size - self.size_bytes)

    def release(self) -> None:
        """Gives all memory back; may be called again."""
        self.shrink(self.size_bytes)

    __del__ = release

    @contextmanager
    def lent(self, size: int) -> Iterator[None]:
        """Claims `size` bytes for the block."""
        self.grow(size)
        try:
            yield
        finally:
            self.shrink(size)

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """Marks the block as the wait for a body, whose bytes it claims by `cover`.

        Raises:
            MemoryFullError: the body has stalled, and other requests needed its memory.
        """
        memory = self._memory
        stalled = gevent.Timeout()  # never started: `give_way` throws it
        self._receiver = (getcurrent(), stalled)
        self.is_incomplete = True
        try:
            yield
        except gevent.Timeout as error:
            if error is not stalled:
                raise
            raise MemoryFullError(
                "The request body has stalled, and its memory was needed. Please retry later."
            ) from None
        finally:
            self._receiver = None
            self.is_incomplete = False
            memory.forget(self)

    def shrink(self, size: int) -> None:
        """Gives `size` bytes back."""
        size = min(size, self.size_bytes)
        self._memory.size_bytes -= size
        self.size_bytes -= size

    def give_way(self) -> None:
        """Gives all memory back, and ends the wait for the body."""
        self.release()
        self._memory.forget(self)
        gevent.get_hub().loop.run_callback(self._end_wait, self._receiver)

    def _end_wait(self, receiver: Receiver | None) -> None:
        if receiver is not None and receiver is self._receiver:
            receiver[0].throw(receiver[1])
