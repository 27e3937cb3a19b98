"""A bounded table of block -> copies that evicts the least recently used blocks.

Blocks are in segments, and a cachetools cache keeps the segments' order of use. A segment is a
dictionary of blocks stored around the same time. A cache entry for every block costs five to seven
times as much (benchmarks/kv_index.py). Eviction therefore removes whole segments, least recently
stored or looked up first. A segment has at most `SEGMENT_BLOCKS` blocks and weighs at most a 1024th
of the bound, except a single block.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from operator import itemgetter

from cachetools import LRUCache
from msgspec import Struct

from app.extensions.kv_index.copies import Copies

SHARD_COUNT = 256
"""Number of dictionaries of key -> segment; a single one would take a tenth of a second to grow."""
SHARD_MASK = SHARD_COUNT - 1
SEGMENT_BLOCKS = 1365
"""Maximum number of blocks of a segment; a dictionary of 2,048 places has room for them."""
MIN_SEGMENTS = 1024
"""Minimum number of segments of a full table."""


class WeightedBlocks(Struct, gc=False, eq=False):
    """Blocks with their total weight."""

    blocks: dict[int, Copies]
    weight: int = 0


class BlockTable:
    """Block -> copies, with a total weight up to `bound`.

    `weigh` returns the weight of a block with these copies, 0 for none. `on_evict` receives evicted
    blocks. The caller calls `settle` after every change; the bound holds after each call.
    """

    def __init__(
        self,
        bound: int,
        weigh: Callable[[Copies], int],
        on_evict: Callable[[Mapping[int, Copies]], None],
    ) -> None:
        self.bound = bound
        self.weight = 0
        """Total weight of all blocks."""
        self.weigh = weigh
        self._on_evict = on_evict
        self._max_segment_weight = max(1, bound // MIN_SEGMENTS)
        self._cache: LRUCache[WeightedBlocks, None] = LRUCache(math.inf)
        """Segments in their order of use."""
        self._shards: list[dict[int, WeightedBlocks]] = [{} for _ in range(SHARD_COUNT)]
        """Key -> segment, by the lowest bits of the key."""
        self._open = WeightedBlocks({})
        """The segment that receives new blocks."""
        self._heavy: dict[WeightedBlocks, None] = {}
        """Segments that may be too heavy."""

    def __len__(self) -> int:
        return sum(map(len, self._shards))

    def __contains__(self, key: int) -> bool:
        return key in self._shards[key & SHARD_MASK]

    def __iter__(self) -> Iterator[tuple[int, Copies]]:
        entries = chain.from_iterable(shard.items() for shard in self._shards)
        return ((key, segment.blocks[key]) for key, segment in entries)

    def get(self, key: int) -> Copies:
        """Returns the copies of a block; () for an unknown block."""
        segment = self._shards[key & SHARD_MASK].get(key)
        return () if segment is None else segment.blocks[key]

    def prefix(self, keys: Sequence[int]) -> list[Copies]:
        """Returns the copies of the first `keys`, up to an unknown block.

        Marks the blocks as used.
        """
        prefix: list[Copies] = []
        used: dict[WeightedBlocks, None] = {}
        shards = self._shards
        remaining = iter(keys)
        key = next(remaining, None)
        while key is not None:
            segment = shards[key & SHARD_MASK].get(key)
            if segment is None:
                break
            used[segment] = None
            prefix.append(segment.blocks[key])
            key = None
            try:  # usually, one segment has all keys
                prefix.extend(map(segment.blocks.__getitem__, remaining))
            except KeyError:
                key = keys[len(prefix)]
        # A table less than half full evicts nothing soon, so the order of use may stay.
        if self.weight * 2 > self.bound:
            for segment in used:
                self._cache[segment] = None
        return prefix

    def runs(
        self, keys: Sequence[int]
    ) -> Iterator[tuple[WeightedBlocks | None, Copies, Sequence[int]]]:
        """Splits keys into runs of one segment and equal copies.

        The caller may `put` each run before it takes the next one.
        """
        shards = self._shards
        segments = [shards[key & SHARD_MASK].get(key) for key in keys]
        if keys and segments.count(None) == len(keys):
            yield None, (), keys
            return
        start = 0
        for segment, repeats in groupby(segments):
            segment_keys = keys[start : start + len(list(repeats))]
            start += len(segment_keys)
            if segment is None:
                yield None, (), segment_keys
                continue
            copies = list(map(segment.blocks.__getitem__, segment_keys))
            if copies.count(copies[0]) == len(segment_keys):
                yield segment, copies[0], segment_keys
                continue
            for shared, run in groupby(zip(copies, segment_keys, strict=True), itemgetter(0)):
                yield segment, shared, [key for _, key in run]

    def put(
        self,
        segment: WeightedBlocks | None,
        keys: Sequence[int],
        *,
        previous: Copies,
        copies: Copies,
    ) -> None:
        """Replaces the `previous` copies of a run's blocks by `copies`.

        New blocks, whose segment is None, go to the open segment.
        """
        if segment is not None:
            for key in keys:
                segment.blocks[key] = copies
            self._grow(segment, (self.weigh(copies) - self.weigh(previous)) * len(keys))
            return
        weight = self.weigh(copies)
        shards = self._shards
        for start in range(0, len(keys), SEGMENT_BLOCKS):
            part = keys[start : start + SEGMENT_BLOCKS]
            segment = self._open
            is_full = len(segment.blocks) + len(part) > SEGMENT_BLOCKS
            if is_full or segment.weight >= self._max_segment_weight:
                segment = self._open = WeightedBlocks({})
            segment.blocks.update(dict.fromkeys(part, copies))
            for key in part:
                shards[key & SHARD_MASK][key] = segment
            self._grow(segment, weight * len(part))

    def reduce(self, key: int, loss: int, remaining: Copies) -> None:
        """Replaces a block's copies by the `remaining` ones, with `loss` less weight.

        Removes a block without copies.
        """
        segment = self._shards[key & SHARD_MASK][key]
        segment.weight -= loss
        self.weight -= loss
        if remaining:
            segment.blocks[key] = remaining
            return
        del segment.blocks[key]
        del self._shards[key & SHARD_MASK][key]
        if not segment.blocks:
            self._cache.pop(segment, None)

    def settle(self) -> None:
        """Splits heavy segments, then evicts segments until the table keeps its bound."""
        while self._heavy:
            segment, _ = self._heavy.popitem()
            if segment.weight > self._max_segment_weight and len(segment.blocks) > 1:
                self._split(segment)
        while self.weight > self.bound:
            segment = self._cache.popitem()[0]
            self.weight -= segment.weight
            blocks = segment.blocks
            segment.blocks = {}
            segment.weight = 0
            for key in blocks:
                del self._shards[key & SHARD_MASK][key]
            self._on_evict(blocks)

    def _grow(self, segment: WeightedBlocks, gain: int) -> None:
        segment.weight += gain
        self.weight += gain
        self._cache[segment] = None
        if segment.weight > self._max_segment_weight:
            self._heavy[segment] = None

    def _split(self, segment: WeightedBlocks) -> None:
        items = list(segment.blocks.items())
        middle = len(items) // 2
        upper = WeightedBlocks(dict(items[middle:]))
        segment.blocks = dict(items[:middle])
        weight = sum(map(self.weigh, upper.blocks.values()))
        for part, gain in ((segment, -weight), (upper, weight)):
            self.weight -= gain
            self._grow(part, gain)
        for key in upper.blocks:
            self._shards[key & SHARD_MASK][key] = upper
        if segment is self._open:
            self._open = upper
