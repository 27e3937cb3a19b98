"""The memory allocator of glibc: which freed memory returns to the system, and when."""

import ctypes
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gevent

from config.machine import resident_bytes

M_MMAP_THRESHOLD = -3
"""Parameter of glibc's `mallopt`: size above which freed memory returns to the system."""
MMAP_THRESHOLD_BYTES = 1 << 17
"""Value of that parameter.

glibc would raise it with each such block: 40 MiB stayed allocated after a prompt of 2 MB
(measured).
"""
GROWTH_BYTES = 8 << 20
"""Growth of the resident memory since the start from which on an idle worker trims the heap.

Not since the last trim: expiring entries of an index free memory minutes after a burst. A trim that
finds nothing takes a millisecond.
"""
BUSY_GROWTH_BYTES = 64 << 20
CALLS_PER_TRIM = 10
"""The same for a busy worker, and the calls from one trim to the next: one may take 70 ms."""


class Allocator:
    """Tunes glibc's allocator, and returns free memory within its heaps to the system.

    Smaller blocks than `MMAP_THRESHOLD_BYTES` come from heaps, which shrink only at their end: 89
    MiB stayed allocated after a chat of 100,000 messages (measured). Other C libraries, such as
    musl, have neither function, so nothing is done there.
    """

    def __init__(self, library: Any = None, resident: Callable[[], int] = resident_bytes) -> None:
        self._library = library or ctypes.CDLL(None)
        self._resident = resident
        self._tuned_bytes = 0
        """Resident memory at the start."""
        self._calls = CALLS_PER_TRIM
        """Calls since the last trim."""

    def tune(self) -> None:
        """Sets the limit from which on blocks return to the system by themselves."""
        with suppress(AttributeError):
            self._library.mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        self._tuned_bytes = self._resident()

    def trim(self, is_busy: bool = False) -> None:
        """Trims the heap if the memory has grown.

        Runs in a native thread, because returning 90 MiB takes up to 70 ms; meanwhile, the event
        loop waits only if it needs a block of more than 512 bytes from the same heap.
        """
        self._calls += 1
        growth_bytes = BUSY_GROWTH_BYTES if is_busy else GROWTH_BYTES
        if self._calls < CALLS_PER_TRIM or self._resident() < self._tuned_bytes + growth_bytes:
            return
        self._calls = 0
        with suppress(AttributeError):
            gevent.get_hub().threadpool.apply(self._library.malloc_trim, (0,))
