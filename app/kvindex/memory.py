"""The index in this process: a table of block -> copies, and a map of engine key -> block per
holder.

Blocks are in segments, and a cachetools cache keeps the segments' order of use. A segment is a
dictionary of blocks stored around the same time. A cache entry for every block costs five to seven
times as much (benchmarks/kv_index.py). Eviction therefore removes whole segments, least recently
stored or looked up first. A segment has at most `SEGMENT_BLOCKS` blocks and weighs at most a 1024th
of the bound, except a single block.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, groupby
from operator import itemgetter
from sys import getsizeof

from cachetools import LRUCache
from msgspec import Struct

from app.base.clock.pause import pause_if_possible
from app.kvindex.backend import (
    CPU,
    GPU,
    MOST_HOLDERS,
    MOST_TIERS,
    Backend,
    Clear,
    Copies,
    Found,
    Holders,
    IndexedEngine,
    IndexSize,
    Offload,
    Operation,
    Outcome,
    Owned,
    Remove,
    Stamp,
    Store,
    anywhere,
    bits,
    count_copies,
    keys_of,
    with_holder,
    without_holder,
)

MOST_COPIES = 10_000_000
"""Default bound of the index, in copies of blocks."""
BLOCK_BYTES, COPY_BYTES = 240, 180
"""Memory of a block in the table, and in a holder's map, in bytes:

keys and places in dictionaries.
"""
SHARE_BYTES = 1040
"""Most memory of a copy when copies are the bound, in bytes; a larger block counts as several
copies.
"""
MASK_SHIFT = 12
"""Binary logarithm of the bits in a mask of about half of `SHARE_BYTES`."""
REPEAT_BYTES, REPEATS_BYTES = 200, 64 << 20
"""Memory of a block held more than once, and of all that are counted, in bytes."""
MOST_ALONE = 1024
"""Most shared tuples for blocks with a single copy; 16 MiB with the longest masks."""
EVENTS_A_TURN, SLICE = 1024, 2048
"""Events applied in one go, in about 3 ms; blocks cleared or checked in one go, in about 1 ms."""
SPARE = 64
"""Stale entries that every holder's map may have."""
PLACES = 256
PLACE = PLACES - 1
"""Number of dictionaries of key -> segment; a single dictionary would take a tenth of a second to
grow.
"""
SEGMENT_BLOCKS, SEGMENTS = 1365, 1024
"""Most blocks of a segment (a dictionary of 2,048 places has room), and fewest segments of a full
table.
"""


def weigh_bytes(copies: Copies) -> int:
    """Returns the most bytes that a block takes; blocks of one prompt share masks, and take less."""
    if not copies:
        return 0
    masks = getsizeof(copies) + sum(map(getsizeof, copies))
    return BLOCK_BYTES + masks + COPY_BYTES * count_copies(copies)


