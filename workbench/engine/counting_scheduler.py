"""A scheduler of simulations whose blocks are only counted.

Blocks that are only counted are all alike. A step therefore takes as many blocks as it has decodes
that need one, without a visit to each decode. A fleet of a thousand engines does not fit into the
caches of a processor, so that each visit waits for memory. For the same reason, the attributes that
each step reads are slots, which lie side by side.
"""

from __future__ import annotations

from collections.abc import Iterable

from app.core.engine.batch import Batch, S, SchedulerLimits, SequenceState
from app.core.engine.kvcache.counted_blocks import CountedBlocks
from app.core.engine.plain_scheduler import DecodeCalendar, PlainScheduler
from app.core.engine.scheduling_policy import SchedulingPolicy
from app.core.engine.waiting_queue import WaitingQueue


class CountingScheduler(PlainScheduler[S]):
    """Counts the blocks of decodes that advance in bulk.

    `held` of such a decode is outdated until its last token, or until the bulk ends.
    """

    __slots__ = (
        "_block_size",
        "_calendar",
        "_decoding",
        "_has_visited",
        "_leads",
        "_places",
        "_prefill_left",
        "_prompt_limit",
        "_step_slots",
        "_transfers",
        "_varies",
        "blocks",
        "has_passed",
        "held",
        "limits",
        "paused",
        "policies",
        "prefill_limit",
        "prefilling",
        "preemptions",
        "running",
        "step",
        "under_way",
        "waiting",
    )

    def __init__(
        self,
        limits: SchedulerLimits,
        blocks: CountedBlocks,
        waiting: WaitingQueue[S],
        policies: Iterable[SchedulingPolicy[S]] = (),
    ) -> None:
        super().__init__(limits, blocks, waiting, [*blocks.policies, *policies])
        self._calendar = CountingCalendar(blocks)

    def _end(self, sequence: S, batch: Batch[S], is_foreseen: bool = True) -> None:
        super()._end(sequence, batch, is_foreseen)
        self._count_blocks(sequence, _tokens(sequence))

    def _end_bulk(self) -> None:
        for sequence in self._decoding:
            self._count_blocks(sequence, self.step + sequence.lead)
        super()._end_bulk()

    def _stop_decode(self, sequence: S) -> None:
        self._count_blocks(sequence, self.step + sequence.lead)
        super()._stop_decode(sequence)

    def _count_blocks(self, sequence: S, computed: int) -> None:
        """Brings `held` up to date for a decode with `computed` tokens."""
        sequence.held = max(sequence.held, -(-computed // self._block_size))


class CountingCalendar(DecodeCalendar[S]):
    """Lists decodes that need blocks in the same steps together, as long as they need any."""

    def __init__(self, blocks: CountedBlocks) -> None:
        super().__init__(blocks)
        self._last_needs: dict[int, list[S]] = {}
        """Decodes that need their last block, by step."""

    def add(self, sequence: S) -> None:
        """Enters a decode."""
        super().add(sequence)
        size = self._block_size
        tokens = _tokens(sequence)
        if sequence.held * size < tokens:
            last_need = (tokens - 1) // size * size - sequence.lead
            self._last_needs.setdefault(last_need, []).append(sequence)

    def remove(self, sequence: S) -> None:
        """Removes a decode, if it is there."""
        super().remove(sequence)
        for calendar in (self.needs, self._last_needs):
            for decodes in calendar.values():
                if sequence in decodes:
                    decodes.remove(sequence)

    def clear(self) -> None:
        """Removes all decodes."""
        super().clear()
        self._last_needs.clear()

    def assign(self, step: int) -> None:
        """Assigns a block to each decode that needs one in a step."""
        needs = self.needs.pop(step)
        self._blocks.grow(needs[0], len(needs))
        for sequence in self._last_needs.pop(step, ()):
            needs.remove(sequence)
        if needs:
            later = self.needs.setdefault(step + self._block_size, needs)
            if later is not needs:
                later += needs


def _tokens(sequence: SequenceState) -> int:
    """Returns the tokens that a decode has computed at its end."""
    return sequence.prompt_tokens + sequence.output_tokens - 1 + sequence.stops
