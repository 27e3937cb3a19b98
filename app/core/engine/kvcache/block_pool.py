"""Blocks of a KV cache: free blocks, blocks found by hash, and blocks in use."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

NULL_BLOCKS = 1
"""Number of placeholder blocks.

vLLM reserves the first block, which holds nothing and is never free.
"""
BLOCK_BYTES = 400
"""Memory of a block, in bytes: the object, its hash, and its entries in the queue and the index."""


class BlockObserver:
    """Follows blocks by number. A released block is `findable` if its content stays cached."""

    def allocated(self, block: int) -> None:
        """Called when a sequence gets a block to fill."""

    def accessed(self, block: int) -> None:
        """Called when a sequence finds the content of a block."""

    def released(self, block: int, findable: bool) -> None:
        """Called when a sequence releases a block."""

    def evicted(self, block: int) -> None:
        """Called when a block loses its content, if it has any."""

    def cleared(self) -> None:
        """Called when all blocks lose their content."""


class Block(Struct, gc=False, eq=False):
    """Room for one block of tokens, found by `hash`."""

    number: int
    references: int = 0
    hash: bytes | None = None


class BlockPool:
    """Pool of `num_blocks` blocks, including the null block, which allocates as vLLM 0.32 does.

    A full block can be cached under its hash. Equal blocks may be cached more than once; the first
    is found. An unused cached block stays until its room is needed: `on_evict` then receives the
    hashes. Blocks are reused in this order: empty ones, last released first, then cached ones,
    least recent first. Every operation is O(1) per block; `Block` objects are created on first use.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[Sequence[bytes]], None]) -> None:
        if num_blocks <= NULL_BLOCKS:
            raise ValueError(f"a pool requires at least {NULL_BLOCKS + 1} blocks")
        self.capacity = num_blocks - NULL_BLOCKS
        self.free = self.capacity
        """Number of blocks that no sequence uses, including cached ones."""
        self.observers: list[BlockObserver] = []
        self._on_evict = on_evict
        self._created = 0
        self._empty: deque[Block] = deque()
        self._unused: OrderedDict[Block, None] = OrderedDict()
        """Unused cached blocks, the least recent first."""
        self._cached: dict[bytes, Block] = {}
        self._copies: dict[bytes, dict[Block, None]] = {}
        """Blocks with the same hash, where there are several."""

    @property
    def size_bytes(self) -> int:
        """Memory of all blocks used so far, in bytes."""
        return self._created * BLOCK_BYTES

    @property
    def limit_bytes(self) -> int:
        """Memory of all blocks of the pool, in bytes."""
        return self.capacity * BLOCK_BYTES

    @property
    def usage(self) -> float:
        """Share of blocks in use, from 0 to 1 (vllm:kv_cache_usage_perc)."""
        return 1.0 - self.free / self.capacity

    def free_blocks(self) -> list[Block]:
        """Returns the free blocks in order of reuse, without blocks never used."""
        return [*self._empty, *self._unused]

    def longest_prefix(self, hashes: Iterable[bytes]) -> list[Block]:
        """Returns the cached blocks of `hashes`, up to the first hash that is not cached."""
        blocks = []
        for block_hash in hashes:
            block = self._cached.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def use(self, blocks: Iterable[Block]) -> None:
        """Assigns cached blocks to one more sequence."""
        for block in blocks:
            if block.references == 0:
                del self._unused[block]
                self.free -= 1
            block.references += 1
            for observer in self.observers:
                observer.accessed(block.number)

    def take(self, count: int) -> list[Block]:
        """Returns `count` empty blocks, evicting cached ones.

        Raises:
            IndexError: Too few blocks are free.
        """
        if count > self.free:
            raise IndexError(f"{count} blocks were requested, but only {self.free} are free")
        self.free -= count
        blocks = []
        evicted = []
        empty = self._empty
        for _ in range(count):
            if empty:
                block = empty.popleft()
            elif self._created < self.capacity:
                block = Block(NULL_BLOCKS + self._created)
                self._created += 1
            else:
                block = self._unused.popitem(last=False)[0]
            for observer in self.observers:
                observer.evicted(block.number)
                observer.allocated(block.number)
            if block.hash is not None:
                copies = self._copies.get(block.hash)
                if copies is None:
                    del self._cached[block.hash]
                else:
                    del copies[block]
                    self._cached[block.hash] = next(iter(copies))
                    if len(copies) == 1:
                        del self._copies[block.hash]
                evicted.append(block.hash)
                block.hash = None
            block.references = 1
            blocks.append(block)
        if evicted:
            self._on_evict(evicted)
        return blocks

    def cache(self, block: Block, block_hash: bytes) -> None:
        """Caches a full block, which is in use, under its hash."""
        block.hash = block_hash
        first = self._cached.setdefault(block_hash, block)
        if first is not block:
            self._copies.setdefault(block_hash, {first: None})[block] = None

    def release(self, blocks: Sequence[Block]) -> None:
        """Releases a sequence's blocks, the last one first.

        Later blocks are useless without earlier ones, and are reused first.
        """
        empty = []
        for block in reversed(blocks):
            block.references -= 1
            if block.references == 0:
                self.free += 1
                if block.hash is None:
                    empty.append(block)
                else:
                    self._unused[block] = None
            for observer in self.observers:
                observer.released(block.number, block.hash is not None)
        self._empty.extendleft(reversed(empty))

    def clear(self, used: Iterable[Block] = ()) -> None:
        """Makes all blocks unfindable, in their order of reuse. `used` are the blocks in use."""
        for block in (*self._unused, *used):
            block.hash = None
        self._empty.extend(self._unused)
        self._unused.clear()
        self._cached.clear()
        self._copies.clear()
        for observer in self.observers:
            observer.cleared()
