"""Finds the keys and values of blocks in the sequences of llama.cpp.

The engine's KV cache counts in blocks, which sequences share by hash. llama.cpp has sequences
whose tokens lie in cells, and a copied range shares its cells. It looks at all used cells in each
step: 12,000 cells of ended sequences make a step 1.4 to 1.6 times as long. Therefore cells have the
tokens of running sequences only. When a sequence ends, its blocks are saved outside of the library,
and loaded again for the next sequence that shares them; both take 0.1 to 0.3 ms for a block of a
small model. A block that is lost nevertheless is computed again: hits, events and replies are the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from app.extensions.llm.llama_cpp.block_tokens import BlockTokens


class BlockOwner(Hashable, Protocol):
    """A sequence of the engine."""

    @property
    def blocks(self) -> Sequence[object]:
        """Its blocks; none if it does not run."""


Owner = TypeVar("Owner", bound=BlockOwner)


class Memory(Protocol):
    """The cells of llama.cpp."""

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Lets the sequence `target` share the tokens `start` to `end` of `source`."""

    def remove(self, sequence: int, start: int = 0, end: int = -1) -> None:
        """Removes the tokens `start` to `end` of a sequence; -1 is all that follow."""

    def save(self, sequence: int) -> Any:
        """Returns the keys and values of a sequence, or None if the library fails."""

    def load(self, content: Any, sequence: int) -> bool:
        """Gives a sequence the tokens that `save` returned; returns False without room."""


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

    One of the context's `sequences` is used to save and load blocks. `shares` is False for a model
    whose blocks cannot be shared.
    """

    def __init__(self, memory: Memory, size: int, sequences: int, shares: bool = True) -> None:
        self._memory = memory
        self.size = size
        """Tokens of a block."""
        self._shares = shares
        self._loader = Holder(sequences - 1)
        """The sequence that gets a block before a running one shares it."""
        self._unused = list(range(sequences - 2, -1, -1))
        self._running: dict[Owner, Holder] = {}
        self._holders: dict[int, dict[Holder, int]] = {}
        """Block -> its holders, each with the block's position."""
        self._saved: dict[int, object] = {}
        """Full block -> its keys and values; a running sequence may hold it, too."""
        self._tokens = BlockTokens(size)
        self._uncomputed: set[Holder] = set()
        """Holders with tokens in a batch that is not computed yet."""

    @property
    def saved_count(self) -> int:
        """Number of blocks that are saved."""
        return len(self._saved)

    def release(self, owner: Owner) -> None:
        """Notes that a sequence has ended or was preempted; its full blocks can still be found."""
        holder = self._running.pop(owner, None)
        if holder is None:
            return
        if self._shares:
            for position, block in enumerate(holder.blocks[: holder.tokens // self.size]):
                if block is not None and block not in self._saved:
                    self._save(holder, block, position)
        self._cut(holder, 0)
        self._unused.append(holder.number)

    def release_ended(self) -> None:
        """Releases the sequences that have ended or were preempted: their blocks are gone."""
        for owner in [owner for owner in self._running if not owner.blocks]:
            self.release(owner)

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
            holder = Holder(self._unused.pop())
            self._running[owner] = holder
        tokens = min(start, holder.tokens, self._common(holder, blocks))
        if tokens < holder.tokens:
            self._cut(holder, tokens)
        if tokens % self.size:  # a part of a block is never shared
            return holder.number, tokens
        last = start // self.size
        position = tokens // self.size
        while position < last:
            source = self._find_source(blocks[position], position)
            if source is None:
                break
            if source in self._uncomputed:
                compute()
            end = self._end_of_common(source, blocks, position, last)
            self._memory.copy(source.number, holder.number, position * self.size, end * self.size)
            for place in range(position, end):
                self._hold(holder, blocks[place], place)
            holder.tokens = end * self.size
            position = end
        self._unload()
        return holder.number, holder.tokens

    def share_part(
        self, owner: Owner, blocks: Sequence[int], tokens: Sequence[int], limit: int
    ) -> int:
        """Gives a sequence the first of its next `tokens` if a block begins with them.

        That block follows the same block, and another sequence has computed it. The engine counts
        only whole blocks as cached, as vLLM does. Returns the count of the tokens, at most `limit`.
        """
        holder = self._running[owner]
        position = holder.tokens // self.size
        if not self._shares or holder.tokens % self.size or not position:
            return 0
        if holder in self._uncomputed:  # with lost tokens, and the library adds none before others
            return 0
        block, count = self._tokens.find(blocks[position - 1], tokens[:limit])
        if not count:
            return 0
        source = self._find_source(block, position)
        if source is None or source in self._uncomputed:
            return 0
        start = holder.tokens
        self._memory.copy(source.number, holder.number, start, start + count)
        self._unload()
        return count

    def write(self, owner: Owner, blocks: Sequence[int], end: int, is_lost: bool) -> None:
        """Notes that a sequence gets its tokens up to `end`.

        What its blocks had before is removed, unless the tokens are lost ones of shared blocks,
        which a running sequence may still have.
        """
        holder = self._running[owner]
        size = self.size
        for position in range(holder.tokens // size, -(-end // size)):
            block = blocks[position]
            if not is_lost:
                self._overwrite(holder, block)
            self._hold(holder, block, position)
        holder.tokens = end

    def added(self, owner: Owner) -> None:
        """Notes that the batch has tokens of a sequence."""
        self._uncomputed.add(self._running[owner])

    def note_tokens(self, owner: Owner, start: int, ids: Sequence[int]) -> None:
        """Notes the tokens of a sequence from `start` on, after all of them are computed.

        `start` is the first token of a block.
        """
        if not self._shares:
            return
        holder = self._running[owner]
        size = self.size
        for position in range(max(1, start // size), holder.tokens // size):
            block = holder.blocks[position]
            parent = holder.blocks[position - 1]
            if block is not None and parent is not None:
                first = position * size - start
                self._tokens.add(parent, block, tuple(ids[first : first + size]))

    def _overwrite(self, holder: Holder, block: int) -> None:
        """Removes what a block had before a sequence writes it."""
        self._tokens.remove(block)
        self._saved.pop(block, None)
        for other, place in list(self._holders.get(block, {}).items()):
            if other is not holder:
                self._forget(other, place)
                first = place * self.size
                self._memory.remove(other.number, first, first + self.size)

    def _hold(self, holder: Holder, block: int, position: int) -> None:
        if position < len(holder.blocks):
            holder.blocks[position] = block
        else:
            holder.blocks.append(block)
        self._holders.setdefault(block, {})[holder] = position

    def _common(self, holder: Holder, blocks: Sequence[int]) -> int:
        """Returns the count of leading tokens that a holder has of `blocks`."""
        if holder.blocks == blocks[: len(holder.blocks)]:
            return holder.tokens
        for position, block in enumerate(holder.blocks):
            if position >= len(blocks) or block != blocks[position]:
                return position * self.size
        return holder.tokens

    def _find_source(self, block: int, position: int) -> Holder | None:
        """Returns a holder of a block at a position, into which it is loaded if need be."""
        for holder in self._holders.get(block, {}):
            if self._has(holder, block, position):
                return holder
        content = self._saved.get(block)
        if content is None:
            return None
        loader = self._loader
        self._unload()
        if not self._memory.load(content, loader.number):
            return None
        loader.tokens = self.size
        return loader

    def _unload(self) -> None:
        if self._loader.tokens:
            self._memory.remove(self._loader.number)
            self._loader.tokens = 0

    def _end_of_common(
        self, source: Holder, blocks: Sequence[int], position: int, last: int
    ) -> int:
        """Returns the end of the blocks from `position` on that a source has, before `last`."""
        end = position + 1
        while end < last and self._has(source, blocks[end], end):
            end += 1
        return end

    def _has(self, holder: Holder, block: int, position: int) -> bool:
        """Returns whether a holder has all tokens of a block at a position."""
        place = self._holders.get(block, {}).get(holder)
        return place == position and holder.tokens >= (position + 1) * self.size

    def _save(self, holder: Holder, block: int, position: int) -> None:
        """Saves a block, unless another running sequence holds it."""
        for other in self._holders[block]:
            if other is not holder and self._has(other, block, position):
                return
        first = position * self.size
        loader = self._loader.number
        self._memory.copy(holder.number, loader, first, first + self.size)
        content = self._memory.save(loader)
        if content is not None:
            self._saved[block] = content
        self._memory.remove(loader)

    def _cut(self, holder: Holder, tokens: int) -> None:
        """Removes the tokens of a holder from `tokens` on."""
        kept = -(-tokens // self.size)
        for position in range(kept, len(holder.blocks)):
            self._forget(holder, position)
        del holder.blocks[kept:]
        holder.tokens = tokens
        self._memory.remove(holder.number, tokens)

    def _forget(self, holder: Holder, position: int) -> None:
        block = holder.blocks[position]
        if block is None:
            return
        holder.blocks[position] = None
        holders = self._holders[block]
        del holders[holder]
        if not holders:
            del self._holders[block]
