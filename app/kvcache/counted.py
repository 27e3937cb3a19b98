"""A pool that counts blocks instead of hashing them: without prefix caching, and for offline runs.

Where no two prompts share a beginning, a hash says only one thing: which blocks of a preempted sequence
nobody has taken meanwhile. That follows from the order in which blocks became free (vLLM takes the one that
is free for the longest time, and of a sequence its tail first), so a queue of spans tells it without an
object for each block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from msgspec import Struct


class Span(Struct, gc=False):
    """Free blocks that stand together in the queue: the first `blocks` of what a sequence had.

    They are taken from its tail, so those that are left are always a beginning.
    """

    blocks: int


class CountedBlocks:
    """`num_blocks` blocks of `block_size` tokens, one of them vLLM's null block.

    With `caching` a sequence that is released to come back finds what is left of its whole blocks.
    """

    def __init__(self, num_blocks: int, block_size: int, caching: bool = True) -> None:
        self.capacity = num_blocks - 1
        self.block_size = block_size
        self.free = self.capacity
        """Blocks that no sequence uses; some of them may still be found."""
        self._caching = caching
        self._queue: deque[Span] = deque([Span(self.capacity)])
        """All free blocks; those that are taken next stand first."""
        self._left: dict[Hashable, Span] = {}
        """What sequences that are to come back have left in the queue."""

    def find(self, sequence: Hashable, tokens: int) -> int:
        """Blocks of the first `tokens` tokens that are there already; never the one of the last token."""
        span = self._left.get(sequence)
        return 0 if span is None else min(span.blocks, (tokens - 1) // self.block_size)

    def fits(self, sequence: Hashable, tokens: int, found: int) -> bool:
        """Whether the whole of a sequence could have its blocks now, `found` of which it has found."""
        return -(-tokens // self.block_size) <= self.free

    def begin(self, sequence: Hashable, found: int, count: int) -> None:
        """Give a sequence the blocks that it has found, and `count` more. The caller has checked `free`."""
        span = self._left.pop(sequence, None)
        if span is not None:
            span.blocks -= found
            self.free -= found
        self.grow(sequence, count)

    def grow(self, sequence: Hashable, count: int) -> None:
        """Give a sequence `count` more blocks. The caller has checked `free`."""
        self.free -= count
        queue = self._queue
        while count:
            first = queue[0]
            taken = min(first.blocks, count)
            first.blocks -= taken
            count -= taken
            if not first.blocks:
                queue.popleft()

    def filled(self, sequence: Hashable) -> None:
        """More of its prompt is computed, which nobody else looks for."""

    def release(self, sequence: Hashable, held: int, findable: int = 0) -> None:
        """A sequence no longer uses its `held` blocks; the first `findable` it may find again."""
        self.free += held
        kept = findable if self._caching else 0
        queue = self._queue
        if others := held - kept:
            if queue and not self._left:  # nobody comes back: one span says it all
                queue[-1].blocks += others
            else:
                queue.append(Span(others))
        if kept:
            self._left[sequence] = span = Span(kept)
            queue.append(span)

    def forget(self, sequence: Hashable) -> None:
        """A sequence that was to come back does not."""
        self._left.pop(sequence, None)
