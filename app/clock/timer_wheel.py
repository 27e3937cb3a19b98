"""One timer wheel per process: everything that is due at a moment, done at that moment.

A wheel of slots, each 0.8 ms wide, keyed by slot number, and a heap of the slots in use. One alarm is set
for the middle of the first slot; a ring takes what is due, slot by slot. To sleep and wake costs as much as
two chunks, so what is due in one slot shares a ring, half a slot late or early at the most. Due moments are
absolute: a stream never drifts, however long it is (performance notes in docs/benchmarks.md).
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from app.clock.clock import Clock

SLOTS_PER_S = 1250
LEAD_S = 0.5 / SLOTS_PER_S
"""A turn is taken so much before its moment at the most, and as much behind it. A client sees it later:
between the alarm and its first byte lie 0.1 ms and more.
"""
ROUNDING = 1e-3
"""Part of a slot by which a moment counted in floating point may seem to lie before its slot."""
LONGEST_RING_S = 0.005
"""A ring that takes longer leaves the rest to the next one, so that sockets are served in between."""
log = logging.getLogger(__name__)


class Timed(Protocol):
    """Something with due moments."""

    def turn(self, now_s: float) -> float | None:
        """Do all that is due at `now_s`; return the next due moment, or None when over."""

    def fail(self, error: Exception) -> None:
        """`turn` raised `error` and will not be called again."""


class TimerWheel:
    """Calls each `Timed` at its due moments, `LEAD_S` early at the most.

    `most_per_ring` bounds what one ring does before the hub may serve sockets again.
    """

    def __init__(self, clock: Clock, most_per_ring: int = 256) -> None:
        self._clock = clock
        self._most = most_per_ring
        self._wheel: dict[int, list[Timed]] = {}
        self._slots: list[int] = []
        self._armed: int | None = None
        self._ringing = False

    def __len__(self) -> int:
        """How many things wait for their moment."""
        return sum(len(slot) for slot in self._wheel.values())

    def add(self, due_s: float, timed: Timed) -> None:
        """Have `timed` take its turn at `due_s` (monotonic seconds) or as soon after as can be."""
        slot = int(due_s * SLOTS_PER_S) + 1
        waiting = self._wheel.get(slot)
        if waiting is not None:
            waiting.append(timed)
            return
        self._wheel[slot] = [timed]
        heapq.heappush(self._slots, slot)
        if not self._ringing and (self._armed is None or slot < self._armed):
            self._arm(slot)

    def call_soon(self, work: Callable[[], None]) -> None:
        """Have `work` done in a later turn of the event loop."""
        self.add(self._clock.now(), Once(work))

    def _arm(self, slot: int) -> None:
        self._armed = slot
        self._clock.ring_at(slot / SLOTS_PER_S - LEAD_S, self.ring)

    def ring(self) -> None:
        """Give a turn to all that is due, then set the alarm for the next slot."""
        self._ringing = True
        budget, now, slots = self._most, self._clock.now, self._slots
        now_s = now() + LEAD_S
        last_s = now_s + LONGEST_RING_S
        while slots and budget > 0 and now_s < last_s and slots[0] <= now_s * SLOTS_PER_S + ROUNDING:
            now_s, budget = self._take(slots[0], now_s, last_s, budget)
        self._ringing = False
        self._armed = None
        if slots:
            self._arm(slots[0])

    def _take(self, slot: int, now_s: float, last_s: float, budget: int) -> tuple[float, int]:
        """Give a turn to what is in `slot`, until `last_s` or for `budget` turns; the time and turns left."""
        now, wheel = self._clock.now, self._wheel
        heapq.heappop(self._slots)
        waiting = wheel.pop(slot)
        for done, timed in enumerate(waiting):
            if not budget or now_s >= last_s:
                self._put_back(slot, waiting[done:])
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
                    if later is not None:  # as nearly always when there are many
                        later.append(timed)
                    else:
                        self.add(due_s, timed)
            now_s = now() + LEAD_S
        return now_s, budget

    def _put_back(self, slot: int, rest: list[Timed]) -> None:
        """Have `rest` take its turns first in the next ring."""
        if slot in self._wheel:
            self._wheel[slot][:0] = rest
            return
        self._wheel[slot] = rest
        heapq.heappush(self._slots, slot)


class Once:
    """A function that is called once."""

    __slots__ = ("_work",)

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def turn(self, now_s: float) -> None:
        self._work()

    def fail(self, error: Exception) -> None:
        """The wheel has written it down."""
