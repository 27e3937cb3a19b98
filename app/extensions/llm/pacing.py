"""Paces steps: how much of a prompt they compute, and on how many threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from app.extensions.llm.step_times import MAX_DROPS, OUTLIER_FACTOR, StepTimes
from app.extensions.llm.threads import CROWDED_SHARE

if TYPE_CHECKING:
    from app.core.engine.batch import Batch
    from app.core.engine.scheduler import Scheduler
    from app.extensions.llm.sequence import Sequence
    from app.extensions.llm.step import StepDevice

PREFILL_KIND: Final = 0
"""Kind of all steps with prompts, for the choice of threads; decodes have a kind by size."""


class StepPacer:
    """Measures steps and limits the next ones.

    `target_s` is the time in seconds that a step with prompts should take; 0 is no limit.
    """

    def __init__(self, device: StepDevice, target_s: float, now: Callable[[], float]) -> None:
        self.on_layer: Callable[[], object] = _do_nothing
        """Called before each layer of a step, which may take seconds."""
        self._device = device
        self._now = now
        self._times = StepTimes(target_s)
        self._started_s = 0.0
        self._kind = PREFILL_KIND
        self._pairs = 0.0
        self._expected_s = 0.0
        """Expected time of the latest step."""
        self._waited_s = 0.0
        """Time that threads had waited for a core before the latest step."""
        self._drops = 0
        """Latest steps in a row that have dropped a part of a prompt."""

    def prefill_limit(self, scheduler: Scheduler[Sequence]) -> int:
        """Returns the prompt tokens of the next step: what fits, or half of that after a drop."""
        start = 0
        if scheduler.prefilling:
            start = scheduler.prefilling[0].computed
        decodes, context = scheduler.decoding
        limit = self._times.max_prompt_tokens(decodes, context, start)
        if self._drops not in (0, MAX_DROPS):
            limit //= 2
        return max(1, limit)

    def start(self, batch: Batch[Sequence], has_prompt: bool) -> None:
        """Starts to measure a step, on as many threads as help."""
        self._kind = PREFILL_KIND
        if not has_prompt:
            self._kind = batch.tokens.bit_length()
        self._pairs = batch.attention + batch.context
        self._started_s = self._now()
        self._expected_s = self._times.seconds(batch.tokens, self._pairs)
        self._device.use_threads(self._kind)
        self._waited_s = self._device.waited_s()

    def is_late(self, share: float) -> bool:
        """Returns True if the step, with a `share` of its layers computed, should drop a chunk."""
        self.on_layer()
        seconds = self._now() - self._started_s
        return self._drops < MAX_DROPS and self._times.is_late(share, seconds, self._expected_s)

    def finish(self, batch: Batch[Sequence], has_prompt: bool, is_dropped: bool) -> None:
        """Learns from the time of a step; `is_dropped` if it has dropped a part of a prompt."""
        seconds = self._now() - self._started_s
        crowded = self._device.waited_s() - self._waited_s > CROWDED_SHARE * seconds
        if is_dropped:  # all layers would have taken longer
            self._drops += 1
            seconds = max(seconds, OUTLIER_FACTOR * self._expected_s)
        else:
            self._drops = 0
        expected_s = 1.0
        if has_prompt:
            expected_s = self._expected_s
        if expected_s:
            self._device.governor.add(self._kind, seconds / expected_s, crowded)
        self._times.add(batch.tokens, self._pairs, seconds, has_prompt=has_prompt)


def _do_nothing() -> None:
    pass
