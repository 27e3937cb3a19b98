"""One pacer per process: everything that is due at a moment, done at that moment.

A wheel of slots, each a quarter of a millisecond wide, keyed by slot number, and a heap of the
slots in use. One alarm is set for the first slot; a turn takes what is due, slot by slot. Due
moments are absolute, so a stream never drifts, however long it is (performance notes in
docs/benchmarks.md).
"""

from __future__ import annotations

import heapq
import logging
from contextlib import suppress
from typing import Protocol

from app.clock.clock import Clock

SLOTS_PER_S = 4000
ROUNDING = 1e-3
"""Part of a slot by which a moment counted in floating point may seem to lie before its slot."""
log = logging.getLogger(__name__)


class Paced(Protocol):
    """Something with due moments."""

    def turn(self, now_s: float) -> float | None:
        """Do all that is due at `now_s`; return the next due moment, or None when over."""

    def fail(self, error: Exception) -> None:
        """`turn` raised `error` and will not be called again."""


class TimerWheel:
    """Calls each `Paced` at its due moments, never early.

    `most_per_ring` bounds what one ring does before the hub may serve sockets again.
    """

    def __init__(self, clock: Clock, most_per_ring: int = 256) -> None:
        self._clock = clock
        self._most = most_per_ring
        self._wheel: dict[int, list[Paced]] = {}
        self._slots: list[int] = []
        self._armed: int | None = None
        self._ringing = False

    def __len__(self) -> int:
        """How many things wait for their moment."""
        return sum(len(slot) for slot in self._wheel.values())

    def add(self, due_s: float, paced: Paced) -> None:
        """Have `paced` take its turn at `due_s` (monotonic seconds) or as soon after as can be."""
        slot = int(due_s * SLOTS_PER_S) + 1
        waiting = self._wheel.get(slot)
        if waiting is not None:
            waiting.append(paced)
            return
        self._wheel[slot] = [paced]
        heapq.heappush(self._slots, slot)
        if not self._ringing and (self._armed is None or slot < self._armed):
            self._arm(slot)

    def _arm(self, slot: int) -> None:
        self._armed = slot
        self._clock.ring_at(slot / SLOTS_PER_S, self.ring)

    def ring(self) -> None:
        """Give a turn to all that is due, then set the alarm for the next slot."""
        self._ringing = True
        budget, now = self._most, self._clock.now
        while self._slots and budget > 0 and self._slots[0] <= now() * SLOTS_PER_S + ROUNDING:
            slot = self._slots[0]
            waiting = self._wheel[slot]
            taken = waiting[:budget]
            if len(taken) == len(waiting):
                heapq.heappop(self._slots)
                del self._wheel[slot]
            else:
                del waiting[:budget]
            budget -= len(taken)
            for paced in taken:
                try:
                    due_s = paced.turn(now())
                except Exception as error:
                    # One broken stream must not stop the others.
                    log.exception("a paced turn failed")
                    with suppress(Exception):
                        paced.fail(error)
                else:
                    if due_s is not None:
                        self.add(due_s, paced)
        self._ringing = False
        self._armed = None
        if self._slots:
            self._arm(self._slots[0])
