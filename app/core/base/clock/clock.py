"""The real clock; `app.shared.virtual_clock` has the one of tests.

The real alarm is a kernel timer that wakes the gevent hub. libev's own timers are 0.3-0.7 ms
coarse; a timerfd is 0.02-0.1 ms (docs/benchmarks.md). Python has timerfd since 3.13, so ctypes
calls it. Other systems use a libev timer.
"""

import ctypes
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import gevent

CLOCK_MONOTONIC = 1
TFD_FLAGS = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
TFD_TIMER_ABSTIME = 1
READ_EVENT = 1
"""Event of gevent's loop for a readable file."""

Alarm = Callable[[], None]


class Clock(Protocol):
    """A monotonic clock in seconds with one alarm."""

    def now(self) -> float:
        """Returns seconds since an arbitrary start; never goes back."""

    def ring_at(self, moment_s: float, alarm: Alarm) -> None:
        """Calls `alarm` once at `moment_s`. A later call replaces an earlier one."""


class Watcher(Protocol):
    """A watcher of gevent's loop, which ships no types."""

    @property
    def active(self) -> bool:
        """True while the watcher is started."""

    def start(self, callback: Callable[..., None], *args: object) -> None:
        """Starts the watcher, which calls `callback` with `args`."""

    def again(self, callback: Callable[..., None]) -> None:
        """Restarts a timer."""

    def stop(self) -> None:
        """Stops the watcher."""

    def close(self) -> None:
        """Closes the watcher for good."""


class TimerSpec(ctypes.Structure):
    """struct itimerspec of timerfd_settime(2); times in seconds and nanoseconds."""

    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "value_s", "value_ns")]


class LiveClock:
    """CLOCK_MONOTONIC. The alarm rings in the gevent hub of the thread that sets it first.

    The first alarm opens the timer, so a clock may be created before a worker forks.
    """

    now = staticmethod(time.monotonic)
    kernel_timer = sys.platform == "linux"
    """False for a timer of libev, about half a millisecond coarse."""

    def __init__(self) -> None:
        self._alarm: Alarm = _no_alarm
        self._pending = False
        self._watcher: Watcher | None = None
        self._spec = TimerSpec()
        self._fd = -1

    def ring_at(self, moment_s: float, alarm: Alarm) -> None:
        """See `Clock`."""
        self._alarm = alarm
        self._pending = True
        if not self.kernel_timer:
            if self._watcher is not None:
                self._watcher.stop()
            self._watcher = gevent.get_hub().loop.timer(max(0.0, moment_s - time.monotonic()))
            self._watcher.start(self._ring)
            return
        if self._watcher is None:
            self._open()
        seconds = int(moment_s)
        self._spec.value_s = seconds
        # All zeros would disarm the timer, hence the one nanosecond.
        self._spec.value_ns = int((moment_s - seconds) * 1e9) or 1
        self._settime(*self._args)

    def _open(self) -> None:
        libc = ctypes.PyDLL(None)  # holds the GIL: the calls return at once
        self._fd = fd = libc.timerfd_create(CLOCK_MONOTONIC, TFD_FLAGS)
        if fd < 0:
            raise OSError("timerfd_create failed")
        self._settime = libc.timerfd_settime
        # Prepared arguments that ctypes need not convert: the timer is set thousands of times a
        # second.
        self._args = (
            ctypes.c_int(fd),
            ctypes.c_int(TFD_TIMER_ABSTIME),
            ctypes.byref(self._spec),
            None,
        )
        self._watcher = gevent.get_hub().loop.io(fd, READ_EVENT)
        self._watcher.start(self._ring)

    def _ring(self) -> None:
        self._pending = False
        self._alarm()
        # Setting the timer makes it unreadable; otherwise it has to be read.
        if not self._pending and self._fd >= 0:
            with suppress(BlockingIOError):
                os.read(self._fd, 8)


def _no_alarm() -> None:
    pass
