"""The pool of `max-num-seqs` slots in which sequences with latencies of their own run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from app.engine.waiting import WaitingQueue, Waits
from app.lora.adapters import LoRASlots

MOST_AT_ONCE = 128
"""Most sequences that start in one turn of the event loop; keeps other streams on time."""
log = logging.getLogger(__name__)


class Runnable(Waits, Protocol):
    """A sequence that waits for a slot, and holds it."""

    def fits(self) -> bool:
        """Returns whether it could start now. If not, those behind it wait, too."""

    def start(self) -> bool:
        """Runs in a free slot: True keeps it until `SequencePool.leave`, False gives it back at once."""


class SequencePool:
    """Runs at most `slots` sequences at a time, in the manner of `concurrent.futures`.

    A slot is no thread: a thread would only sleep (the timer wheel does the waiting), and a hop to it would
    cost more than a short reply does. A sequence starts in the turn that gives it a slot: the submitter's own
    turn when one is free, else the turn in which another sequence leaves. The future of a request is
    `Handle.future`, made for those who wait for one. One event loop owns the state, so there is no lock.
    """

    def __init__(
        self,
        slots: int,
        lora: LoRASlots | None = None,
        by_priority: bool = False,
        later: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        """`later`, if given, calls a function in a later turn of the event loop."""
        self.slots = slots
        self.running = 0
        self.paused = False
        self._queue: WaitingQueue[Runnable] = WaitingQueue(lora, by_priority)
        self._later = later
        self._will_fill = False

    @property
    def waiting(self) -> int:
        """Sequences without a slot."""
        return len(self._queue.members)

    def free(self, adapter: str | None = None) -> int:
        """Returns the slots that sequences with this adapter would get at once."""
        if self.paused or adapter is not None and not self._queue.is_ready(adapter):
            return 0
        return self.slots - self.running

    def submit(self, sequence: Runnable, soon: bool = False) -> bool:
        """Starts `sequence` as soon as a slot is free; True when that was now.

        With `soon` it starts in a later turn of the event loop: for requests of many choices.
        """
        members = self._queue.members
        if soon and self._later is not None:
            self._queue.add(sequence)
            self._fill_later()
            return False
        if not members and self.free(sequence.adapter) > 0 and sequence.fits():
            self._queue.hold(sequence)
            self._run(sequence)
            if members:  # another one came while it ran, and found no slot
                self._fill()
            return True
        self._queue.add(sequence)
        self._fill()
        return sequence not in members

    def withdraw(self, sequence: Runnable) -> bool:
        """Takes a sequence out of the queue; False when it does not wait."""
        return self._queue.remove(sequence)

    def leave(self, sequence: Runnable) -> None:
        """Gives the slot of a sequence back that has kept it."""
        self._give_back(sequence)
        if self._queue.members:
            self._fill()

    def pause(self) -> None:
        """Gives no more slots away; running sequences keep theirs."""
        self.paused = True

    def resume(self) -> None:
        """Gives slots away again."""
        self.paused = False
        self._fill()

    def _fill(self) -> None:
        started = 0
        while not self.paused and self.running < self.slots:
            if started == MOST_AT_ONCE and self._later is not None:
                self._fill_later()
                return
            sequence = self._queue.head()
            if sequence is None or not sequence.fits():
                return
            self._queue.pop(sequence)
            started += 1
            self._run(sequence)

    def _fill_later(self) -> None:
        if self._later is not None and not self._will_fill:
            self._will_fill = True
            self._later(self._fill_now)

    def _fill_now(self) -> None:
        self._will_fill = False
        self._fill()

    def _run(self, sequence: Runnable) -> None:
        self.running += 1
        keeps = False
        try:
            keeps = sequence.start()
        except Exception:
            log.exception("a sequence could not be started")
        if not keeps:
            self._give_back(sequence)

    def _give_back(self, sequence: Runnable) -> None:
        self.running -= 1
        self._queue.left(sequence)
