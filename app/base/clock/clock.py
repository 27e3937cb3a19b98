"""Clocks: the real one, and a virtual one for tests; the wheel that calls what is due; and random
streams.

The real alarm is a kernel timer that wakes the gevent hub. libev's own timers are 0.3-0.7 ms
coarse; a timerfd is 0.02-0.1 ms (docs/benchmarks.md). Python has timerfd since 3.13, so ctypes
calls it. Other systems use a libev timer.
"""

import ctypes
import heapq
import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Protocol

import gevent

_CLOCK_MONOTONIC = 1
_TFD_FLAGS = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
_TFD_TIMER_ABSTIME = 1
_READ = 1

Alarm = Callable[[], None]
log = logging.getLogger(__name__)


class Clock(Protocol):
    """A monotonic clock in seconds with one alarm."""

    def now(self) -> float:
        """Returns seconds since an arbitrary start; never goes back."""

    def ring_at(self, moment_s: float, alarm: Alarm) -> None:
        """Calls `alarm` once at `moment_s`. A later call replaces an earlier one."""


class VirtualClock:
    """A clock that stands still until advanced: an hour of traffic in a second."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now = start_s
        self._moment: float | None = None
        self._alarm: Alarm = lambda: None

    def now(self) -> float:
        return self._now

    def ring_at(self, moment_s: float, alarm: Alarm) -> None:
        self._moment, self._alarm = moment_s, alarm

    def advance(self, seconds: float) -> None:
        """Advances by `seconds`, ringing each alarm on the way at its time."""
        end = self._now + seconds
        while self._moment is not None and self._moment <= end:
            self._now = max(self._now, self._moment)
            self._moment = None
            self._alarm()
        self._now = end


class Watcher(Protocol):
    """A watcher of gevent's loop, which ships no types."""

    @property
    def active(self) -> bool: ...

    def start(self, callback: Callable[..., None], *args: object) -> None: ...

    def again(self, callback: Callable[..., None]) -> None:
        """Restarts a timer."""

    def stop(self) -> None: ...

    def close(self) -> None: ...


class TimerSpec(ctypes.Structure):
    """struct itimerspec of timerfd_settime(2); times in seconds and nanoseconds."""

    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "value_s", "value_ns")]


class LiveClock:
    """CLOCK_MONOTONIC. The alarm rings in the gevent hub of the thread that sets it first.

    The first alarm opens the timer, so a clock may be made before a worker forks.
    """

    now = staticmethod(time.monotonic)
    kernel_timer = sys.platform == "linux"
    """False for a timer of libev, about half a millisecond coarse."""

    def __init__(self) -> None:
        self._alarm: Alarm = lambda: None
        self._pending = False
        self._watcher: Watcher | None = None
        self._spec = TimerSpec()
        self._fd = -1

    def ring_at(self, moment_s: float, alarm: Alarm) -> None:
        self._alarm, self._pending = alarm, True
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
        libc = ctypes.PyDLL(None)  # the calls return at once, so they keep the GIL
        self._fd = fd = libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_FLAGS)
        if fd < 0:
            raise OSError("timerfd_create failed")
        self._settime = libc.timerfd_settime
        # Prepared arguments that ctypes need not convert: the timer is set thousands of times a
        # second.
        self._args = (
            ctypes.c_int(fd),
            ctypes.c_int(_TFD_TIMER_ABSTIME),
            ctypes.byref(self._spec),
            None,
        )
        self._watcher = gevent.get_hub().loop.io(fd, _READ)
        self._watcher.start(self._ring)

    def _ring(self) -> None:
        self._pending = False
        self._alarm()
        if (
            not self._pending and self._fd >= 0
        ):  # setting the timer makes it unreadable; otherwise read it
            with suppress(BlockingIOError):
                os.read(self._fd, 8)


class Streams:
    """Makes the random streams of one rank: draws of one feature do not change those of another.

    The same seed, rank and name give the same stream. Without a seed every stream is different.
    """

    def __init__(self, seed: int | None, rank: int) -> None:
        self._seed, self._rank = seed, rank

    def __call__(self, name: str) -> Random:
        return Random(None if self._seed is None else f"{self._seed} of rank {self._rank}: {name}")


