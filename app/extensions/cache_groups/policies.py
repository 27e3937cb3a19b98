"""Blocks that each kind of KV cache group needs, caches and finds, as vLLM 0.32's managers do.

All counts are in blocks, which have the same number of tokens in all groups. A table of blocks has
None for each block that the group no longer needs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from app.core.engine.kvcache.block_pool import Block
from app.extensions.cache_groups.layers import GroupSpec

Row: TypeAlias = list[Block | None]
"""Blocks of a sequence in one group, by position."""

CachedAt: TypeAlias = Callable[[int], Sequence[Block] | None]
"""Returns the cached blocks at a position of a prompt, one for each group of a kind.

None if a group lacks the block.
"""

STATES = 2
"""Maximum number of states of linear attention that a sequence holds: the last two."""


class Policy:
    """Full attention: needs and keeps every block."""

    reads_all = True
    """True if a prompt is found only as far as all its blocks are cached."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size

    def unneeded(self, computed: int) -> int:
        """Returns the number of first blocks that a sequence with `computed` tokens can free."""
        return 0

    def first_unneeded(self, count: int) -> int | None:
        """Returns the number of computed tokens that frees the first `count` blocks, if any."""
        return None

    def reachable(self, boundary: int) -> range:
        """Returns the positions that a hit at `boundary`, in blocks, reads."""
        return range(boundary)

    def mask_of_cached(
        self, first: int, last: int, boundaries: Collection[int], interval: int
    ) -> list[bool] | None:
        """Returns which of the blocks `first` to `last` (exclusive) are cached; None for all.

        `boundaries` are the positions where later prompts may go on, `interval` the distance of
        further ones, both in blocks.
        """
        return None

    def longest(self, cached_at: CachedAt, limit: int) -> tuple[int, dict[int, Sequence[Block]]]:
        """Returns the longest cached prefix up to `limit`, and the blocks that it reads."""
        blocks: dict[int, Sequence[Block]] = {}
        for position in range(limit):
            cached = cached_at(position)
            if cached is None:
                return position, blocks
            blocks[position] = cached
        return limit, blocks

    def needed(self, blocks: int, computed: int, hits: Row) -> int:
        """Returns what the first `blocks` of a new sequence take from the pool.

        The sequence has found `hits`, and `computed` of its tokens need no computation.
        """
        new = blocks - max(self.unneeded(computed), len(hits))
        return max(0, new) + self._unused(computed, hits)

    def needed_in_step(self, blocks: int, computed: int, hits: Row) -> int:
        """Returns what the step that admits a sequence takes; see `needed`."""
        return self.needed(blocks, computed, hits)

    def needed_at_once(self, blocks: int, computed: int, hits: Row) -> int:
        """Returns the maximum that a prompt of `blocks` takes while its chunks are computed."""
        new = blocks - max(self.unneeded(computed), len(hits))
        return self.held(max(0, new), 0) + self._unused(computed, hits)

    def _unused(self, computed: int, hits: Row) -> int:
        """Returns how many of the `hits` that the sequence reads belong to no other sequence."""
        used = hits[self.unneeded(computed) :]
        return sum(block is not None and not block.references for block in used)

    def missing(self, blocks: int, row: Row) -> int:
        """Returns what a running sequence with the blocks in `row` takes, to have `blocks`."""
        return max(0, blocks - len(row))

    def held(self, blocks: int, step_blocks: int) -> int:
        """Returns the maximum that a sequence of `blocks` holds.

        Includes what the scheduler asks for in a step that computes `step_blocks`.
        """
        return blocks


