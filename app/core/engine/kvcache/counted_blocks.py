"""Blocks of a KV cache that are only counted, for simulations without a cache of prompts."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from msgspec import Struct

from app.core.engine.batch import SequenceState


class FreeSpan(Struct, gc=False):
    """Adjacent free blocks in the queue.

    Blocks are taken from the tail: the span stays the beginning of a sequence.
    """

    blocks: int


class CountedBlocks:
    """The scheduler's `Blocks`, which only counts `num_blocks` blocks, with vLLM's null block.

    With `caching` a sequence released by preemption finds its remaining whole blocks again.
    """

    policies = ()

    def __init__(self, num_blocks: int, block_size: int, caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.capacity = num_blocks - 1
        self.block_size = block_size
        self.free = self.capacity
        self._caching = caching
        self._queue: deque[FreeSpan] = deque([FreeSpan(self.capacity)])
        """All free blocks, in order of reuse."""
        self._left: dict[Hashable, FreeSpan] = {}
        """Free blocks of preempted sequences, still in the queue."""

    def find(self, sequence: Hashable, tokens: int) -> int:
        """Returns how many blocks of its first `tokens` tokens a preempted sequence finds again."""
        span = self._left.get(sequence)
        if span is None:
            return 0
        return min(span.blocks, (tokens - 1) // self.block_size)

    def fits(self, sequence: Hashable, tokens: int, cached: int, spare: int = 0) -> bool:
        """Returns whether all blocks of the sequence fit now, besides `spare` free ones."""
        return -(-tokens // self.block_size) + spare <= self.free

    def begin(self, sequence: Hashable, cached: int, count: int) -> None:
        """Assigns the `cached` blocks that `find` returned, and `count` new ones."""
        span = self._left.pop(sequence, None)
        if span is not None:
            span.blocks -= cached
            self.free -= cached
        self.grow(sequence, count)

    def lacks(self, sequence: SequenceState, tokens: int) -> bool:
        """Returns whether too few blocks are free for the first `tokens` tokens."""
        return -(-tokens // self.block_size) - sequence.held > self.free

    def grow(self, sequence: Hashable, count: int) -> None:
        """Assigns `count` more blocks."""
        self.free -= count
        queue = self._queue
        if queue and queue[0].blocks > count:  # as nearly always
            queue[0].blocks -= count
            return
        while count:
            first = queue[0]
            taken = min(first.blocks, count)
            first.blocks -= taken
            count -= taken
            if not first.blocks:
                queue.popleft()

    def filled(self, sequence: Hashable) -> None:
        """Does nothing: other sequences cannot find the blocks."""

    def release(self, sequence: Hashable, held: int, findable: int = 0) -> None:
        """Frees `held` blocks; with `caching` the sequence may find the first `findable` again.

        Blocks that are not full are reused first.
        """
        self.free += held
        if not self._caching:
            findable = 0
        queue = self._queue
        full = findable
        if isinstance(sequence, SequenceState) and sequence.last:
            # The last token of a reply is not computed.
            computed = sequence.prompt_tokens + max(0, sequence.output_tokens - 1)
            full = min(held, computed // self.block_size)
        if queue and not self._left:  # no sequence will look for blocks: one span is enough
            queue[-1].blocks += held - findable
        else:
            if held > full:
                queue.appendleft(FreeSpan(held - full))
            if full > findable:
                queue.append(FreeSpan(full - findable))
        if findable:
            span = FreeSpan(findable)
            self._left[sequence] = span
            queue.append(span)

    def release_late(self, sequence: Hashable, held: int) -> None:
        """Frees the blocks of a sequence that left before."""
        self.release(sequence, held)

    def forget(self, sequence: Hashable) -> None:
        """Drops the entry of a sequence that will not run again."""
        self._left.pop(sequence, None)
