"""The map of KV blocks: what each block is now, whose it was last, what was evicted."""

from __future__ import annotations

from app.clock.pause import pause_if_possible
from app.console.bars import Bar
from app.console.frames import Frame
from app.kvcache.cache import KVCache
from app.kvcache.residency import BlockObserver

FREE, CACHED, HELD, SHARED = range(4)
"""States of a block: empty; unused, and can be found; used by one sequence; by several."""
MOST_BLOCKS = 1 << 16
"""Blocks of higher numbers are not on the map. The pool takes low numbers first."""


SLICE_BLOCKS = 1 << 13
"""Blocks that are looked at before others have their turn, and most of a frame; some 3 ms of work."""


class BlockMap:
    """Observes the blocks of a cache while somebody looks; who observed them before goes on doing so."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._behind: BlockObserver | None = None
        self._uses: dict[int, int] = {}
        self._states: dict[int, int] = {}
        self._owners: dict[int, int] = {}
        self._held: dict[int, int] = {}
        """By bar: of how many of its blocks it is known that they are its."""
        self._dirty: set[int] = set()
        self._evicted: list[int] = []
        self._looks: object = None
        """Another one each time that somebody begins to look."""
        self._firsts: dict[int, int] = {}
        """By bar: its first block."""

    def begin(self) -> None:
        """Be told what becomes of blocks, and find out what each of them is. May pause."""
        self._behind = self._cache.observer
        self._cache.observe(self)
        self._looks = looks = object()
        for number, block in enumerate(list(self._cache.blocks()), 1):
            if block.number < MOST_BLOCKS:
                self._uses[block.number] = uses = block.references
                unused = CACHED if block.hash else FREE
                self._set(block.number, unused if not uses else HELD if uses < 2 else SHARED)
            if number % SLICE_BLOCKS == 0:
                pause_if_possible()
                if self._looks is not looks:
                    return

    def end(self) -> None:
        self._looks = None
        if self._cache.observer is self:
            self._cache.observe(self._behind)
        self._behind = None
        for kept in (
            self._uses,
            self._states,
            self._owners,
            self._held,
            self._dirty,
            self._evicted,
            self._firsts,
        ):
            kept.clear()

    # What the pool tells.

    def allocated(self, block: int) -> None:
        if block < MOST_BLOCKS:
            self._uses[block] = 1
            self._set(block, HELD)
        if self._behind is not None:
            self._behind.allocated(block)

    def accessed(self, block: int) -> None:
        if block < MOST_BLOCKS:
            self._uses[block] = uses = self._uses.get(block, 0) + 1
            self._set(block, HELD if uses < 2 else SHARED)
        if self._behind is not None:
            self._behind.accessed(block)

    def released(self, block: int, findable: bool) -> None:
        if block < MOST_BLOCKS:
            self._uses[block] = uses = max(0, self._uses.get(block, 1) - 1)
            unused = CACHED if findable else FREE
            self._set(block, unused if not uses else HELD if uses < 2 else SHARED)
        if self._behind is not None:
            self._behind.released(block, findable)

    def evicted(self, block: int) -> None:
        if self._states.get(block) == CACHED:
            self._evicted.append(block)
        if self._behind is not None:
            self._behind.evicted(block)

    def cleared(self) -> None:
        for block, state in list(self._states.items()):
            if state == CACHED:
                self._set(block, FREE)
        if self._behind is not None:
            self._behind.cleared()

    def _set(self, block: int, state: int) -> None:
        self._states[block] = state
        self._dirty.add(block)

    # What the page is told.

    def claim(self, bar: Bar, frame: Frame) -> None:
        """Blocks that a bar has got since the frame before are its."""
        if bar.sequence is None:
            return
        known = self._held.get(bar.number, 0)
        new = bar.sequence.blocks_from(known)
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
        """A bar is over, or has lost its blocks; they stay marked as its until another one has them."""
        self._held.pop(bar, None)
        self._firsts.pop(bar, None)

    def changes(self, frame: Frame) -> None:
        """Write into `frame` what has changed since the one before."""
        dirty = self._dirty
        if len(dirty) > SLICE_BLOCKS:
            dirty = {self._dirty.pop() for _ in range(SLICE_BLOCKS)}
        else:
            self._dirty = set()
        frame.blocks = self._rows(dirty)
        frame.evicted, self._evicted = self._evicted, []

    def picture(self, frame: Frame) -> None:
        """All blocks that were ever used."""
        frame.blocks = self._rows(self._states)
        frame.firsts = [value for pair in self._firsts.items() for value in pair]

    def _rows(self, blocks: set[int] | dict[int, int]) -> list[int]:
        states, owners = self._states, self._owners
        return [value for block in blocks for value in (block, states.get(block, FREE), owners.get(block, 0))]
