"""The timer wheel: calls the items that are due, slot by slot."""

import heapq
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from app.core.base.clock.clock import Clock

log = logging.getLogger(__name__)

# Items in the nearest slot of 0.8 ms are more exact than items at the end of a slot of 0.5 ms, and
# the loop sleeps less often.
SLOTS_PER_S = 1250
LEAD_S = 0.5 / SLOTS_PER_S
"""Maximum time in seconds that an item runs early or late: half a slot.

Clients hardly notice: 0.1 ms and more pass between the alarm and the first byte.
"""
ROUNDING = 1e-3
"""Tolerance in slots for due times that rounding moves before their slot."""
MAX_CALLS_PER_RING = 256
"""Maximum number of items that a ring runs; further ones wait, as sockets come first."""
MAX_RING_S = 0.005
"""Maximum duration of a ring, in seconds."""


class Timed(Protocol):
    """An item of the wheel."""

    def run_due(self, now_s: float) -> float | None:
        """Does all work due at `now_s`; returns the next due time, or None at the end."""

    def fail(self, error: Exception) -> None:
        """Called once after `run_due` raised `error`; `run_due` is not called again."""


class TimerWheel:
    """Calls each `Timed` at its due times, at most `LEAD_S` early. One per process.

    Slots are 0.8 ms wide and keyed by number; a heap orders the slots in use. One alarm is set for
    the middle of the first slot; a ring takes due items slot by slot. A sleep costs as much as two
    chunks, so items of one slot share a ring. Due times are absolute: a long stream never drifts
    (docs/benchmarks.md).
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wheel: dict[int, list[Timed]] = {}
        self._slots: list[int] = []
        """Heap of the slots in use."""
        self._armed: int | None = None
        """Slot that the alarm is set for."""
        self._ringing = False

    def __len__(self) -> int:
        return sum(len(slot) for slot in self._wheel.values())

    def add(self, due_s: float, timed: Timed) -> None:
        """Schedules `timed` at `due_s` (monotonic seconds), or as soon as possible."""
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

    def call_soon(self, function: Callable[[], None]) -> None:
        """Schedules a call of `function` in the next ring."""
        self.add(self._clock.now(), ScheduledCall(function))

    def ring(self) -> None:
        """Runs all due items, slot by slot, then sets the alarm for the next slot."""
        self._ringing = True
        now = self._clock.now
        slots = self._slots
        wheel = self._wheel
        budget = MAX_CALLS_PER_RING
        now_s = now() + LEAD_S
        last_s = now_s + MAX_RING_S
        while slots and budget > 0 and now_s < last_s:
            if slots[0] > now_s * SLOTS_PER_S + ROUNDING:
                break
            slot = heapq.heappop(slots)
            waiting = wheel.pop(slot)
            for done, timed in enumerate(waiting):
                if done == budget or now_s >= last_s:
                    self._put_back(slot, waiting[done:])
                    break
                try:
                    due_s = timed.run_due(now_s)
                except Exception as error:
                    # One broken stream must not stop the others.
                    log.exception("a timer callback failed")
                    with suppress(Exception):
                        timed.fail(error)
                else:
                    if due_s is not None:
                        next_slot = wheel.get(int(due_s * SLOTS_PER_S) + 1)
                        if next_slot is not None:  # the usual case when there are many streams
                            next_slot.append(timed)
                        else:
                            self.add(due_s, timed)
                now_s = now() + LEAD_S
            budget -= len(waiting)  # ends the ring if a part of the slot was put back
        self._ringing = False
        self._armed = None
        if slots:
            self._armed = slots[0]
            self._clock.ring_at(slots[0] / SLOTS_PER_S - LEAD_S, self.ring)

    def _put_back(self, slot: int, items: list[Timed]) -> None:
        """Puts items to the front of their slot, for the next ring."""
        if slot not in self._wheel:
            self._wheel[slot] = []
            heapq.heappush(self._slots, slot)
        self._wheel[slot][:0] = items


class ScheduledCall:
    """A wheel item for a function that is called once."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def run_due(self, now_s: float) -> None:
        """Calls the function."""
        self._function()

    def fail(self, error: Exception) -> None:
        """Does nothing: the wheel logs the error."""
