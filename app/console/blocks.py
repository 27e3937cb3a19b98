"""The map of KV blocks: the state of each block, its last owner, and evictions."""

from __future__ import annotations

from app.console.bars import Bar
from app.console.frames import Frame
from app.engine.kvcache.cache import KVCache

FREE, CACHED, HELD, SHARED = range(4)
"""States of a block: empty; unused but cached; used by one sequence; used by several."""
MOST_BLOCKS = 1 << 16
"""Blocks on the map: higher numbers are left out. The pool takes low numbers first."""


class BlockMap:
    """Observes the blocks of a cache while a page is open."""

    def __init__(self, cache: KVCache) -> None:
        self._cache, self._pool = cache, cache.pool
        self._uses: dict[int, int] = {}
        self._states: dict[int, int] = {}
        self._owners: dict[int, int] = {}
        self._held: dict[int, int] = {}
        """Number of blocks already marked as the bar's, by bar."""
        self._dirty: set[int] = set()
        self._evicted: list[int] = []
        self._firsts: dict[int, int] = {}
        """First block of each bar."""

    def begin(self) -> None:
        """Observes the cache from now on, and reads the state of each block."""
        self._pool.observers.append(self)
        held = [block for sequence in self._cache.running for block in sequence.blocks]
        for block in (*self._pool.free_blocks(), *held):
            if block.number < MOST_BLOCKS:
                self._set(block.number, block.references, CACHED if block.hash else FREE)

    def end(self) -> None:
        if self in self._pool.observers:
            self._pool.observers.remove(self)
        for kept in (self._uses, self._states, self._owners, self._held, self._firsts):
            kept.clear()
        self._dirty.clear()
        self._evicted.clear()

    # Calls from the pool.

    def allocated(self, block: int) -> None:
        self._set(block, 1)

    def accessed(self, block: int) -> None:
        self._set(block, self._uses.get(block, 0) + 1)

    def released(self, block: int, findable: bool) -> None:
        self._set(block, max(0, self._uses.get(block, 1) - 1), CACHED if findable else FREE)

    def evicted(self, block: int) -> None:
        if self._states.get(block) == CACHED:
            self._evicted.append(block)

    def cleared(self) -> None:
        for block, state in list(self._states.items()):
            if state == CACHED:
                self._set(block, 0)

    def _set(self, block: int, uses: int, unused: int = FREE) -> None:
        """Notes how many sequences use a block; `unused` is its state when none does."""
        if block < MOST_BLOCKS:
            self._uses[block] = uses
            self._states[block] = SHARED if uses > 1 else HELD if uses else unused
            self._dirty.add(block)

    # Output for the page.

    def claim(self, bar: Bar, frame: Frame) -> None:
        """Marks the blocks that a bar got since the last frame as the bar's."""
        if bar.sequence is None:
            return
        known = self._held.get(bar.number, 0)
        new = bar.sequence.block_numbers(known)
        if new:
            if not known:
                self._firsts[bar.number] = new[0]
                frame.firsts += (bar.number, new[0])
            self._held[bar.number] = known + len(new)
            for block in new:
                if block < MOST_BLOCKS:
                    self._owners[block] = bar.number
                    self._dirty.add(block)

    def forget(self, bar: int) -> None:
        """Forgets the blocks of a bar that ended or lost them; marks stay until another bar gets a block."""
        self._held.pop(bar, None)
        self._firsts.pop(bar, None)

    def changes(self, frame: Frame) -> None:
        """Writes the changes since the last frame into `frame`."""
        dirty, self._dirty = self._dirty, set()
        frame.blocks = self._rows(dirty)
        frame.evicted, self._evicted = self._evicted, []

    def picture(self, frame: Frame) -> None:
        """Writes all blocks that were ever used into `frame`."""
        frame.blocks = self._rows(self._states)
        frame.firsts = [value for pair in self._firsts.items() for value in pair]

    def _rows(self, blocks: set[int] | dict[int, int]) -> list[int]:
        states, owners = self._states, self._owners
        return [value for block in blocks for value in (block, states.get(block, FREE), owners.get(block, 0))]
