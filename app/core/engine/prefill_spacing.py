"""Steps without prefill, where vLLM's `prefill_schedule_interval` spaces steps with prefill."""

from __future__ import annotations

from typing import Generic

from app.core.engine.batch import Batch, S
from app.core.engine.waiting_queue import WaitingQueue


class PrefillSpacing(Generic[S]):
    """Decides which steps have prefill. Steps are numbers that grow."""

    def __init__(self, interval: int, waiting: WaitingQueue[S]) -> None:
        """`interval` is the minimum distance of steps with prefill while others decode."""
        self._interval = interval
        self._waiting = waiting
        self._prefill_step = -interval
        """Number of the latest step with prefill."""
        self._has_backlog = False
        """True if the latest step that could admit all left some waiting."""
        self._deferred: set[S] = set()
        """Waiting sequences that were passed over."""
        self._is_held = False
        """True if the step being made has no prefill."""

    def holds_prefill(self, step: int, has_decodes: bool) -> bool:
        """Returns whether a new step has no prefill: soon after the latest one, beside decodes."""
        is_soon = step + 1 - self._prefill_step < self._interval
        self._is_held = is_soon and has_decodes and not self._has_backlog
        return self._is_held

    def defer(self, sequence: S) -> None:
        """Notes that a sequence is passed over."""
        self._deferred.add(sequence)

    def skip_step(self, is_held: bool) -> None:
        """Notes that nothing waits, or that nothing is computed for a time."""
        self._has_backlog = is_held and self._has_backlog

    def end_step(
        self,
        batch: Batch[S],
        step: int,
        *,
        has_prefill: bool,
        has_preempted: bool,
        runs_out: bool,
    ) -> None:
        """Notes what later steps depend on.

        With `runs_out`, the step had no place or no token left for the next sequence.
        """
        self._defer(batch, runs_out)
        if has_prefill:
            self._prefill_step = step
        members = self._waiting.members
        self._deferred &= members
        if not (self._is_held or has_preempted):
            self._has_backlog = len(members) > len(self._deferred)

    def _defer(self, batch: Batch[S], runs_out: bool) -> None:
        """Notes the sequences that the admissions of a step passed over.

        vLLM does not count a sequence that was once passed over as a backlog, even if it could be
        admitted meanwhile.
        """
        waiting = self._waiting
        if not waiting.members:
            return
        if not runs_out:
            self._deferred.update(waiting.before(waiting.head()))
        elif batch.admitted:
            self._deferred.update(waiting.before_popped())
