"""The rule of the scheduler for KV cache groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.core.engine.batch import Batch, S
from app.core.engine.scheduling_policy import Admission, SchedulingPolicy

if TYPE_CHECKING:
    from app.extensions.cache_groups.cache import GroupedCache


class GroupScheduling(SchedulingPolicy[S]):
    """Sequences free blocks while they run, and chunks of prompts end where states are cached."""

    visits_decodes = True

    def __init__(self, cache: GroupedCache) -> None:
        self._cache = cache

    def begin_step(self) -> None:
        """Lets prompts go on from all cached states."""
        self._cache.begin_step()

    def wanted(self, sequence: S, tokens: int, limit: int) -> int:
        """Ends the chunk of a prompt where a state is cached."""
        if tokens <= 0 or sequence.decodes:
            return tokens
        return self._cache.clip(sequence, sequence.computed, tokens)

    def slots(self, sequence: S, slots: int) -> int:
        """Frees what a running sequence no longer needs before it gets blocks."""
        self._trim(sequence)
        return slots

    def grown(self, sequence: S, slots: int) -> None:
        """Caches full blocks, as far as their tokens are known."""
        self._cache.cache_known(sequence, slots)

    def fits(self, admission: Admission[S], batch: Batch[S]) -> bool:
        """Returns whether the blocks of the first chunk of a prompt fit, besides those of all."""
        sequence = admission.sequence
        tokens = self._cache.clip(sequence, sequence.computed, admission.tokens)
        admission.tokens = tokens
        if not tokens:
            return False
        return self._cache.fits_chunk(
            sequence, sequence.computed + tokens, admission.cached, admission.spare
        )

    def started(self, admission: Admission[S], batch: Batch[S]) -> None:
        """Frees cached blocks that the sequence does not read."""
        self._trim(admission.sequence)

    def finish(self, sequence: S) -> None:
        """Frees what a running sequence did not need, before a connector gets its blocks."""
        if sequence.running and self._cache.store is not None:
            self._trim(sequence)

    def _trim(self, sequence: S) -> None:
        self._cache.trim(sequence, self.scheduler.step, self.scheduler.under_way)
