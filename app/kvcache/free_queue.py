"""Blocks that no sequence uses, in the order in which they are used again."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence

from msgspec import Struct


class Block(Struct, gc=False, eq=False):
    """Room for the keys and values of one block of tokens.

    `hash` is set while the block can be found by it, `adapter` names the one whose tokens it holds, `freed`
    counts releases so that blocks can be put in the order of theirs.
    """

    number: int
    references: int = 0
    hash: bytes | None = None
    adapter: str | None = None
    freed: int = 0


class FreeQueue:
    """Free blocks: first those that hold nothing, last returned first, then cached ones, least recent first.

    Cached blocks of adapters that are unloaded come before other cached ones, if `unload` is told of them.
    Taking, returning and removing a block is O(1). Blocks that were never used are made when they are needed.
    """

    def __init__(self, first: int, end: int) -> None:
        """Holds the blocks numbered from `first` up to `end`, not included."""
        self._untouched = iter(range(first, end))
        self._left = end - first
        self._empty: deque[Block] = deque()
        self._cached: OrderedDict[Block, None] = OrderedDict()
        self._unloaded: OrderedDict[Block, None] = OrderedDict()
        self._absent: set[str] = set()
        self._releases = 0

    def __len__(self) -> int:
        return self._left + len(self._empty) + len(self._cached) + len(self._unloaded)

    def __iter__(self) -> Iterator[Block]:
        """The blocks in their order, without those that were never used."""
        yield from self._empty
        yield from self._unloaded
        yield from self._cached

    def take(self) -> Block:
        """The block that goes first. IndexError when there is none."""
        if self._empty:
            return self._empty.popleft()
        if self._left:
            self._left -= 1
            return Block(next(self._untouched))
        queue = self._unloaded or self._cached
        if not queue:
            raise IndexError("no block is free")
        return queue.popitem(last=False)[0]

    def remove(self, block: Block) -> None:
        """A cached block is used again. KeyError when it is not here."""
        del self._queue_of(block)[block]

    def give_back(self, blocks: Sequence[Block]) -> None:
        """Blocks are free from now on; of those that hold something the first ones are taken first."""
        self._releases += 1
        empty = []
        for block in blocks:
            if block.hash is None:
                empty.append(block)
            else:
                block.freed = self._releases
                self._queue_of(block)[block] = None
        self._empty.extendleft(reversed(empty))

    def empty_all(self) -> None:
        """Cached blocks hold nothing any more; the order stays."""
        self._empty.extend(self._unloaded)
        self._empty.extend(self._cached)
        self._unloaded.clear()
        self._cached.clear()

    def unload(self, adapter: str) -> None:
        """Blocks of `adapter`, those here and those that come, go before other cached ones. O(blocks)."""
        self._absent.add(adapter)
        self._sort()

    def load(self, adapter: str) -> None:
        """Blocks of `adapter` are cached ones like others. O(blocks)."""
        self._absent.discard(adapter)
        self._sort()

    def _sort(self) -> None:
        """Distribute cached blocks anew. Python's sort is stable and linear for two sorted runs."""
        blocks = sorted([*self._unloaded, *self._cached], key=lambda block: block.freed)
        self._unloaded.clear()
        self._cached.clear()
        for block in blocks:
            self._queue_of(block)[block] = None

    def _queue_of(self, block: Block) -> OrderedDict[Block, None]:
        return self._unloaded if block.adapter in self._absent else self._cached
