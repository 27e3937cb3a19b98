"""The index in this process: a table of block -> copies, and a map of engine key -> block per holder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from sys import getsizeof

from app.base.clock.pause import pause_if_possible
from app.engine.kvcache.memo import Memo
from app.kvindex.backend import (
    CPU,
    GPU,
    MOST_HOLDERS,
    Backend,
    Clear,
    Found,
    Offload,
    Operation,
    Outcome,
    Owned,
    Remove,
    Size,
    Stamp,
    Store,
    keys_of,
)
from app.kvindex.holders import (
    Copies,
    Engine,
    Holders,
    anywhere,
    bits,
    count_copies,
    with_holder,
    without_holder,
)
from app.kvindex.tables import BlockTable, EngineMap

MOST_COPIES = 10_000_000
"""Default bound of the index, in copies of blocks."""
BLOCK_BYTES = 240
"""Memory of a block in the table, in bytes: a key and its places in two dictionaries."""
COPY_BYTES = 180
"""Memory of a block in a holder's map, in bytes: two keys and a place in a dictionary."""
SHARE_BYTES = 1040
"""Most memory of a copy when copies are the bound, in bytes; a larger block counts as several copies."""
MASK_SHIFT = 12
"""Binary logarithm of the bits in a mask of about half of `SHARE_BYTES`."""
REPEAT_BYTES = 200
"""Memory of a block that a holder has more than once, in bytes."""
REPEATS_BYTES = 64 << 20
"""Most memory of such blocks, in bytes; further repeats are not counted."""
ALONE_BYTES = 16 << 20
"""Memory of shared tuples for blocks with a single copy, in bytes."""
SLICE = 2048
"""Blocks cleared or checked in one go, in about 1 ms."""
SPARE = 64
"""Stale entries that every holder's map may have."""


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