SLOTS_PER_S = 1250
LEAD_S = 0.5 / SLOTS_PER_S
"""Most time in seconds that a turn is early or late: half a slot.

Clients hardly see an early turn: 0.1 ms and more pass between the alarm and the first byte.
"""
ROUNDING = 1e-3
"""Tolerance in slots for due times that rounding moves before their slot."""
MOST_PER_RING, LONGEST_RING_S = 256, 0.005
"""Most turns of a ring, and longest ring in seconds.

The rest waits for the next ring: sockets come first.
"""


class Timed(Protocol):
    """An item of the wheel."""

    def turn(self, now_s: float) -> float | None:
        """Does all work due at `now_s`; returns the next due time, or None at the end."""

    def fail(self, error: Exception) -> None:
        """Called once after `turn` raised `error`; `turn` is not called again."""


class TimerWheel:
    """Calls each `Timed` at its due times, at most `LEAD_S` early. One per process.

    Slots are 0.8 ms wide and keyed by number; a heap orders the slots in use. One alarm is set for
    the middle of the first slot; a ring takes due items slot by slot. A sleep costs as much as two
    chunks. So items of one slot share a ring. Due times are absolute: a long stream never drifts
    (docs/benchmarks.md).
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wheel: dict[int, list[Timed]] = {}
        self._slots: list[int] = []
        self._armed: int | None = None
        self._ringing = False

    def __len__(self) -> int:
        return sum(len(slot) for slot in self._wheel.values())

    def add(self, due_s: float, timed: Timed) -> None:
        """Schedules a turn of `timed` at `due_s` (monotonic seconds) or as soon after as possible."""
        slot = int(due_s * SLOTS_PER_S) + 1
        waiting = self._wheel.get(slot)
        if waiting is not None:
            waiting.append(timed)
            return
        self._wheel[slot] = [timed]
        heapq.heappush(self._slots, slot)
        if not self._ringing and (self._armed is None or slot < self._armed):
            self._armed = slot
            self._clock.ring_at(slot / SLOTS_PER_S - LEAD_S, self.ring)

    def call_soon(self, work: Callable[[], None]) -> None:
        self.add(self._clock.now(), Once(work))

    def ring(self) -> None:
        """Runs all due turns, slot by slot, then sets the alarm for the next slot."""
        self._ringing = True
        budget, now, slots, wheel = MOST_PER_RING, self._clock.now, self._slots, self._wheel
        now_s = now() + LEAD_S
        last_s = now_s + LONGEST_RING_S
        while (
            slots and budget > 0 and now_s < last_s and slots[0] <= now_s * SLOTS_PER_S + ROUNDING
        ):
            slot = heapq.heappop(slots)
            waiting = wheel.pop(slot)
            for done, timed in enumerate(waiting):
                if (
                    not budget or now_s >= last_s
                ):  # the rest goes to the front of the slot for the next ring
                    if slot not in wheel:
                        wheel[slot] = []
                        heapq.heappush(slots, slot)
                    wheel[slot][:0] = waiting[done:]
                    break
                budget -= 1
                try:
                    due_s = timed.turn(now_s)
                except Exception as error:
                    # One broken stream must not stop the others.
                    log.exception("a paced turn failed")
                    with suppress(Exception):
                        timed.fail(error)
                else:
                    if due_s is not None:
                        later = wheel.get(int(due_s * SLOTS_PER_S) + 1)
                        if later is not None:  # the usual case when there are many streams
                            later.append(timed)
                        else:
                            self.add(due_s, timed)
                now_s = now() + LEAD_S
        self._ringing = False
        self._armed = None
        if slots:
            self._armed = slots[0]
            self._clock.ring_at(slots[0] / SLOTS_PER_S - LEAD_S, self.ring)


class Once:
    """A wheel item for a function that is called once."""

    __slots__ = ("_work",)

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def turn(self, now_s: float) -> None:
        self._work()

    def fail(self, error: Exception) -> None:
        """Does nothing: the wheel logs the error."""
