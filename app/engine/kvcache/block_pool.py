"""Blocks of a KV cache:

free blocks, blocks found by hash, and blocks in use; how long blocks stay.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from app.base.metrics.recorder import Recorder

NULL_BLOCKS = 1
"""Number of placeholder blocks:

vLLM reserves the first block, which holds nothing and is never free.
"""
BLOCK_BYTES = 400
"""Memory of a block, in bytes: the object, its hash, and its entries in the queue and the index."""


class BlockObserver:
    """Follows blocks by their numbers.

    A block is `allocated` to be filled, `accessed` by another sequence that finds its content, and
    `released` by a sequence (`findable` if its content stays cached). `evicted` drops its content,
    if any; `cleared` that of all blocks.
    """

    def allocated(self, block: int) -> None: ...
    def accessed(self, block: int) -> None: ...
    def released(self, block: int, findable: bool) -> None: ...
    def evicted(self, block: int) -> None: ...
    def cleared(self) -> None: ...


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

    def __init__(
        self,
        num_blocks: int,
        on_evict: Callable[[Sequence[bytes]], None],
        observer: BlockObserver | None = None,
    ) -> None:
        if num_blocks <= NULL_BLOCKS:
            raise ValueError(f"a pool needs more than {NULL_BLOCKS} block")
        self.capacity = num_blocks - NULL_BLOCKS
        self.free = self.capacity
        """Number of blocks that no sequence uses, including cached ones."""
        self.observers = [] if observer is None else [observer]
        self._on_evict = on_evict
        self._created = 0
        self._empty: deque[Block] = deque()
        self._unused: OrderedDict[Block, None] = OrderedDict()
        """Unused cached blocks, the least recent first."""
        self._cached: dict[bytes, Block] = {}
        self._copies: dict[bytes, dict[Block, None]] = {}

    @property
    def size_bytes(self) -> int:
        """Memory of all blocks used so far, in bytes."""
        return self._created * BLOCK_BYTES

    @property
    def limit_bytes(self) -> int:
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
        found = []
        for block_hash in hashes:
            block = self._cached.get(block_hash)
            if block is None:
                break
            found.append(block)
        return found

    def use(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            if block.references == 0:
                del self._unused[block]
                self.free -= 1
            block.references += 1
            for observer in self.observers:
                observer.accessed(block.number)

    def take(self, count: int) -> list[Block]:
        """Returns `count` empty blocks, evicting cached ones.

        Raises IndexError when too few are free.
        """
        if count > self.free:
            raise IndexError(f"{self.free} blocks are free, {count} are wanted")
        self.free -= count
        blocks, evicted, empty = [], [], self._empty
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
        """Releases a sequence's blocks, the last one first:

        later blocks are useless without earlier ones.
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
        for held in (self._unused, self._cached, self._copies):
            held.clear()
        for observer in self.observers:
            observer.cleared()


USES = 4
"""Number of recent uses remembered per block, for the gaps between uses."""
MOST_BLOCKS = 60_000
"""Most blocks that are followed, at about 1.1 KB each."""


class Residency(BlockObserver):
    """Follows a share `sample` of the blocks, at most `most`, as vLLM does with kv-cache-metrics."""

    def __init__(
        self,
        metrics: Recorder,
        sample: float,
        rng: Random,
        now: Callable[[], float],
        most: int = MOST_BLOCKS,
    ) -> None:
        self._metrics, self._sample, self._rng, self._now, self._most = (
            metrics,
            sample,
            rng,
            now,
            most,
        )
        self._lives: dict[int, tuple[float, deque[float]]] = {}

    def allocated(self, block: int) -> None:
        if self._rng.random() < self._sample and len(self._lives) < self._most:
            self._lives[block] = self._now(), deque(maxlen=USES)

    def accessed(self, block: int) -> None:
        if life := self._lives.get(block):
            life[1].append(self._now())

    def evicted(self, block: int) -> None:
        if (life := self._lives.pop(block, None)) is not None:
            (born, uses), now = life, self._now()
            gaps_s = [later - earlier for earlier, later in pairwise(uses)]
            self._metrics.block_evicted(now - born, now - (uses[-1] if uses else born), gaps_s)

    def cleared(self) -> None:
        self._lives.clear()


class FreeSpan(Struct, gc=False):
    """Adjacent free blocks in the queue, taken from the tail:

    the rest is always a sequence's beginning.
    """

    blocks: int


class CountedBlocks:
    """The scheduler's `Blocks`, which only counts its `num_blocks` blocks, including vLLM's null
    block.

    With `caching` a sequence released by preemption finds the rest of its whole blocks again.
    """

    def __init__(self, num_blocks: int, block_size: int, caching: bool = True) -> None:
        self.capacity = num_blocks - 1
        self.block_size = block_size
        self.free = self.capacity
        self._caching = caching
        self._queue: deque[FreeSpan] = deque([FreeSpan(self.capacity)])
        """All free blocks, in order of reuse."""
        self._left: dict[Hashable, FreeSpan] = {}
        """Free blocks of preempted sequences, still in the queue."""

    def find(self, sequence: Hashable, tokens: int) -> int:
        span = self._left.get(sequence)
        return 0 if span is None else min(span.blocks, (tokens - 1) // self.block_size)

    def fits(self, sequence: Hashable, tokens: int, found: int) -> bool:
        return -(-tokens // self.block_size) <= self.free

    def begin(self, sequence: Hashable, found: int, count: int) -> None:
        span = self._left.pop(sequence, None)
        if span is not None:
            span.blocks -= found
            self.free -= found
        self.grow(sequence, count)

    def grow(self, sequence: Hashable, count: int) -> None:
        self.free -= count
        queue = self._queue
        while count:
            first = queue[0]
            taken = min(first.blocks, count)
            first.blocks -= taken
            count -= taken
            if not first.blocks:
                queue.popleft()

    def filled(self, sequence: Hashable) -> None: ...

    def release(self, sequence: Hashable, held: int, findable: int = 0) -> None:
        self.free += held
        kept = findable if self._caching else 0
        queue = self._queue
        if others := held - kept:
            if queue and not self._left:  # no sequence will look for blocks: one span is enough
                queue[-1].blocks += others
            else:
                queue.append(FreeSpan(others))
        if kept:
            self._left[sequence] = span = FreeSpan(kept)
            queue.append(span)

    def forget(self, sequence: Hashable) -> None:
        self._left.pop(sequence, None)
