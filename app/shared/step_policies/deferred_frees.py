"""Frees of blocks that wait for the steps under way, as beside a KV connector in vLLM."""

from __future__ import annotations

from collections import deque

from app.core.engine.batch import Batch, S, SchedulerRules
from app.core.engine.scheduling_policy import SchedulingPolicy


class DeferredFrees(SchedulingPolicy[S]):
    """Keeps the blocks of sequences that have left until no step writes into them."""

    def __init__(self, rules: SchedulerRules, *, keeps_tokens: bool) -> None:
        """With `keeps_tokens`, tokens in flight of a preempted sequence still arrive.

        Another connector than a tier may send the blocks, so that the tokens are computed again.
        """
        self._protects_victims = rules.keeps_deferred_victims
        self._keeps_tokens = keeps_tokens
        self._latest: Batch[S] = Batch()
        """The latest step with tokens."""
        self._last_steps: dict[S, int] = {}
        """Number of the latest step of each running sequence."""
        self._kept: deque[tuple[int, S, int]] = deque()
        """Sequences that have left, with their blocks, until the end of a step."""

    def prefill(self, sequence: S, tokens: int) -> None:
        """Notes that the step being made computes a part of a prompt."""
        self._last_steps[sequence] = self.scheduler.step

    def end_step(self, batch: Batch[S], *, has_preempted: bool, runs_out: bool) -> None:
        """Notes that a step computes decodes."""
        if batch.tokens:
            self._latest = batch
        # The number has grown since `prefill`, which notes the same step.
        self._last_steps.update(dict.fromkeys(batch.decodes, self.scheduler.step - 1))

    def complete_step(self, batch: Batch[S]) -> None:
        """Frees the blocks into which the step was the last one to write."""
        oldest = self._oldest
        while self._kept and self._kept[0][0] < oldest:
            _, sequence, held = self._kept.popleft()
            self.scheduler.blocks.release_late(sequence, held)

    def protects(self, sequence: S) -> bool:
        """See `SchedulerRules.keeps_deferred_victims`."""
        return self._protects_victims and self._is_computing(sequence)

    def preempt(self, sequence: S) -> None:
        """Drops the tokens of a step under way, unless they still arrive."""
        if not self._keeps_tokens and self._is_computing(sequence):
            self._latest.drop(sequence)

    def keeps_blocks(self, sequence: S) -> bool:
        """Keeps the blocks of a sequence that a step under way computes."""
        if not self._is_computing(sequence):
            return False
        self._kept.append((self.scheduler.step - 1, sequence, sequence.held))
        return True

    def left(self, sequence: S) -> None:
        """Forgets a sequence that has left."""
        self._last_steps.pop(sequence, None)

    @property
    def _oldest(self) -> int:
        """Number of the oldest step under way."""
        return self.scheduler.step - self.scheduler.under_way

    def _is_computing(self, sequence: S) -> bool:
        """Returns whether a step under way computes tokens of a sequence."""
        return self._last_steps.get(sequence, -1) >= self._oldest
