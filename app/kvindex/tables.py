"""Tables of the index in memory: blocks with their copies, and each holder's names of blocks.

Blocks are in segments, and a cachetools cache keeps the segments' order of use. A segment is a dictionary of
blocks stored around the same time. A cache entry for every block costs five to seven times as much
(benchmarks/kv_index.py). Eviction therefore removes whole segments, least recently stored or looked up
first. A segment has at most `SEGMENT_BLOCKS` blocks and weighs at most a 1024th of the bound, except a
single block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from cachetools import LRUCache
from msgspec import Struct

from app.kvindex.backend import MOST_TIERS, Owned
from app.kvindex.holders import Copies

PLACES = 256
PLACE = PLACES - 1
"""Number of dictionaries of key -> segment; a single dictionary would take a tenth of a second to grow."""
SEGMENT_BLOCKS = 1365
"""Most blocks of a segment: a dictionary of 2,048 places holds this many before its next growth."""
SEGMENTS = 1024
"""Fewest segments of a full table; a heavier segment is split."""


class Segment(Struct, gc=False, eq=False):
    """Blocks with their total weight."""

    blocks: dict[int, Copies]
    weight: int = 0


class BlockTable:
    """Block -> copies, with a total weight up to `bound`.

    `weigh` returns the weight of a block with these copies, 0 for none. `on_evict` receives evicted blocks.
    The caller calls `settle` after every change; the bound holds after each call.
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
        self._grain = max(1, bound // SEGMENTS)
        self._cache: LRUCache[Segment, None] = LRUCache(math.inf)
        """Segments in their order of use."""
        self._segment_of: list[dict[int, Segment]] = [{} for _ in range(PLACES)]
        self._open = Segment({})
        self._heavy: dict[Segment, None] = {}
        """Segments that may be too heavy."""

    def __len__(self) -> int:
        return sum(map(len, self._segment_of))

    def __contains__(self, key: int) -> bool:
        return key in self._segment_of[key & PLACE]

    def __iter__(self) -> Iterator[tuple[int, Copies]]:
        """Yields all blocks with copies, in arbitrary order."""
        everything = chain.from_iterable(each.items() for each in self._segment_of)
        return ((key, segment.blocks[key]) for key, segment in everything)

    def get(self, key: int) -> Copies:
        """Returns the copies of a block; () for an unknown block."""
        segment = self._segment_of[key & PLACE].get(key)
        return () if segment is None else segment.blocks[key]

    def prefix(self, keys: Sequence[int]) -> list[Copies]:
        """Returns the copies of the first `keys`, up to an unknown block. Marks the blocks as used."""
        found: list[Copies] = []
        segment = self._segment_of[keys[0] & PLACE].get(keys[0]) if keys else None
        if segment is None:
            return found
        used = {segment: None}
        try:  # mostly one segment has all keys
            found.extend(map(segment.blocks.__getitem__, keys))
        except KeyError:
            self._prefix(keys[len(found) :], found, used)
        # A table less than half full evicts nothing soon, so the order of use may stay.
        if self.weight * 2 > self.bound:
            for segment in used:
                self._cache[segment] = None
        return found

    def runs(self, keys: Sequence[int]) -> Iterable[tuple[Segment | None, Copies, Sequence[int]]]:
        """Splits keys into runs with one segment and equal copies; None and () for a run of new keys.

        The caller may `put` a run before taking the next run.
        """
        places = self._segment_of
        segments = [places[key & PLACE].get(key) for key in keys]
        if segments.count(None) == len(segments):
            return ((None, (), keys),) if keys else ()
        return self._runs(keys, segments)

    def _runs(
        self, keys: Sequence[int], segments: Sequence[Segment | None]
    ) -> Iterator[tuple[Segment | None, Copies, Sequence[int]]]:
        for start, end in _equal(segments):
            segment, run = segments[start], keys[start:end]
            if segment is None:
                yield None, (), run
                continue
            found = list(map(segment.blocks.__getitem__, run))
            for first, last in _equal(found):
                yield segment, found[first], run[first:last]

    def put(self, segment: Segment | None, keys: Sequence[int], before: Copies, after: Copies) -> None:
        """Replaces the copies `before` of a run's blocks by `after`. Marks the blocks as used."""
        if segment is None:
            for start in range(0, len(keys), SEGMENT_BLOCKS):
                self._append(keys[start : start + SEGMENT_BLOCKS], after)
            return
        blocks = segment.blocks
        for key in keys:
            blocks[key] = after
        self._grow(segment, (self.weigh(after) - self.weigh(before)) * len(keys))

    def use(self, segment: Segment | None) -> None:
        """Marks a segment as used, after its blocks were stored again."""
        if segment is not None:
            self._grow(segment, 0)

    def reduce(self, key: int, loss: int, left: Copies) -> None:
        """Replaces a block's copies by `left`, with `loss` less weight; removes a block without copies."""
        segment = self._segment_of[key & PLACE][key]
        segment.weight -= loss
        self.weight -= loss
        if left:
            segment.blocks[key] = left
            return
        del segment.blocks[key], self._segment_of[key & PLACE][key]
        if not segment.blocks:
            self._cache.pop(segment, None)

    def settle(self) -> None:
        """Splits heavy segments, then evicts segments until the table keeps its bound."""
        while self._heavy:
            segment, _ = self._heavy.popitem()
            if segment.weight > self._grain and len(segment.blocks) > 1:
                self._split(segment)
        while self.weight > self.bound:
            self._evict(self._cache.popitem()[0])

    def _append(self, keys: Sequence[int], copies: Copies) -> None:
        """Adds new blocks to the open segment, or to a new one."""
        segment = self._open
        if len(segment.blocks) + len(keys) > SEGMENT_BLOCKS or segment.weight >= self._grain:
            segment = self._open = Segment({})
        segment_of = self._segment_of
        segment.blocks.update(dict.fromkeys(keys, copies))
        for key in keys:
            segment_of[key & PLACE][key] = segment
        self._grow(segment, self.weigh(copies) * len(keys))

    def _prefix(self, keys: Sequence[int], found: list[Copies], used: dict[Segment, None]) -> None:
        blocks: dict[int, Copies] = {}
        for key in keys:
            copies = blocks.get(key)
            if copies is None:
                segment = self._segment_of[key & PLACE].get(key)
                if segment is None:
                    return
                used[segment] = None
                blocks = segment.blocks
                copies = blocks[key]
            found.append(copies)

    def _grow(self, segment: Segment, gain: int) -> None:
        segment.weight += gain
        self.weight += gain
        self._cache[segment] = None
        if segment.weight > self._grain:
            self._heavy[segment] = None

    def _split(self, segment: Segment) -> None:
        """Moves the newer half of a segment's blocks to a new segment."""
        items = list(segment.blocks.items())
        lower, upper = items[: len(items) // 2], Segment(dict(items[len(items) // 2 :]))
        segment.blocks = dict(lower)
        weight = sum(map(self.weigh, upper.blocks.values()))
        for each, gain in ((segment, -weight), (upper, weight)):
            self.weight -= gain
            self._grow(each, gain)
        for key in upper.blocks:
            self._segment_of[key & PLACE][key] = upper
        if segment is self._open:
            self._open = upper

    def _evict(self, segment: Segment) -> None:
        self.weight -= segment.weight
        blocks, segment.blocks, segment.weight = segment.blocks, {}, 0
        for key in blocks:
            del self._segment_of[key & PLACE][key]
        self._on_evict(blocks)


def _equal(values: Sequence[object]) -> Iterator[tuple[int, int]]:
    """Yields start and end of each stretch of equal neighbours."""
    if not values:
        return
    if values.count(values[0]) == len(values):
        yield 0, len(values)
        return
    start = 0
    for end in range(1, len(values) + 1):
        if end == len(values) or values[end] != values[start]:
            yield start, end
            start = end


class EngineMap:
    """Map of one holder: engine key -> request keys, and blocks that the holder has more than once."""

    __slots__ = ("owned", "repeats", "stale")

    def __init__(self) -> None:
        self.owned: dict[int, Owned] = {}
        self.repeats: dict[tuple[int, int], int] = {}
        """(tier, engine key) -> number of further copies."""
        self.stale = 0
        """Approximate number of entries for evicted blocks."""

    def forget(self, key: int) -> int:
        """Removes a block; returns the number of tiers with repeats of the block."""
        del self.owned[key]
        tiers = range(MOST_TIERS) if self.repeats else ()
        return sum(self.repeats.pop((tier, key), 0) > 0 for tier in tiers)

    def repeat(self, tier: int, key: int, count: int = 1) -> bool:
        """Adds `count`, 1 or -1, to a block's copies; returns True for the first or the last repeat."""
        repeats = self.repeats.get((tier, key), 0)
        if repeats + count:
            self.repeats[tier, key] = repeats + count
        else:
            del self.repeats[tier, key]
        return not repeats or not repeats + count