def weigh_copies(copies: Copies) -> int:
    """Counts a block's copies, plus one for each half of `SHARE_BYTES` that a mask takes.

    A block then takes at most `SHARE_BYTES` for each counted copy.
    """
    return sum([mask.bit_count() + (mask.bit_length() >> MASK_SHIFT) for mask in copies])


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
        self._grain = max(1, bound // SEGMENTS)
        self._cache: LRUCache[WeightedBlocks, None] = LRUCache(math.inf)
        """Segments in their order of use."""
        self._segment_of: list[dict[int, WeightedBlocks]] = [{} for _ in range(PLACES)]
        self._open = WeightedBlocks({})
        self._heavy: dict[WeightedBlocks, None] = {}
        """Segments that may be too heavy."""

    def __len__(self) -> int:
        return sum(map(len, self._segment_of))

    def __contains__(self, key: int) -> bool:
        return key in self._segment_of[key & PLACE]

    def __iter__(self) -> Iterator[tuple[int, Copies]]:
        everything = chain.from_iterable(each.items() for each in self._segment_of)
        return ((key, segment.blocks[key]) for key, segment in everything)

    def get(self, key: int) -> Copies:
        """Returns the copies of a block; () for an unknown block."""
        segment = self._segment_of[key & PLACE].get(key)
        return () if segment is None else segment.blocks[key]

    def prefix(self, keys: Sequence[int]) -> list[Copies]:
        """Returns the copies of the first `keys`, up to an unknown block.

        Marks the blocks as used.
        """
        found: list[Copies] = []
        used: dict[WeightedBlocks, None] = {}
        places, rest = self._segment_of, iter(keys)
        key = next(rest, None)
        while key is not None and (segment := places[key & PLACE].get(key)) is not None:
            used[segment] = None
            found.append(segment.blocks[key])
            key = None
            try:  # mostly one segment has all keys
                found.extend(map(segment.blocks.__getitem__, rest))
            except KeyError:
                key = keys[len(found)]
        # A table less than half full evicts nothing soon, so the order of use may stay.
        if self.weight * 2 > self.bound:
            for segment in used:
                self._cache[segment] = None
        return found

    def runs(
        self, keys: Sequence[int]
    ) -> Iterator[tuple[WeightedBlocks | None, Copies, Sequence[int]]]:
        """Splits keys into runs of one segment and equal copies; each may be `put` before the next."""
        places, at = self._segment_of, 0
        segments = [places[key & PLACE].get(key) for key in keys]
        if keys and segments.count(None) == len(keys):
            yield None, (), keys
            return
        for segment, alike in groupby(segments):
            some = keys[at : at + len(list(alike))]
            at += len(some)
            copies: list[Copies] = (
                [()] if segment is None else list(map(segment.blocks.__getitem__, some))
            )
            if segment is None or copies.count(copies[0]) == len(some):
                yield segment, copies[0], some
                continue
            for held, run in groupby(zip(copies, some, strict=True), itemgetter(0)):
                yield segment, held, [key for _, key in run]

    def put(
        self, segment: WeightedBlocks | None, keys: Sequence[int], before: Copies, after: Copies
    ) -> None:
        """Replaces the copies `before` of a run's blocks by `after`.

        New blocks go to the open segment.
        """
        if segment is not None:
            for key in keys:
                segment.blocks[key] = after
            self._grow(segment, (self.weigh(after) - self.weigh(before)) * len(keys))
            return
        weight, segment_of = self.weigh(after), self._segment_of
        for start in range(0, len(keys), SEGMENT_BLOCKS):
            some, segment = keys[start : start + SEGMENT_BLOCKS], self._open
            if len(segment.blocks) + len(some) > SEGMENT_BLOCKS or segment.weight >= self._grain:
                segment = self._open = WeightedBlocks({})
            segment.blocks.update(dict.fromkeys(some, after))
            for key in some:
                segment_of[key & PLACE][key] = segment
            self._grow(segment, weight * len(some))

    def reduce(self, key: int, loss: int, left: Copies) -> None:
        """Replaces a block's copies by `left`, with `loss` less weight; removes a block without
        copies.
        """
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
            segment = self._cache.popitem()[0]
            self.weight -= segment.weight
            blocks, segment.blocks, segment.weight = segment.blocks, {}, 0
            for key in blocks:
                del self._segment_of[key & PLACE][key]
            self._on_evict(blocks)

    def _grow(self, segment: WeightedBlocks, gain: int) -> None:
        segment.weight += gain
        self.weight += gain
        self._cache[segment] = None
        if segment.weight > self._grain:
            self._heavy[segment] = None

    def _split(self, segment: WeightedBlocks) -> None:
        items = list(segment.blocks.items())
        lower, upper = items[: len(items) // 2], WeightedBlocks(dict(items[len(items) // 2 :]))
        segment.blocks = dict(lower)
        weight = sum(map(self.weigh, upper.blocks.values()))
        for each, gain in ((segment, -weight), (upper, weight)):
            self.weight -= gain
            self._grow(each, gain)
        for key in upper.blocks:
            self._segment_of[key & PLACE][key] = upper
        if segment is self._open:
            self._open = upper


class EngineMap(Struct, gc=False, eq=False):
    """Map of one holder:

    engine key -> request keys, and blocks that the holder has more than once.
    """

    owned: dict[int, Owned] = {}
    repeats: dict[tuple[int, int], int] = {}
    """(tier, engine key) -> number of further copies."""
    stale: int = 0
    """Approximate number of entries for evicted blocks."""

    def forget(self, key: int) -> int:
        """Removes a block; returns the number of tiers with repeats of the block."""
        del self.owned[key]
        tiers = range(MOST_TIERS) if self.repeats else ()
        return sum(self.repeats.pop((tier, key), 0) > 0 for tier in tiers)

    def repeat(self, tier: int, key: int, count: int = 1) -> bool:
        """Adds `count`, 1 or -1, to a block's copies; returns True for the first or the last
        repeat.
        """
        repeats = self.repeats.get((tier, key), 0)
        if repeats + count:
            self.repeats[tier, key] = repeats + count
        else:
            del self.repeats[tier, key]
        return not repeats or not repeats + count


class MemoryBackend(Backend):
    """Index in memory. `bound` limits the total weight of blocks: copies, or the unit of `weigh`.

    Above the bound, `BlockTable` evicts the blocks used least recently, of all holders. A holder's
    map may keep stale entries of evicted blocks, up to about a quarter. Greenlets may share the
    backend.
    """

    def __init__(
        self,
        bound: int = MOST_COPIES,
        weigh: Callable[[Copies], int] = weigh_copies,
        most_holders: int = MOST_HOLDERS,
    ) -> None:
        if bound < 1:
            raise ValueError("an index that holds nothing is of no use")
        self.holders = Holders(most_holders)
        self.tiers = [GPU, CPU]
        self.events_a_turn = EVENTS_A_TURN
        self.table = BlockTable(bound, weigh, self._made_room)
        self._unit_bytes = 1 if weigh is weigh_bytes else SHARE_BYTES
        self._maps: dict[int, EngineMap] = {}
        self._due: dict[int, None] = {}
        self._alone = lru_cache(MOST_ALONE)(lambda tier, number: with_holder((), tier, 1 << number))
        self._copies = self._evicted = self._repeats = 0

    @property
    def size_bytes(self) -> int:
        """Upper estimate of the memory in use, in bytes, by `weigh_bytes` or `SHARE_BYTES`."""
        return self.table.weight * self._unit_bytes + REPEAT_BYTES * self._repeats

    @property
    def limit_bytes(self) -> int:
        return self.table.bound * self._unit_bytes + REPEATS_BYTES

    def owned(self, source: IndexedEngine, engine: Sequence[tuple[int, int]]) -> list[Owned | None]:
        numbers = self.holders.groups(source)
        found = []
        for group, key in engine:
            number = numbers.get(group)
            found.append(None if number is None else self._maps[number].owned.get(key))
        return found

    def apply(
        self, source: IndexedEngine, operations: Sequence[Operation], stamp: Stamp | None = None
    ) -> Outcome:
        outcome = Outcome()
        if stamp is not None and stamp.restart:
            outcome.removed += self._clear(source)
        try:
            for operation in operations:
                match operation:
                    case Store():
                        self._store(source, operation, outcome)
                    case Remove():
                        self._remove(source, operation, outcome)
                    case Offload():
                        self._offload(source, operation, outcome)
                    case Clear():  # pauses, so the table keeps its bound before
                        self.table.settle()
                        outcome.removed += self._clear(source)
        finally:
            self.table.settle()
        if self._due:
            self._sweep()
        return outcome

    def lookup(self, keys: Sequence[int]) -> Found:
        return Found(self.table.prefix(keys), self.holders, self.tiers)

    def clear(self, pod: str) -> int:
        return sum([self._clear(source) for source in self.holders.sources(pod)])

    def pods(self) -> list[str]:
        return list(self.holders.pods)

    def size(self) -> IndexSize:
        return IndexSize(
            len(self.table), self._copies, self._evicted, self.table.weight, self.table.bound
        )

    def close(self) -> None:
        pass

    def _store(self, source: IndexedEngine, store: Store, outcome: Outcome) -> None:
        number = self.holders.number(source, store.group, store.scored)
        mapping = self._maps.get(number)
        if mapping is None:
            mapping = self._maps[number] = EngineMap()
        if store.adapter is not None:
            self.holders.serves(store.adapter, number)
        tier = self._tier(store.tier)
        known = mapping.owned
        if not known.keys().isdisjoint(store.engine):
            self._meet_again(number, tier, mapping, store, outcome)
        known.update(zip(store.engine, store.owned, strict=True))
        for key, joined in store.joined:
            owned = known.get(key)
            if owned is not None and joined not in keys_of(owned):
                known[key] = (joined, owned) if isinstance(owned, int) else (joined, *owned)
        outcome.added += self._add(store.keys, tier, number)

    def _meet_again(
        self, number: int, tier: int, mapping: EngineMap, store: Store, outcome: Outcome
    ) -> None:
        """Handles known blocks of a store:

        either further copies, or keys that now mean other tokens.
        """
        for key, owned in zip(store.engine, store.owned, strict=True):
            room = REPEAT_BYTES * self._repeats < REPEATS_BYTES
            before = mapping.owned.get(key)
            if before is None:
                continue
            if before != owned:
                kept = set(keys_of(owned))
                lost = [other for other in keys_of(before) if other not in kept]
                outcome.removed += self._take(lost, number)
            elif room and self._has(owned, number, tier):
                self._repeats += mapping.repeat(tier, key)

    def _offload(self, source: IndexedEngine, offload: Offload, outcome: Outcome) -> None:
        number, tier = self.holders.groups(source).get(offload.group), self._tier(offload.tier)
        mapping = {} if number is None else self._maps[number].owned
        known = [mapping[key] for key in offload.engine if key in mapping]
        outcome.unknown += len(offload.engine) - len(known)
        if number is not None:
            keys = list(dict.fromkeys(chain.from_iterable(map(keys_of, known))))
            outcome.added += self._add(keys, tier, number)

    def _remove(self, source: IndexedEngine, remove: Remove, outcome: Outcome) -> None:
        number = self.holders.groups(source).get(remove.group)
        if number is None or remove.tier not in self.tiers:
            outcome.unknown += len(remove.engine)
            return
        mapping, tier = self._maps[number], self.tiers.index(remove.tier)
        for key in remove.engine:
            owned = mapping.owned.get(key)
            if owned is None:
                outcome.unknown += 1
            elif (tier, key) in mapping.repeats:
                self._repeats -= mapping.repeat(tier, key, -1)
            else:
                keys = keys_of(owned)
                outcome.removed += self._take(keys, number, tier)
                if not any(self._has(other, number) for other in keys):
                    self._repeats -= mapping.forget(key)

    def _clear(self, source: IndexedEngine) -> int:
        """Removes all groups of a source, a slice at a time; returns the number of copies removed."""
        removed = 0
        for number in list(self.holders.groups(source).values()):
            mapping = self._maps[number]
            while mapping.owned:
                some = [mapping.owned.popitem()[1] for _ in range(min(SLICE, len(mapping.owned)))]
                removed += self._take(chain.from_iterable(map(keys_of, some)), number)
                self.table.settle()
                if mapping.owned:
                    pause_if_possible()
            self._repeats -= len(mapping.repeats)
            del self._maps[number]
            self.holders.release(number)
        return removed

    def _add(self, keys: Sequence[int], tier: int, number: int) -> int:
        """Adds distinct blocks to a holder's tier; returns the number of new copies."""
        added = 0
        before: Copies | None = None
        after: Copies = ()
        for segment, copies, run in self.table.runs(keys):
            # Neighbours mostly have the same holders: they then share one tuple.
            if copies != before:
                before = copies
                # Blocks with a single copy share one tuple, too.
                after = (
                    with_holder(copies, tier, 1 << number) if copies else self._alone(tier, number)
                )
            if after is before:
                self.table.put(segment, (), copies, after)  # marks the segment as used
            else:
                self.table.put(segment, run, copies, after)
                added += len(run)
        self._copies += added
        return added

    def _take(self, keys: Iterable[int], number: int, tier: int | None = None) -> int:
        """Removes blocks from a holder, in one tier or all; returns the number of copies removed."""
        table, bit, taken = self.table, 1 << number, 0
        before: Copies | None = None
        left: Copies = ()
        fewer = loss = 0
        for key in keys:
            copies = table.get(key)
            if not copies:
                mapping = self._maps[number]
                mapping.stale = max(0, mapping.stale - 1)
                continue
            if copies is not before:
                before, left = copies, without_holder(copies, tier, bit)
                fewer = count_copies(copies) - count_copies(left)
                loss = table.weigh(copies) - table.weigh(left)
            if fewer:
                taken += fewer
                table.reduce(key, loss, left)
        self._copies -= taken
        return taken

    def _has(self, owned: Owned, number: int, tier: int | None = None) -> bool:
        """True if a holder has all the blocks, in one tier or in any; also without blocks."""
        for key in keys_of(owned):
            masks = self.table.get(key)
            if tier is not None:
                masks = masks[tier : tier + 1]
            if not any(mask >> number & 1 for mask in masks):
                return False
        return True

    def _tier(self, name: str) -> int:
        if name not in self.tiers:
            self.tiers.append(name)
        return self.tiers.index(name)

    def _made_room(self, blocks: Mapping[int, Copies]) -> None:
        """Counts evicted copies, and marks maps with many stale entries for a sweep."""
        for copies, alike in groupby(blocks.values()):
            count = len(list(alike))
            held = count * count_copies(copies)
            self._copies -= held
            self._evicted += held
            for number in bits(anywhere(copies)):
                mapping = self._maps[number]
                mapping.stale += count
                if mapping.stale > len(mapping.owned) // 4 + SPARE:
                    self._due[number] = None

    def _sweep(self) -> None:
        while self._due:
            number, _ = self._due.popitem()
            mapping = self._maps.get(number, EngineMap())
            mapping.stale, keys = 0, list(mapping.owned)
            for start in range(0, len(keys), SLICE):
                for key in keys[start : start + SLICE]:
                    held = keys_of(mapping.owned[key]) if key in mapping.owned else ()
                    if held and not any(map(self.table.__contains__, held)):
                        self._repeats -= mapping.forget(key)
                pause_if_possible()
