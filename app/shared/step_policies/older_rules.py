"""Rules of older versions about the order of sequences in a step."""

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


class MissedSequences(SchedulingPolicy[S]):
    """A preemption by priority can make a step miss a sequence, up to vLLM 0.27.

    vLLM visits running sequences by their numbers in a list. A victim before the visited sequence
    leaves the list, so that later sequences move up. Up to 0.27, the number of the next sequence
    is corrected only if the step had given the victim tokens.

    Blocks are short in such a step, so it visits decodes one by one: `visits_decodes` is false.
    """

    def __init__(self) -> None:
        self._visited: S | None = None
        """The sequence for which the step being made looks for blocks."""
        self._allotted: set[S] = set()
        """Sequences that have blocks in the step being made."""
        self._moves = 0
        """Number of victims before the visited sequence without tokens in this step."""
        self._missed: set[S] = set()

    def wanted(self, sequence: S, tokens: int, limit: int) -> int:
        """Gives a sequence no tokens that the step misses."""
        if sequence in self._missed:
            return 0
        self._visited = sequence
        return tokens

    def preempt(self, sequence: S) -> None:
        """Notes a victim that moves the next sequences up."""
        if self._visited is None or sequence in self._allotted:
            return
        running = self.scheduler.running
        self._moves += running.index(sequence) < running.index(self._visited)

    def grown(self, sequence: S, slots: int) -> None:
        """Notes which sequences behind this one the step misses."""
        self._allotted.add(sequence)
        if self._moves:
            running = self.scheduler.running
            start = running.index(sequence) + 1
            self._missed.update(running[start : start + self._moves])
            self._moves = 0

    def end_step(self, batch: Batch[S], *, has_preempted: bool, runs_out: bool) -> None:
        """Forgets the step."""
        self._visited = None
        self._allotted.clear()
        self._moves = 0
        self._missed.clear()
