"""Sequences whose cache arrives from another engine, a store or a tier. Start with `Transfers`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic

from app.core.engine.batch import Batch, Blocks, S, SchedulerRules
from app.core.engine.waiting_queue import WaitingQueue


class Transfers(Generic[S]):
    """Transfers of caches, and the sequences that hold blocks for them.

    A sequence takes no place while its cache arrives. Then it waits before all that hold no blocks.
    """

    def __init__(
        self,
        blocks: Blocks[S],
        waiting: WaitingQueue[S],
        draft_tokens: int,
        rules: SchedulerRules,
    ) -> None:
        """With drafts, a sequence needs blocks for `draft_tokens` more tokens to begin with."""
        self._blocks = blocks
        self._waiting = waiting
        self._draft_tokens = draft_tokens if rules.reserves_drafts else 0
        self._drafts_in_tokens = rules.reserves_drafts_in_tokens
        self._prefers_holders = rules.prefers_kv_holders
        self.fetching: list[S] = []
        """Sequences whose cache is under way; the latest is last."""
        self._abandoned: set[S] = set()
        """Sequences that were removed while their cache arrives, which writes into their blocks."""
        self.holding: dict[S, bool] = {}
        """Waiting sequences whose cache has arrived; True before `accept`."""
        self.resumable: Collection[S] = self.holding if rules.resumes_transfers_in_pause else ()
        """Sequences in `holding` that may start during a pause."""
        self.resumed: list[S] = []
        """Sequences whose cache has arrived, and that the step being made admits."""

    def start(self, sequence: S, cached: int, spare: int) -> bool:
        """Assigns blocks to the next sequence, which leaves the queue.

        Returns False if these and `spare` blocks are not free. A part of a prompt needs blocks for
        itself alone.
        """
        tokens = sequence.prompt_tokens + sequence.written
        if sequence.loaded:
            tokens = sequence.computed
        if not self._blocks.fits(sequence, tokens, cached, spare):
            return False
        self._waiting.pop(sequence)
        self._waiting.left(sequence)
        sequence.held = -(-tokens // self._blocks.block_size)
        self._blocks.begin(sequence, cached, sequence.held - cached)
        self.fetching.append(sequence)
        return True

    def abandon(self, sequence: S) -> bool:
        """Removes a sequence whose cache is under way; returns False for any other one."""
        if sequence not in self.fetching:
            return False
        self.fetching.remove(sequence)
        self._abandoned.add(sequence)
        return True

    def end(self, sequence: S, tokens: int | None, looks_again: bool) -> bool:
        """Queues a sequence whose cache has arrived; see `Scheduler.fetched`.

        Returns False if the sequence was removed meanwhile.
        """
        if sequence in self._abandoned:
            self._abandoned.remove(sequence)
            return False
        if sequence in self.fetching:
            self.fetching.remove(sequence)
            if tokens is not None:
                sequence.computed = tokens
            elif not sequence.loaded:
                sequence.computed = sequence.prompt_tokens + sequence.written
            sequence.remote = False
            # The sequence holds blocks that sequences before it may need.
            is_first = self._prefers_holders or not self._waiting.by_priority
            self._waiting.add(sequence, is_first)
            self.holding[sequence] = looks_again or sequence.computed > 0
        return True

    def accept(self, sequence: S) -> None:
        """Caches the blocks of a sequence, once it is the next one to be admitted.

        Its last token always remains to be computed. A sequence whose cache was lost gives its
        blocks back, and is looked up in the prefix cache like a new one.
        """
        self.holding[sequence] = False
        if sequence.computed:
            self._blocks.filled(sequence)
            last = sequence.prompt_tokens + sequence.written - 1
            sequence.computed = min(sequence.computed, last)
        else:
            self._blocks.release(sequence, sequence.held, 0)
            sequence.held = 0

    def admit(self, sequence: S) -> None:
        """Notes that a sequence is admitted."""
        if self.holding.pop(sequence, None) is not None:
            self.resumed.append(sequence)

    def reserved_blocks(self, prefilling: list[S], batch: Batch[S], *, is_alone: bool) -> int:
        """Returns the blocks that the start of a transfer leaves free.

        Unfinished prompts and earlier transfers need these; with drafts, they and the sequence
        itself need more for the first drafts. A sequence that is alone takes all blocks, which
        vLLM's would wait for without end.
        """
        size = self._blocks.block_size
        others = [*prefilling, *self.fetching, *self.holding]
        draft_tokens = 0
        draft_blocks = 0
        reserved = 0
        if self._draft_tokens and (others or not is_alone):
            reserved = -(-self._draft_tokens // size)
            if self._drafts_in_tokens:
                draft_tokens = self._draft_tokens
            else:
                draft_blocks = reserved
            others += [other for other in batch.prefilled if other not in batch.admitted]
            others += self.resumed
        for other in others:
            tokens = other.prompt_tokens + other.written + draft_tokens
            reserved += max(0, -(-tokens // size) + draft_blocks - other.held)
        return reserved
