"""The blocks of a KV cache: which are free, which can be found by their hash, who uses them."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

from msgspec import Struct

from app.kvcache.residency import BlockObserver

NULL_BLOCKS = 1
"""vLLM keeps one block, the first, as a placeholder; it holds nothing and is never free."""
BLOCK_BYTES = 400
"""What a block takes in memory: itself, its hash, its places in the queue and among those that are found."""
MOST_UNLOADED = 1000
"""Names of unloaded adapters that are remembered, the latest ones."""


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
        self._numbers = iter(range(first, end))
        self.untouched = end - first
        """Blocks that were never used."""
        self.free = end - first
        """All free blocks; read several times a step."""
        self._empty: deque[Block] = deque()
        self._cached: OrderedDict[Block, None] = OrderedDict()
        self._unloaded: OrderedDict[Block, None] = OrderedDict()
        self._absent: dict[str, None] = {}
        self._releases = 0

    def __iter__(self) -> Iterator[Block]:
        """The blocks in their order, without those that were never used."""
        yield from self._empty
        yield from self._unloaded
        yield from self._cached

    def take(self) -> Block:
        """The block that goes first. IndexError when there is none."""
        if not self.free:
            raise IndexError("no block is free")
        self.free -= 1
        if self._empty:
            return self._empty.popleft()
        if self.untouched:
            self.untouched -= 1
            return Block(next(self._numbers))
        queue = self._unloaded or self._cached
        return queue.popitem(last=False)[0]

    def remove(self, block: Block) -> None:
        """A cached block is used again. KeyError when it is not here."""
        del self._queue_of(block)[block]
        self.free -= 1

    def give_back(self, blocks: Sequence[Block]) -> None:
        """Blocks are free from now on; of those that hold something the first ones are taken first."""
        self._releases += 1
        self.free += len(blocks)
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
        if adapter in self._absent:
            return
        self._absent[adapter] = None
        if len(self._absent) > MOST_UNLOADED:
            del self._absent[next(iter(self._absent))]
        self._sort()

    def load(self, adapter: str) -> None:
        """Blocks of `adapter` are cached ones like others. O(blocks)."""
        if adapter in self._absent:
            del self._absent[adapter]
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


class BlockPool:
    """`num_blocks` blocks, one of them the null block, as vLLM 0.32 hands them out.

    A block that holds a full block of tokens can be cached under its hash; equal blocks may be cached more
    than once, and the first of them is found. A cached block that nobody uses stays until its room is needed:
    `on_evict` is then called with the hashes. Every operation is O(1) per block.
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
        """Blocks that sequences can use."""
        self.queue = FreeQueue(NULL_BLOCKS, num_blocks)
        self._cached: dict[bytes, Block] = {}
        self._copies: dict[bytes, dict[Block, None]] = {}
        self._on_evict = on_evict
        self.observer = observer
        """Is told what becomes of blocks; another one may take its place at any time."""

    @property
    def size_bytes(self) -> int:
        """What the blocks take that were ever used."""
        return (self.capacity - self.queue.untouched) * BLOCK_BYTES

    @property
    def limit_bytes(self) -> int:
        return self.capacity * BLOCK_BYTES

    @property
    def free(self) -> int:
        """Blocks that no sequence uses, cached ones too."""
        return self.queue.free

    @property
    def usage(self) -> float:
        """The share of blocks that sequences use, from 0 to 1 (vllm:kv_cache_usage_perc)."""
        return 1.0 - self.free / self.capacity

    def longest_prefix(self, hashes: Iterable[bytes]) -> list[Block]:
        """The cached blocks of the first of `hashes`, up to the first that is not cached."""
        found = []
        for block_hash in hashes:
            block = self._cached.get(block_hash)
            if block is None:
                break
            found.append(block)
        return found

    def use(self, blocks: Iterable[Block]) -> None:
        """One more sequence uses these cached blocks."""
        for block in blocks:
            if block.references == 0:
                self.queue.remove(block)
            block.references += 1
            if self.observer:
                self.observer.accessed(block.number)

    def take(self, count: int) -> list[Block]:
        """Blocks for a sequence to fill, what they held is forgotten. The caller has checked `free`."""
        blocks, evicted = [], []
        for _ in range(count):
            block = self.queue.take()
            if self.observer:
                self.observer.evicted(block.number)
                self.observer.allocated(block.number)
            if block.hash is not None:
                self._forget(block, block.hash)
                evicted.append(block.hash)
                block.hash = None
            block.references = 1
            blocks.append(block)
        if evicted:
            self._on_evict(evicted)
        return blocks

    def cache(self, block: Block, block_hash: bytes, adapter: str | None = None) -> None:
        """`block`, which is in use and holds nothing yet, holds the tokens of this hash from now on."""
        block.hash, block.adapter = block_hash, adapter
        first = self._cached.setdefault(block_hash, block)
        if first is not block:
            self._copies.setdefault(block_hash, {first: None})[block] = None

    def release(self, blocks: Sequence[Block]) -> None:
        """A sequence no longer uses its `blocks`. The last goes first: it is no use without the others."""
        unused, observer = [], self.observer
        for block in reversed(blocks):
            block.references -= 1
            if block.references == 0:
                unused.append(block)
            if observer:
                observer.released(block.number, block.hash is not None)
        self.queue.give_back(unused)

    def clear(self, used: Iterable[Block] = ()) -> None:
        """No block can be found any more. `used` are those that sequences still use."""
        for block in (*self.queue, *used):
            block.hash = None
        self.queue.empty_all()
        self._cached.clear()
        self._copies.clear()
        if self.observer:
            self.observer.cleared()

    def _forget(self, block: Block, block_hash: bytes) -> None:
        copies = self._copies.get(block_hash)
        if copies is None:
            del self._cached[block_hash]
            return
        del copies[block]
        self._cached[block_hash] = next(iter(copies))
        if len(copies) == 1:
            del self._copies[block_hash]

    def check_integrity(self, used: Iterable[Sequence[Block]]) -> None:
        """RuntimeError unless every block is in one place. `used` are each sequence's blocks. O(blocks)."""
        references: dict[Block, int] = {}
        for blocks in used:
            for block in blocks:
                references[block] = references.get(block, 0) + 1
        idle = list(self.queue)
        everyone = {*idle, *references}
        hashed = {block for block in everyone if block.hash is not None}
        found = set(self._cached.values()).union(*self._copies.values())
        for broken, what in (
            (len(everyone) != len(idle) + len(references), "a block is in two places"),
            (len({block.number for block in everyone}) != len(everyone), "two blocks have one number"),
            (any(block.references != references.get(block, 0) for block in everyone), "references are wrong"),
            (self.free != self.queue.untouched + len(idle), "free blocks are miscounted"),
            (self.free + len(references) != self.capacity, "blocks are missing, or there are too many"),
            (found != hashed, "what can be found is not what is held"),
            ({block.hash for block in hashed} != self._cached.keys(), "a hash finds a block of another"),
        ):
            if broken:
                raise RuntimeError(what)


