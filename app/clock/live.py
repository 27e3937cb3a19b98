"""The real clock: CLOCK_MONOTONIC, with a kernel timer that wakes the gevent hub.

libev's own timers are 0.3-0.7 ms coarse; a timerfd is 0.02-0.1 ms (docs/benchmarks.md). Python
offers timerfd from 3.13 on, so it is reached through ctypes. Elsewhere a libev timer serves.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gevent

_CLOCK_MONOTONIC = 1
_TFD_FLAGS = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
_TFD_TIMER_ABSTIME = 1
_READ = 1


class LiveClock:
    """Monotonic time; the alarm rings in the gevent hub of the thread that first sets it.

    Nothing is opened before the first alarm, so a clock may be built before a worker forks.
    """

    now = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self._timer: TimerFd | LoopTimer | None = None

    def ring_at(self, moment_s: float, alarm: Callable[[], None]) -> None:
        if self._timer is None:
            self._timer = TimerFd() if sys.platform == "linux" else LoopTimer()
        self._timer.set(moment_s, alarm)


class TimerSpec(ctypes.Structure):
    """struct itimerspec of timerfd_settime(2); times in seconds and nanoseconds."""

    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "value_s", "value_ns")]


class TimerFd:
    """One kernel timer with a persistent watcher in the hub."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._settime = libc.timerfd_settime
        self._fd = libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_FLAGS)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._spec = TimerSpec()
        self._spec_ref = ctypes.byref(self._spec)
        self._alarm: Callable[[], None] = lambda: None
        self._pending = False
        self._watcher: Any = gevent.get_hub().loop.io(self._fd, _READ)
        self._watcher.start(self._ring)

    def set(self, moment_s: float, alarm: Callable[[], None]) -> None:
        self._alarm, self._pending = alarm, True
        seconds = int(moment_s)
        self._spec.value_s = seconds
        # All zeros would disarm the timer, hence the one nanosecond.
        self._spec.value_ns = int((moment_s - seconds) * 1e9) or 1
        self._settime(self._fd, _TFD_TIMER_ABSTIME, self._spec_ref, None)

    def _ring(self) -> None:
        self._pending = False
        self._alarm()
        if not self._pending:  # setting the timer anew makes it unreadable; else reading does
            with suppress(BlockingIOError):
                os.read(self._fd, 8)


class LoopTimer:
    """The portable alarm: a libev timer, about half a millisecond coarse."""

    def __init__(self) -> None:
        self._loop: Any = gevent.get_hub().loop
        self._watcher: Any = None

    def set(self, moment_s: float, alarm: Callable[[], None]) -> None:
        if self._watcher is not None:
            self._watcher.stop()
        self._watcher = self._loop.timer(max(0.0, moment_s - time.monotonic()))
        self._watcher.start(alarm)
