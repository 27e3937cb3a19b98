"""The worker pool of sequences on their own timelines, bounded by `max-num-seqs`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from operator import attrgetter

from app.core.engine.batch import LoRASlots
from app.core.engine.executor import AFTER_SHUTDOWN, SequenceContext, SequenceExecutor
from app.core.engine.sections import EngineSections
from app.core.engine.timed_sequence import TimedSequence
from app.core.engine.waiting_queue import WaitingQueue

MAX_STARTS_PER_TURN = 128
"""Maximum sequences that start in one turn of the event loop; keeps other streams on time."""
log = logging.getLogger(__name__)


class SequencePool(SequenceExecutor):
    """A `concurrent.futures.Executor` that runs at most `slots` sequences at a time.

    A slot is not a thread, which would only sleep, as the timer wheel does; a thread switch would
    cost more than a short reply. A sequence starts in the submitter's own turn if a slot is free,
    else in the turn that frees one. One event loop owns the state, so locks are unnecessary.
    """

    def __init__(self, sections: EngineSections, lora: LoRASlots, context: SequenceContext) -> None:
        scheduling = sections.scheduling
        self.slots = scheduling.max_num_seqs
        self.running = 0
        self.paused = False
        self.queue: WaitingQueue[TimedSequence] = WaitingQueue(
            lora,
            by_priority=scheduling.scheduling_policy == "priority",
            prefers_resident=sections.lora.prefer_resident_adapters,
        )
        self.context = context
        self.blocks = context.cache
        self.watch_queue: Callable[[float], None] | None = None
        """Receives the time when the queue may wait for something else than before."""
        self.watch_start: Callable[[TimedSequence], None] | None = None
        """Receives each sequence that got a slot."""
        self._will_fill = False

    @property
    def waiting(self) -> int:
        """Number of sequences that wait for a slot."""
        return len(self.queue.members)

    queued = waiting

    def not_started(self) -> Iterable[TimedSequence]:
        """Returns the waiting sequences, in order of arrival."""
        return sorted(self.queue.members, key=attrgetter("arrived"))

    def sort(self, by_priority: bool) -> None:
        """Sets the order of the waiting sequences: by priority, or first come, first served."""
        self.queue.sort(by_priority)

    def free(self, adapter: str | None = None) -> int:
        """Returns how many sequences with `adapter` could start now."""
        if self.paused or adapter is not None and not self.queue.is_ready(adapter):
            return 0
        return self.slots - self.running

    def enqueue(self, sequence: TimedSequence, *, later: bool = False) -> None:
        """Starts `sequence` once a slot is free; see `SequenceExecutor.enqueue`."""
        if self.is_shut_down:
            raise RuntimeError(AFTER_SHUTDOWN)
        members = self.queue.members
        starts_now = not (later or members) and self.free(sequence.adapter) > 0
        if starts_now and (self.context.cache is None or sequence.fits()):
            if sequence.adapter is not None:
                self.queue.hold(sequence)
            self._run(sequence)
        else:
            self.queue.add(sequence)
        if later:
            self._fill_later()
        elif members:
            self.fill()
        if sequence in members:
            sequence.has_waited = True
            if self.watch_queue is not None:
                self.watch_queue(self.context.clock.now())
            if sequence.adapter is not None:
                self.context.recorder.adapter_moved(sequence, sequence.adapter, "waiting")

    def leave(self, sequence: TimedSequence) -> None:
        """Removes an ended sequence from the queue, or frees its slot and blocks for others."""
        self.queue.remove(sequence)
        if sequence.adapter is not None:
            self.context.recorder.adapter_moved(sequence, sequence.adapter, None)
        cache = self.context.cache
        if cache is not None:
            cache.release(sequence)
            cache.publish()
        if sequence.running:
            self._free_slot(sequence)
            if self.queue.members:
                self.fill()

    def pause(self) -> None:
        """Grants no more slots; running sequences keep theirs."""
        self.paused = True

    def hold(self) -> None:
        """Pauses: sequences that run alone cannot stand still."""
        self.pause()

    def preempt_all(self) -> None:
        """Does nothing: sequences that run alone are not preempted."""

    def resume(self) -> None:
        """Grants slots again."""
        self.paused = False
        self.fill()

    def fill(self) -> None:
        """Starts waiting sequences for which a slot and blocks are free."""
        started = 0
        self._will_fill = False
        while not self.paused and self.running < self.slots:
            if started == MAX_STARTS_PER_TURN:
                self._fill_later()
                break
            sequence = self.queue.head()
            if sequence is None or not sequence.fits():
                break
            self.queue.pop(sequence)
            started += 1
            self._run(sequence)
        if self.watch_queue is not None:
            self.watch_queue(self.context.clock.now())

    def _fill_later(self) -> None:
        if not self._will_fill:
            self._will_fill = True
            self.context.wheel.call_soon(self.fill)

    def _run(self, sequence: TimedSequence) -> None:
        self.running += 1
        try:
            runs = sequence.start()
            if self.watch_start is not None:
                self.watch_start(sequence)
            if runs:
                return
        except Exception:
            log.exception("a sequence could not be started")
        self._free_slot(sequence)

    def _free_slot(self, sequence: TimedSequence) -> None:
        self.running -= 1
        self.queue.left(sequence)
