"""The rule of the scheduler for KV cache groups."""

from __future__ import annotations

from typing import Protocol

from app.core.engine.batch import Batch, S
from app.core.engine.kvcache.cached_sequence import CachedSequence
from app.core.engine.kvcache.stores import ConnectorStore
from app.core.engine.scheduling_policy import Admission, SchedulingPolicy


class GroupTables(Protocol):
    """Block tables of several cache groups, as a `GroupedCache` has them."""

    store: ConnectorStore | None

    def begin_step(self) -> None:
        """Lets prompts go on from all cached states."""

    def clip(self, sequence: CachedSequence, start: int, tokens: int) -> int:
        """Returns how many of the `tokens` from `start` on a step computes."""

    def trim(self, sequence: CachedSequence, step: int, under_way: int) -> None:
        """Frees what a sequence no longer needs before it gets blocks in a step.

        The latest `under_way` steps are not over, and still read blocks.
        """

    def fits_chunk(self, sequence: CachedSequence, tokens: int, cached: int, spare: int) -> bool:
        """Returns whether the blocks of the first `tokens` tokens of a new sequence fit.

        See `Blocks.fits`, which is about all tokens.
        """

    def cache_known(self, sequence: CachedSequence, tokens: int) -> None:
        """Caches the full blocks among the first `tokens` tokens, as far as tokens are known."""


class GroupScheduling(SchedulingPolicy[S]):
    """Sequences free blocks while they run, and chunks of prompts end where states are cached."""

    visits_decodes = True

    def __init__(self, tables: GroupTables) -> None:
        self._tables = tables

    def begin_step(self) -> None:
        """Lets prompts go on from all cached states."""
        self._tables.begin_step()

    def wanted(self, sequence: S, tokens: int, limit: int) -> int:
        """Ends the chunk of a prompt where a state is cached."""
        if tokens <= 0 or sequence.decodes:
            return tokens
        return self._tables.clip(sequence, sequence.computed, tokens)

    def slots(self, sequence: S, slots: int) -> int:
        """Frees what a running sequence no longer needs before it gets blocks."""
        self._trim(sequence)
        return slots

    def grown(self, sequence: S, slots: int) -> None:
        """Caches full blocks, as far as their tokens are known."""
        self._tables.cache_known(sequence, slots)

    def fits(self, admission: Admission[S], batch: Batch[S]) -> bool:
        """Returns whether the blocks of the first chunk of a prompt fit, besides those of all."""
        sequence = admission.sequence
        tokens = self._tables.clip(sequence, sequence.computed, admission.tokens)
        admission.tokens = tokens
        if not tokens:
            return False
        return self._tables.fits_chunk(
            sequence, sequence.computed + tokens, admission.cached, admission.spare
        )

    def started(self, admission: Admission[S], batch: Batch[S]) -> None:
        """Frees cached blocks that the sequence does not read."""
        self._trim(admission.sequence)

    def finish(self, sequence: S) -> None:
        """Frees what a running sequence did not need, before a connector gets its blocks."""
        if sequence.running and self._tables.store is not None:
            self._trim(sequence)

    def _trim(self, sequence: S) -> None:
        self._tables.trim(sequence, self.scheduler.step, self.scheduler.under_way)