class MemoryBackend(Backend):
    """Index in memory. `bound` limits the total weight of blocks: copies, or the unit of `weigh`.

    Above the bound, `BlockTable` evicts the blocks used least recently, of all holders. A holder's map may
    keep stale entries of evicted blocks, up to about a quarter. Greenlets may share the backend.
    `count_repeats`: see `docs/kv-index.md`.
    """

    def __init__(
        self,
        bound: int = MOST_COPIES,
        weigh: Callable[[Copies], int] = weigh_copies,
        most_holders: int = MOST_HOLDERS,
        count_repeats: bool = True,
    ) -> None:
        if bound < 1:
            raise ValueError("an index that holds nothing is of no use")
        self.holders = Holders(most_holders)
        self.tiers = [GPU, CPU]
        self.epoch = ""
        self.times_lost = 0
        self.table = BlockTable(bound, weigh, self._made_room)
        self._count_repeats = count_repeats
        self._maps: dict[int, EngineMap] = {}
        self._due: dict[int, None] = {}
        self._alone: Memo[tuple[int, int], Copies] = Memo(ALONE_BYTES)
        self._copies = self._evicted = self._repeats = 0

    @property
    def size_bytes(self) -> int:
        """Upper estimate of the memory in use, in bytes, by `weigh_bytes` or `SHARE_BYTES`."""
        held = self._bytes(self.table.weight) + REPEAT_BYTES * self._repeats
        return held + self._alone.size_bytes

    @property
    def limit_bytes(self) -> int:
        return self._bytes(self.table.bound) + REPEATS_BYTES + ALONE_BYTES

    def owned(self, source: Engine, engine: Sequence[tuple[int, int]]) -> list[Owned | None]:
        numbers = self.holders.groups(source)
        found = []
        for group, key in engine:
            number = numbers.get(group)
            found.append(None if number is None else self._maps[number].owned.get(key))
        return found

    def apply(self, source: Engine, operations: Sequence[Operation], stamp: Stamp | None = None) -> Outcome:
        outcome = Outcome()
        if stamp is not None and stamp.restart:
            outcome.removed += self._clear(source)
        left = iter(operations)
        while self._apply_until_clear(source, left, outcome):
            outcome.removed += self._clear(source)
        if self._due:
            self._sweep()
        return outcome

    def lookup(self, keys: Sequence[int]) -> Found:
        return Found(self.table.prefix(keys), self.holders, self.tiers)

    def position(self, source: Engine) -> Stamp | None:
        return None

    def clear(self, pod: str) -> int:
        return sum([self._clear(source) for source in self.holders.sources(pod)])

    def pods(self) -> list[str]:
        return list(self.holders.pods)

    def size(self) -> Size:
        return Size(len(self.table), self._copies, self._evicted, self.table.weight, self.table.bound)

    def close(self) -> None:
        pass

    def _bytes(self, weight: int) -> int:
        return weight if self.table.weigh is weigh_bytes else weight * SHARE_BYTES

    def _apply_until_clear(self, source: Engine, operations: Iterator[Operation], outcome: Outcome) -> bool:
        """Applies operations without a pause, up to a clear; returns True if a clear is due."""
        try:
            for operation in operations:
                match operation:
                    case Store():
                        self._store(source, operation, outcome)
                    case Remove():
                        self._remove(source, operation, outcome)
                    case Offload():
                        self._offload(source, operation, outcome)
                    case Clear():
                        return True
            return False
        finally:
            self.table.settle()

    def _store(self, source: Engine, store: Store, outcome: Outcome) -> None:
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
        if store.remapped:
            known.update([pair for pair in store.remapped if pair[0] in known])
        outcome.added += self._add(store.keys, tier, number)

    def _meet_again(self, number: int, tier: int, mapping: EngineMap, store: Store, outcome: Outcome) -> None:
        """Handles known blocks of a store: either further copies, or keys that now mean other tokens."""
        for key, owned in zip(store.engine, store.owned, strict=True):
            before = mapping.owned.get(key)
            if before is None:
                continue
            if before != owned:
                kept = set(keys_of(owned))
                lost = [other for other in keys_of(before) if other not in kept]
                outcome.removed += self._take(lost, number)
            elif self._may_repeat and self._has(owned, number, tier):
                self._repeats += mapping.repeat(tier, key)

    @property
    def _may_repeat(self) -> bool:
        return self._count_repeats and REPEAT_BYTES * self._repeats < REPEATS_BYTES

    def _offload(self, source: Engine, offload: Offload, outcome: Outcome) -> None:
        number, tier = self.holders.find(source, offload.group), self._tier(offload.tier)
        mapping = {} if number is None else self._maps[number].owned
        known = [mapping[key] for key in offload.engine if key in mapping]
        outcome.unknown += len(offload.engine) - len(known)
        if number is not None:
            keys = list(dict.fromkeys(chain.from_iterable(map(keys_of, known))))
            outcome.added += self._add(keys, tier, number)

    def _remove(self, source: Engine, remove: Remove, outcome: Outcome) -> None:
        number = self.holders.find(source, remove.group)
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

    def _clear(self, source: Engine) -> int:
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
                after = with_holder(copies, tier, 1 << number) if copies else self._only(number, tier)
            if after is before:
                self.table.use(segment)
            else:
                self.table.put(segment, run, copies, after)
                added += len(run)
        self._copies += added
        return added

    def _only(self, number: int, tier: int) -> Copies:
        """Returns the shared tuple for blocks with a single copy, in this tier of this holder."""
        alone = self._alone.get((number, tier))
        if alone is None:
            alone = with_holder((), tier, 1 << number)
            self._alone.put((number, tier), alone, getsizeof(alone[-1]) + 300)
        return alone

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
        """Removes entries of evicted blocks from the marked maps."""
        while self._due:
            number, _ = self._due.popitem()
            mapping = self._maps.get(number, EngineMap())
            mapping.stale, keys = 0, list(mapping.owned)
            for start in range(0, len(keys), SLICE):
                for key in keys[start : start + SLICE]:
                    if key in mapping.owned and not self._is_held(mapping.owned[key]):
                        self._repeats -= mapping.forget(key)
                pause_if_possible()

    def _is_held(self, owned: Owned) -> bool:
        """True if any of the blocks is still in the table; also without blocks."""
        keys = keys_of(owned)
        return not keys or any(key in self.table for key in keys)
