"""The map of KV blocks on the console page: the state and the last bar of each block."""

from collections.abc import Iterable

from app.core.engine.kvcache.block_pool import BlockObserver
from app.core.engine.kvcache.cache import KVCache
from app.extensions.console.bars import Bar
from app.extensions.console.frames import Frame

FREE = 0
CACHED = 1
"""State of a block that no sequence uses, but whose contents are cached."""
HELD = 2
"""State of a block that one sequence uses."""
SHARED = 3
"""State of a block that several sequences use."""
NO_USES_BUT_CACHED = -1
MAX_BLOCKS = 1 << 16
"""Blocks on the map; higher numbers are left out. The pool takes low numbers first."""


class BlockMap(BlockObserver):
    """Observes the blocks of a cache while a page is open."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._pool = cache.pool
        self._uses: dict[int, int] = {}
        """Sequences that use a block, or `NO_USES_BUT_CACHED`."""
        self._owners: dict[int, int] = {}
        """Last bar that took a block."""
        self._blocks_of_bar: dict[int, list[int]] = {}
        """Blocks of each bar that were written already."""
        self._dirty: set[int] = set()
        self._evicted: list[int] = []

    def attach(self) -> None:
        """Starts to observe the cache, and reads the state of each block."""
        self._pool.observers.append(self)
        used = [block for sequence in self._cache.running for block in sequence.blocks]
        for block in (*self._pool.free_blocks(), *used):
            uses = block.references
            if not uses and block.hash:
                uses = NO_USES_BUT_CACHED
            self._set(block.number, uses)

    def detach(self) -> None:
        """Stops to observe the cache, and forgets all blocks."""
        if self in self._pool.observers:
            self._pool.observers.remove(self)
        self._uses = {}
        self._owners = {}
        self._blocks_of_bar = {}
        self._dirty = set()
        self._evicted = []

    # Calls from the pool.

    def allocated(self, block: int) -> None:
        """Records that a sequence took an empty block."""
        self._set(block, 1)

    def accessed(self, block: int) -> None:
        """Records that one more sequence uses a block."""
        self._set(block, max(0, self._uses.get(block, 0)) + 1)

    def released(self, block: int, findable: bool) -> None:
        """Records that one sequence less uses a block."""
        uses = max(0, self._uses.get(block, 1) - 1)
        if not uses and findable:
            uses = NO_USES_BUT_CACHED
        self._set(block, uses)

    def evicted(self, block: int) -> None:
        """Records that a block lost its cached contents."""
        if self._uses.get(block) == NO_USES_BUT_CACHED:
            self._evicted.append(block)

    def cleared(self) -> None:
        """Records that the whole cache was emptied."""
        for block, uses in list(self._uses.items()):
            if uses == NO_USES_BUT_CACHED:
                self._set(block, 0)

    def _set(self, block: int, uses: int) -> None:
        if block < MAX_BLOCKS:
            self._uses[block] = uses
            self._dirty.add(block)

    # Output for the page.

    def claim(self, bar: Bar, frame: Frame) -> None:
        """Marks the blocks that a bar got since the last frame as the bar's."""
        if bar.sequence is None:
            return
        blocks = self._blocks_of_bar.setdefault(bar.number, [])
        new_blocks = bar.sequence.block_numbers(len(blocks))
        if new_blocks and not blocks:
            frame.firsts += (bar.number, new_blocks[0])
        blocks += new_blocks
        self._owners |= dict.fromkeys(new_blocks, bar.number)
        self._dirty.update(new_blocks)

    def forget(self, bar_number: int) -> None:
        """Forgets the blocks of a bar that ended or was preempted.

        The bar stays the last one of each block until another bar gets the block.
        """
        self._blocks_of_bar.pop(bar_number, None)

    def write_changes(self, frame: Frame) -> None:
        """Writes the blocks that changed since the last frame into `frame`."""
        frame.blocks = self._rows(self._dirty)
        frame.evicted = self._evicted
        self._dirty = set()
        self._evicted = []

    def write_picture(self, frame: Frame) -> None:
        """Writes all blocks that were ever used into `frame`."""
        frame.blocks = self._rows(self._uses)
        for bar_number, blocks in self._blocks_of_bar.items():
            if blocks:
                frame.firsts += (bar_number, blocks[0])

    def _rows(self, blocks: Iterable[int]) -> list[int]:
        rows: list[int] = []
        for block in blocks:
            state = _state(self._uses.get(block, 0))
            rows += (block, state, self._owners.get(block, 0))
        return rows


def _state(uses: int) -> int:
    if uses == NO_USES_BUT_CACHED:
        return CACHED
    if uses > 1:
        return SHARED
    if uses == 1:
        return HELD
    return FREE
