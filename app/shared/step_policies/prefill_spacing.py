"""Steps without prefill, where vLLM's `prefill_schedule_interval` spaces steps with prefill."""

from __future__ import annotations

from app.core.engine.batch import Batch, S
from app.core.engine.scheduling_policy import Admission, SchedulingPolicy


class PrefillSpacing(SchedulingPolicy[S]):
    """Decides which steps have prefill."""

    def __init__(self, interval: int) -> None:
        """`interval` is the minimum distance of steps with prefill while others decode."""
        self._interval = interval
        self._prefill_step = -interval
        """Number of the latest step with prefill."""
        self._has_backlog = False
        """True if the latest step that could admit all left some waiting."""
        self._deferred: set[S] = set()
        """Waiting sequences that were passed over."""
        self._is_held = False
        """True if the step being made has no prefill."""
        self._lone_tokens = 0
        """Number of prompts in the step being made that only compute their last token."""

    def begin_step(self) -> None:
        """Holds prefill back soon after the latest step with prefill, beside decodes."""
        scheduler = self.scheduler
        has_decodes = len(scheduler.running) > len(scheduler.prefilling)
        is_soon = scheduler.step + 1 - self._prefill_step < self._interval
        self._is_held = is_soon and has_decodes and not self._has_backlog
        self._lone_tokens = 0

    def wanted(self, sequence: S, tokens: int, limit: int) -> int:
        """Holds running prompts back."""
        if self._is_held and not sequence.decodes:
            return 0
        return tokens

    def fits(self, admission: Admission[S], batch: Batch[S]) -> bool:
        """Holds waiting prompts back, except for their last tokens."""
        return not (self._is_held and admission.has_prefill)

    def started(self, admission: Admission[S], batch: Batch[S]) -> None:
        """Counts the last tokens of prompts, which are no prefill for the distance."""
        self._lone_tokens += not (admission.has_prefill or admission.is_fetched)

    def defer(self, sequence: S) -> None:
        """Notes that a sequence is passed over."""
        self._deferred.add(sequence)

    def skip_step(self) -> None:
        """Keeps a backlog only while nothing is computed for a time."""
        self._has_backlog = self.scheduler.held and self._has_backlog

    def end_step(self, batch: Batch[S], *, has_preempted: bool, runs_out: bool) -> None:
        """Notes what later steps depend on."""
        self._note_deferred(batch, runs_out)
        if batch.prefills > self._lone_tokens:
            self._prefill_step = self.scheduler.step
        members = self.scheduler.waiting.members
        self._deferred &= members
        if not (self._is_held or has_preempted):
            self._has_backlog = len(members) > len(self._deferred)

    def _note_deferred(self, batch: Batch[S], runs_out: bool) -> None:
        """Notes the sequences that the admissions of a step passed over.

        vLLM does not count a sequence that was once passed over as a backlog, even if it could be
        admitted meanwhile.
        """
        waiting = self.scheduler.waiting
        if not waiting.members:
            return
        if not runs_out:
            self._deferred.update(waiting.before(waiting.head()))
        elif batch.admitted:
            self._deferred.update(waiting.before_popped())
