"""Rules of older versions about requests whose adapter has no room."""

from __future__ import annotations

from app.core.engine.batch import Batch, S
from app.core.engine.scheduling_policy import SchedulingPolicy


class PassedOver(SchedulingPolicy[S]):
    """A preempted sequence waits behind those that a step has passed over, up to vLLM 0.30."""

    def __init__(self, *, always: bool) -> None:
        """Without `always`, only steps with a running adapter count."""
        self.needs_adapters = not always

    def end_step(self, batch: Batch[S], *, has_preempted: bool, runs_out: bool) -> None:
        """Notes which sequences a step passed over."""
        self.scheduler.waiting.note_pass(runs_out)


class EarlyAdapters(SchedulingPolicy[S]):
    """A sequence whose last token is in flight needs no adapter slot, up to vLLM 0.32."""

    needs_adapters = True

    def end_step(self, batch: Batch[S], *, has_preempted: bool, runs_out: bool) -> None:
        """Releases the adapters of sequences that compute no more."""
        for sequence in batch.ends:
            if not sequence.decodes:
                self.scheduler.waiting.left(sequence)
