"""Finds the keys and values of blocks in the sequences of llama.cpp.

The engine's KV cache counts in blocks, which sequences share by hash. llama.cpp has sequences
whose tokens lie in cells, and a copied range shares its cells. Therefore a block is found in any
sequence that holds it, and an ended sequence stays as the holder of its blocks until its number or
a cell is needed. A lost block is computed again: hits, events and replies are the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, Protocol, TypeVar

Owner = TypeVar("Owner", bound=Hashable)


class Memory(Protocol):
    """The cells of llama.cpp."""

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Lets the sequence `target` share the tokens `start` to `end` of `source`."""

    def remove(self, sequence: int, start: int = 0, end: int = -1) -> None:
        """Removes the tokens `start` to `end` of a sequence; -1 is all that follow."""


class Holder:
    """A sequence of llama.cpp, and the blocks whose tokens it has."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.blocks: list[int | None] = []
        """Blocks by position; None for a block whose tokens were removed."""
        self.tokens = 0
        """Tokens up to the last one."""


class BlockCells(Generic[Owner]):
    """The blocks in the sequences of one context. Not thread-safe.

    `size`: tokens of a block. `sequences`: sequences of the context.
    """

    def __init__(self, memory: Memory, size: int, sequences: int) -> None:
        self._memory = memory
        self._size = size
        self._unused = list(range(sequences - 1, -1, -1))
        self._running: dict[Owner, Holder] = {}
        self._idle: OrderedDict[Holder, None] = OrderedDict()
        """Holders of ended sequences, the least recently used first."""
        self._holders: dict[int, dict[Holder, int]] = {}
        """Block -> its holders, each with the block's position."""
        self._uncomputed: set[Holder] = set()
        """Holders with tokens in a batch that is not computed yet."""

    @property
    def idle_count(self) -> int:
        """Number of ended sequences that still hold blocks."""
        return len(self._idle)

    def release(self, owner: Owner) -> None:
        """Notes that a sequence has ended or was preempted; its blocks can still be found."""
        holder = self._running.pop(owner, None)
        if holder is None:
            return
        full_tokens = holder.tokens // self._size * self._size
        if full_tokens < holder.tokens:
            self._cut(holder, full_tokens)
        if self._is_needless(holder):
            self._drop(holder)
        else:
            self._idle[holder] = None

    def owners(self) -> list[Owner]:
        """Returns the running sequences."""
        return list(self._running)

    def computed(self) -> None:
        """Notes that the batch is computed."""
        self._uncomputed.clear()

    def place(
        self, owner: Owner, blocks: Sequence[int], start: int, compute: Callable[[], None]
    ) -> tuple[int, int]:
        """Gives a sequence the tokens before `start`, which its blocks have.

        Calls `compute`, which computes the batch, if they are in the batch: the engine lets a
        sequence share the blocks that another one fills in the same step. Returns its number, and
        the count of the tokens that it has now; those from there to `start` were lost.
        """
        holder = self._running.get(owner)
        if holder is None:
            holder = self._new_holder(owner)
        tokens = min(start, holder.tokens, self._common(holder, blocks))
        if tokens < holder.tokens:
            self._cut(holder, tokens)
        first = tokens // self._size
        if tokens % self._size:  # a part of a block is never shared
            return holder.number, tokens
        while first < start // self._size:
            source, end = self._find_source(blocks, first, start // self._size)
            if source is None:
                break
            if source in self._uncomputed:
                compute()
            self._share(source, holder, blocks, first=first, end=end)
            first = end
        return holder.number, holder.tokens

    def write(self, owner: Owner, blocks: Sequence[int], end: int, is_lost: bool) -> None:
        """Notes that a sequence gets its tokens up to `end`.

        What its blocks had before is removed, unless the tokens are lost ones of shared blocks,
        which a running sequence may still have.
        """
        holder = self._running[owner]
        size = self._size
        for position in range(holder.tokens // size, -(-end // size)):
            block = blocks[position]
            if not is_lost:
                for other, place in list(self._holders.get(block, {}).items()):
                    if other is not holder:
                        self._forget(other, place, removes=True)
            if position < len(holder.blocks):
                holder.blocks[position] = block
            else:
                holder.blocks.append(block)
            self._holders.setdefault(block, {})[holder] = position
        holder.tokens = end
        self._uncomputed.add(holder)

    def shrink(self) -> bool:
        """Drops all ended sequences, to free cells. Returns False if there are none."""
        idle = list(self._idle)
        for holder in idle:
            self._drop(holder)
        return bool(idle)

    def _new_holder(self, owner: Owner) -> Holder:
        if not self._unused:
            self._drop(next(iter(self._idle)))
        holder = Holder(self._unused.pop())
        self._running[owner] = holder
        return holder

    def _common(self, holder: Holder, blocks: Sequence[int]) -> int:
        """Returns the count of leading tokens that a holder has of `blocks`."""
        for position, block in enumerate(holder.blocks):
            if position >= len(blocks) or block != blocks[position]:
                return position * self._size
        return holder.tokens

    def _find_source(
        self, blocks: Sequence[int], first: int, last: int
    ) -> tuple[Holder | None, int]:
        """Returns a holder of the block at position `first`, and the end of its common blocks."""
        for holder in self._holders.get(blocks[first], {}):
            end = first
            while end < last and self._has(holder, blocks[end], end):
                end += 1
            if end > first:
                return holder, end
        return None, first

    def _share(
        self, source: Holder, holder: Holder, blocks: Sequence[int], *, first: int, end: int
    ) -> None:
        """Lets a holder share the blocks of another one at the positions `first` to `end`."""
        size = self._size
        self._memory.copy(source.number, holder.number, first * size, end * size)
        for position in range(first, end):
            holder.blocks.append(blocks[position])
            self._holders[blocks[position]][holder] = position
        holder.tokens = end * size
        if source in self._idle:
            self._idle.move_to_end(source)

    def _has(self, holder: Holder, block: int, position: int) -> bool:
        """Returns whether a holder has all tokens of a block at a position."""
        place = self._holders.get(block, {}).get(holder)
        return place == position and holder.tokens >= (position + 1) * self._size

    def _is_needless(self, holder: Holder) -> bool:
        """Returns whether other sequences hold all full blocks of a holder."""
        for position, block in enumerate(holder.blocks):
            is_full = holder.tokens >= (position + 1) * self._size
            if block is not None and is_full and not self._is_held_by_others(block, holder):
                return False
        return True

    def _is_held_by_others(self, block: int, holder: Holder) -> bool:
        return any(
            other is not holder and self._has(other, block, position)
            for other, position in self._holders[block].items()
        )

    def _cut(self, holder: Holder, tokens: int) -> None:
        """Removes the tokens of a holder from `tokens` on."""
        kept = -(-tokens // self._size)
        for position in range(kept, len(holder.blocks)):
            self._forget(holder, position, removes=False)
        del holder.blocks[kept:]
        holder.tokens = tokens
        self._memory.remove(holder.number, tokens)

    def _forget(self, holder: Holder, position: int, removes: bool) -> None:
        block = holder.blocks[position]
        if block is None:
            return
        holder.blocks[position] = None
        holders = self._holders[block]
        del holders[holder]
        if not holders:
            del self._holders[block]
        if removes:
            first = position * self._size
            self._memory.remove(holder.number, first, first + self._size)
            if holder in self._idle and not any(held is not None for held in holder.blocks):
                self._drop(holder)

    def _drop(self, holder: Holder) -> None:
        self._idle.pop(holder, None)
        self._cut(holder, 0)
        self._unused.append(holder.number)
