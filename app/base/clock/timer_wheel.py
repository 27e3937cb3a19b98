"""Timer wheel: one per process, calls everything that is due at its time.

Slots are 0.8 ms wide and keyed by number; a heap orders the slots in use. One alarm is set for the middle of
the first slot; a ring takes due items slot by slot. A sleep costs as much as two chunks. So items of one slot
share a ring, at most half a slot early or late. Due times are absolute: a long stream never drifts
(performance notes in docs/benchmarks.md).
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from app.base.clock.clock import Clock

SLOTS_PER_S = 1250
LEAD_S = 0.5 / SLOTS_PER_S
"""Most time in seconds that a turn is early or late: half a slot.

Clients hardly see an early turn: 0.1 ms and more pass between the alarm and the first byte.
"""
ROUNDING = 1e-3
"""Tolerance in slots for due times that rounding moves before their slot."""
LONGEST_RING_S = 0.005
"""Longest ring, in seconds. The rest waits for the next ring, so that sockets are served in between."""
log = logging.getLogger(__name__)


class Timed(Protocol):
    """An item of the wheel."""

    def turn(self, now_s: float) -> float | None:
        """Does all work due at `now_s`; returns the next due time, or None at the end."""

    def fail(self, error: Exception) -> None:
        """Called once after `turn` raised `error`; `turn` is not called again."""


class TimerWheel:
    """Calls each `Timed` at its due times, at most `LEAD_S` early.

    `most_per_ring` limits the turns of one ring before the hub may serve sockets again.
    """

    def __init__(self, clock: Clock, most_per_ring: int = 256) -> None:
        self._clock = clock
        self._most = most_per_ring
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
        budget, now, slots, wheel = self._most, self._clock.now, self._slots, self._wheel
        now_s = now() + LEAD_S
        last_s = now_s + LONGEST_RING_S
        while slots and budget > 0 and now_s < last_s and slots[0] <= now_s * SLOTS_PER_S + ROUNDING:
            slot = heapq.heappop(slots)
            waiting = wheel.pop(slot)
            for done, timed in enumerate(waiting):
                if not budget or now_s >= last_s:  # the rest goes to the front of the slot for the next ring
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