class SlidingWindow(Policy):
    """Needs the blocks of the last `window` tokens."""

    reads_all = False

    def __init__(self, block_size: int, window: int, step_tokens: int, max_tokens: int) -> None:
        """A step computes at most `step_tokens` of at most `max_tokens`."""
        tokens = min(window - 1 + step_tokens, max_tokens)
        super().__init__(block_size)
        self.max_blocks = -(-tokens // block_size) + 1
        """Maximum number of blocks that a sequence holds."""
        self.window = window
        self.hit_blocks = -(-(window - 1) // block_size)
        """Number of adjacent blocks that a hit reads."""

    def held(self, blocks: int, step_blocks: int) -> int:
        """See `Policy`."""
        return min(blocks, self.max_blocks)

    def unneeded(self, computed: int) -> int:
        """See `Policy`."""
        return max(0, computed - self.window + 1) // self.block_size

    def first_unneeded(self, count: int) -> int | None:
        """See `Policy`."""
        return count * self.block_size + self.window - 1

    def reachable(self, boundary: int) -> range:
        """See `Policy`."""
        return range(max(0, boundary - self.hit_blocks), boundary)

    def mask_of_cached(
        self, first: int, last: int, boundaries: Collection[int], interval: int
    ) -> list[bool] | None:
        """See `Policy`."""
        if interval and self.hit_blocks >= interval:
            return None
        mask = [False] * (last - first)
        if interval:
            for position in range(first, last):
                mask[position - first] = position % interval >= interval - self.hit_blocks
        for boundary in boundaries:
            for position in self.reachable(boundary):
                if first <= position < last:
                    mask[position - first] = True
        return mask

    def longest(self, cached_at: CachedAt, limit: int) -> tuple[int, dict[int, Sequence[Block]]]:
        """See `Policy`. A run that begins with the prompt counts, however short."""
        blocks: dict[int, Sequence[Block]] = {}
        for position in range(limit - 1, -1, -1):
            cached = cached_at(position)
            if cached is None:
                blocks = {}
                continue
            blocks[position] = cached
            if len(blocks) == self.hit_blocks:
                return position + self.hit_blocks, blocks
        return len(blocks), blocks


class LinearAttention(Policy):
    """Needs the state after the last token: the last block alone."""

    reads_all = False

    def unneeded(self, computed: int) -> int:
        """See `Policy`."""
        return max(0, computed - 1) // self.block_size

    def first_unneeded(self, count: int) -> int | None:
        """See `Policy`."""
        return count * self.block_size + 1

    def reachable(self, boundary: int) -> range:
        """See `Policy`."""
        return range(max(0, boundary - 1), boundary)

    def mask_of_cached(
        self, first: int, last: int, boundaries: Collection[int], interval: int
    ) -> list[bool] | None:
        """See `Policy`."""
        if interval == 1:
            return None
        mask = [False] * (last - first)
        for position in range(first, last):
            is_segment_end = interval > 0 and (position + 1) % interval == 0
            mask[position - first] = is_segment_end or position + 1 in boundaries
        return mask

    def longest(self, cached_at: CachedAt, limit: int) -> tuple[int, dict[int, Sequence[Block]]]:
        """See `Policy`."""
        for position in range(limit - 1, -1, -1):
            cached = cached_at(position)
            if cached is not None:
                return position + 1, {position: cached}
        return 0, {}

    def needed(self, blocks: int, computed: int, hits: Row) -> int:
        """See `Policy`. A step keeps only the state after its last token."""
        return self.missing(blocks, hits) + self._unused(0, hits)

    def needed_in_step(self, blocks: int, computed: int, hits: Row) -> int:
        """See `Policy`. A prompt that loads others needs the loaded state, too.

        vLLM does not count that one: its scheduler raises an exception if no block is left.
        """
        loaded = -(-computed // self.block_size)
        held = max(len(hits), self.unneeded(computed))
        states = max(0, loaded - held) + min(1, max(0, blocks - max(loaded, held)))
        return states + self._unused(0, hits)

    def needed_at_once(self, blocks: int, computed: int, hits: Row) -> int:
        """See `Policy`. A prompt without a hit needs its last two states at once."""
        new = max(0, blocks - len(hits))
        return min(new, STATES - bool(hits)) + self._unused(0, hits)

    def missing(self, blocks: int, row: Row) -> int:
        """See `Policy`."""
        return min(1, super().missing(blocks, row))

    def held(self, blocks: int, step_blocks: int) -> int:
        """See `Policy`. The scheduler asks for as many blocks as of the other groups."""
        return min(blocks, STATES + step_blocks)


def policy_of(spec: GroupSpec, block_size: int, step_tokens: int, max_tokens: int) -> Policy:
    """Returns the policy of a group."""
    if spec.window is not None:
        return SlidingWindow(block_size, spec.window, step_tokens, max_tokens)
    if spec.kind == "mamba":
        return LinearAttention(block_size)
    return Policy(block_size)