class Span(Struct, gc=False):
    """Free blocks that stand together in the queue: the first `blocks` of what a sequence had.

    They are taken from its tail, so those that are left are always a beginning.
    """

    blocks: int


class CountedBlocks:
    """`num_blocks` blocks of `block_size` tokens, one of them vLLM's null block.

    With `caching` a sequence that is released to come back finds what is left of its whole blocks.
    """

    def __init__(self, num_blocks: int, block_size: int, caching: bool = True) -> None:
        self.capacity = num_blocks - 1
        self.block_size = block_size
        self.free = self.capacity
        """Blocks that no sequence uses; some of them may still be found."""
        self._caching = caching
        self._queue: deque[Span] = deque([Span(self.capacity)])
        """All free blocks; those that are taken next stand first."""
        self._left: dict[Hashable, Span] = {}
        """What sequences that are to come back have left in the queue."""

    def find(self, sequence: Hashable, tokens: int) -> int:
        """Blocks of the first `tokens` tokens that are there already; never the one of the last token."""
        span = self._left.get(sequence)
        return 0 if span is None else min(span.blocks, (tokens - 1) // self.block_size)

    def fits(self, sequence: Hashable, tokens: int, found: int) -> bool:
        """Whether the whole of a sequence could have its blocks now, `found` of which it has found."""
        return -(-tokens // self.block_size) <= self.free

    def begin(self, sequence: Hashable, found: int, count: int) -> None:
        """Give a sequence the blocks that it has found, and `count` more. The caller has checked `free`."""
        span = self._left.pop(sequence, None)
        if span is not None:
            span.blocks -= found
            self.free -= found
        self.grow(sequence, count)

    def grow(self, sequence: Hashable, count: int) -> None:
        """Give a sequence `count` more blocks. The caller has checked `free`."""
        self.free -= count
        queue = self._queue
        while count:
            first = queue[0]
            taken = min(first.blocks, count)
            first.blocks -= taken
            count -= taken
            if not first.blocks:
                queue.popleft()

    def filled(self, sequence: Hashable) -> None:
        """More of its prompt is computed, which nobody else looks for."""

    def release(self, sequence: Hashable, held: int, findable: int = 0) -> None:
        """A sequence no longer uses its `held` blocks; the first `findable` it may find again."""
        self.free += held
        kept = findable if self._caching else 0
        queue = self._queue
        if others := held - kept:
            if queue and not self._left:  # nobody comes back: one span says it all
                queue[-1].blocks += others
            else:
                queue.append(Span(others))
        if kept:
            self._left[sequence] = span = Span(kept)
            queue.append(span)

    def forget(self, sequence: Hashable) -> None:
        """A sequence that was to come back does not."""
        self._left.pop(sequence, None)
