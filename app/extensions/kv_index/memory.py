"""The index in this process: a table of block -> copies, and a map of engine keys per holder."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, groupby
from sys import getsizeof

from msgspec import Struct

from app.core.base.clock.pause import pause_if_possible
from app.extensions.kv_index.backend import (
    CPU,
    GPU,
    MAX_TIERS,
    Backend,
    Clear,
    CoveredKeys,
    IndexSize,
    Lookup,
    Offload,
    Operation,
    Outcome,
    Remove,
    Stamp,
    Store,
    keys_of,
)
from app.extensions.kv_index.block_table import BlockTable
from app.extensions.kv_index.copies import (
    Copies,
    count_copies,
    set_bits,
    union,
    with_holder,
    without_holder,
)
from app.extensions.kv_index.holders import MAX_HOLDERS, Holders, IndexedEngine

log = logging.getLogger(__name__)

MAX_COPIES = 10_000_000
"""Largest default bound of the index, in copies of blocks."""
BLOCK_BYTES = 240
"""Memory of a block in the table, in bytes: keys and places in dictionaries."""
COPY_BYTES = 180
"""Memory of a block in a holder's map, in bytes: keys and places in dictionaries."""
MAX_COPY_BYTES = 1040
"""Maximum memory of a copy when copies are the bound; a larger block counts as several copies."""
MASK_SHIFT = 12
"""Binary logarithm of the bits in a mask of about half of `MAX_COPY_BYTES`."""
REPEAT_BYTES = 200
"""Memory of the count of a block that a holder has more than once, in bytes."""
REPEATS_LIMIT_BYTES = 64 << 20
"""Memory limit of all counts of repeated blocks, in bytes."""
MAX_SHARED_COPIES = 1024
"""Maximum number of shared tuples for blocks with a single copy: 16 MiB with the longest masks."""
SLICE = 2048
"""Number of blocks cleared or checked without a pause, in about 1 ms."""
STALE_ALLOWANCE = 64
"""Number of stale entries that every holder's map may have."""


def weigh_bytes(copies: Copies) -> int:
    """Returns the maximum memory of a block, in bytes.

    Blocks of one prompt share masks, and take less.
    """
    if not copies:
        return 0
    masks = getsizeof(copies) + sum(map(getsizeof, copies))
    return BLOCK_BYTES + masks + COPY_BYTES * count_copies(copies)


def weigh_copies(copies: Copies) -> int:
    """Counts a block's copies, plus one for each half of `MAX_COPY_BYTES` that a mask takes.

    A block then takes at most `MAX_COPY_BYTES` for each counted copy.
    """
    return sum([mask.bit_count() + (mask.bit_length() >> MASK_SHIFT) for mask in copies])


class EngineMap(Struct, gc=False, eq=False):
    """Map of one holder: engine key -> request keys, and blocks held more than once."""

    covered: dict[int, CoveredKeys] = {}
    repeats: dict[tuple[int, int], int] = {}
    """(tier, engine key) -> number of further copies."""
    stale: int = 0
    """Approximate number of entries for evicted blocks."""

    def forget(self, key: int) -> int:
        """Removes a block; returns the number of tiers with repeats of the block."""
        del self.covered[key]
        if not self.repeats:
            return 0
        return sum(self.repeats.pop((tier, key), 0) > 0 for tier in range(MAX_TIERS))

    def add_repeats(self, tier: int, key: int, count: int) -> bool:
        """Adds `count`, 1 or -1, to a block's repeats; returns True for the first or the last."""
        repeats = self.repeats.get((tier, key), 0)
        if repeats + count:
            self.repeats[tier, key] = repeats + count
        else:
            del self.repeats[tier, key]
        return not repeats or not repeats + count


class MemoryBackend(Backend):
    """Index in memory. `bound` limits the total weight of blocks: copies, or the unit of `weigh`.

    Above the bound, `BlockTable` evicts the least recently used blocks, of all holders. A holder's
    map may keep stale entries of evicted blocks, up to about a quarter. Greenlets may share the
    backend.
    """

    def __init__(
        self,
        bound: int = MAX_COPIES,
        weigh: Callable[[Copies], int] = weigh_copies,
        max_holders: int = MAX_HOLDERS,
        repeats_bytes: int = REPEATS_LIMIT_BYTES,
    ) -> None:
        """Raises ValueError for a bound below 1."""
        if bound < 1:
            raise ValueError(f"the index size must be at least 1, got {bound}")
        self.holders = Holders(max_holders)
        self.tiers = [GPU, CPU]
        self.table = BlockTable(bound, weigh, self._on_evict)
        self._repeats_limit_bytes = repeats_bytes
        self._unit_bytes = 1 if weigh is weigh_bytes else MAX_COPY_BYTES
        self._maps: dict[int, EngineMap] = {}
        self._maps_to_sweep: dict[int, None] = {}
        self._copies = 0
        self._evicted = 0
        self._repeats = 0

    @property
    def size_bytes(self) -> int:
        """Upper estimate of the memory in use, in bytes."""
        return self.table.weight * self._unit_bytes + REPEAT_BYTES * self._repeats

    @property
    def limit_bytes(self) -> int:
        """Memory limit that belongs to the bound, in bytes."""
        return self.table.bound * self._unit_bytes + self._repeats_limit_bytes

    def covered_keys(
        self, source: IndexedEngine, engine_keys: Sequence[tuple[int, int]]
    ) -> list[CoveredKeys | None]:
        """See `Backend`."""
        numbers = self.holders.groups(source)
        entries = []
        for group, key in engine_keys:
            number = numbers.get(group)
            entries.append(None if number is None else self._maps[number].covered.get(key))
        return entries

    def apply(
        self, source: IndexedEngine, operations: Sequence[Operation], stamp: Stamp | None = None
    ) -> Outcome:
        """See `Backend`."""
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
                    case Clear():  # pauses, so the table must keep its bound from here on
                        self.table.settle()
                        outcome.removed += self._clear(source)
        finally:
            self.table.settle()
        if self._maps_to_sweep:
            self._sweep()
        return outcome

    def lookup(self, request_keys: Sequence[int]) -> Lookup:
        """See `Backend`."""
        return Lookup(self.table.prefix(request_keys), self.holders, self.tiers)

    def clear(self, pod: str) -> int:
        """See `Backend`."""
        return sum([self._clear(source) for source in self.holders.engines(pod)])

    def pods(self) -> list[str]:
        """See `Backend`."""
        return list(self.holders.pods)

    def size(self) -> IndexSize:
        """See `Backend`."""
        return IndexSize(
            blocks=len(self.table),
            copies=self._copies,
            evicted=self._evicted,
            weight=self.table.weight,
            bound=self.table.bound,
        )

    def close(self) -> None:
        """Does nothing."""

    def _store(self, source: IndexedEngine, store: Store, outcome: Outcome) -> None:
        number = self.holders.register(
            source, store.group, scored=store.scored, window=store.window
        )
        mapping = self._maps.get(number)
        if mapping is None:
            mapping = self._maps[number] = EngineMap()
        if store.adapter is not None:
            self.holders.add_adapter(store.adapter, number)
        tier = self._tier(store.tier)
        entries = mapping.covered
        if not entries.keys().isdisjoint(store.engine_keys):
            self._store_known_blocks(number, tier, store, outcome)
        entries.update(zip(store.engine_keys, store.covered, strict=True))
        for key, joined in store.joined:
            covered = entries.get(key)
            if covered is None or joined in keys_of(covered):
                continue
            if isinstance(covered, int):
                covered = (covered,)
            entries[key] = (joined, *covered)
        outcome.added += self._add_copies(store.request_keys, tier, number)

    def _store_known_blocks(self, number: int, tier: int, store: Store, outcome: Outcome) -> None:
        """Handles known engine keys of a store: repeated blocks, or keys of other tokens now."""
        mapping = self._maps[number]
        for key, covered in zip(store.engine_keys, store.covered, strict=True):
            has_room = REPEAT_BYTES * self._repeats < self._repeats_limit_bytes
            previous = mapping.covered.get(key)
            if previous is None:
                continue
            if previous != covered:
                current_keys = set(keys_of(covered))
                lost_keys = [old for old in keys_of(previous) if old not in current_keys]
                outcome.removed += self._remove_copies(lost_keys, number)
            elif has_room and self._holds(covered, number, tier):
                self._repeats += mapping.add_repeats(tier, key, 1)

    def _offload(self, source: IndexedEngine, offload: Offload, outcome: Outcome) -> None:
        number = self.holders.groups(source).get(offload.group)
        tier = self._tier(offload.tier)
        if number is None:
            outcome.unknown += len(offload.engine_keys)
            return
        entries = self._maps[number].covered
        blocks = [entries[key] for key in offload.engine_keys if key in entries]
        outcome.unknown += len(offload.engine_keys) - len(blocks)
        request_keys = list(dict.fromkeys(chain.from_iterable(map(keys_of, blocks))))
        outcome.added += self._add_copies(request_keys, tier, number)

    def _remove(self, source: IndexedEngine, remove: Remove, outcome: Outcome) -> None:
        number = self.holders.groups(source).get(remove.group)
        if number is None or remove.tier not in self.tiers:
            outcome.unknown += len(remove.engine_keys)
            return
        mapping = self._maps[number]
        tier = self.tiers.index(remove.tier)
        for key in remove.engine_keys:
            covered = mapping.covered.get(key)
            if covered is None:
                outcome.unknown += 1
            elif (tier, key) in mapping.repeats:
                self._repeats -= mapping.add_repeats(tier, key, -1)
            else:
                request_keys = keys_of(covered)
                outcome.removed += self._remove_copies(request_keys, number, tier)
                if not any(self._holds(request_key, number) for request_key in request_keys):
                    self._repeats -= mapping.forget(key)

    def _clear(self, source: IndexedEngine) -> int:
        """Removes all groups of a source, a slice at a time; returns the number of copies."""
        removed = 0
        for number in list(self.holders.groups(source).values()):
            mapping = self._maps[number]
            while mapping.covered:
                count = min(SLICE, len(mapping.covered))
                entries = [mapping.covered.popitem()[1] for _ in range(count)]
                request_keys = chain.from_iterable(map(keys_of, entries))
                removed += self._remove_copies(request_keys, number)
                self.table.settle()
                if mapping.covered:
                    pause_if_possible()
            self._repeats -= len(mapping.repeats)
            del self._maps[number]
            self.holders.release(number)
        return removed

    def _add_copies(self, request_keys: Sequence[int], tier: int, number: int) -> int:
        """Adds distinct blocks to a holder's tier; returns the number of new copies."""
        added = 0
        previous: Copies | None = None
        extended: Copies = ()
        for segment, copies, run in self.table.runs(request_keys):
            # Neighbors usually have the same holders; they then share one tuple.
            if copies != previous:
                previous = copies
                bit = 1 << number
                extended = with_holder(copies, tier, bit) if copies else _single_copy(tier, bit)
            if extended is previous:
                run = ()  # only marks the segment as used
            self.table.put(segment, run, previous=copies, copies=extended)
            added += len(run)
        self._copies += added
        return added

    def _remove_copies(
        self, request_keys: Iterable[int], number: int, tier: int | None = None
    ) -> int:
        """Removes blocks from a holder, in one tier or all; returns the number of copies."""
        table = self.table
        bit = 1 << number
        removed = 0
        previous: Copies | None = None
        remaining: Copies = ()
        copy_loss = 0
        weight_loss = 0
        for key in request_keys:
            copies = table.get(key)
            if not copies:
                mapping = self._maps[number]
                mapping.stale = max(0, mapping.stale - 1)
                continue
            if copies is not previous:
                previous = copies
                remaining = without_holder(copies, tier, bit)
                copy_loss = count_copies(copies) - count_copies(remaining)
                weight_loss = table.weigh(copies) - table.weigh(remaining)
            if copy_loss:
                removed += copy_loss
                table.reduce(key, weight_loss, remaining)
        self._copies -= removed
        return removed

    def _holds(self, covered: CoveredKeys, number: int, tier: int | None = None) -> bool:
        """Returns True if a holder has all the blocks, in one tier or in any."""
        for key in keys_of(covered):
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

    def _on_evict(self, blocks: Mapping[int, Copies]) -> None:
        """Counts evicted copies, and marks maps with many stale entries for a sweep."""
        if not self._evicted:
            log.warning(
                "the KV index is full (kv-index-size): the least recently used blocks of all pods "
                "are evicted from now on, and scores no longer count them"
            )
        for copies, repeats in groupby(blocks.values()):
            block_count = len(list(repeats))
            copy_count = block_count * count_copies(copies)
            self._copies -= copy_count
            self._evicted += copy_count
            for number in set_bits(union(copies)):
                mapping = self._maps[number]
                mapping.stale += block_count
                if mapping.stale > len(mapping.covered) // 4 + STALE_ALLOWANCE:
                    self._maps_to_sweep[number] = None

    def _sweep(self) -> None:
        """Removes stale entries of the marked maps, a slice at a time."""
        while self._maps_to_sweep:
            number, _ = self._maps_to_sweep.popitem()
            mapping = self._maps.get(number)
            if mapping is None:
                continue
            mapping.stale = 0
            keys = list(mapping.covered)
            for start in range(0, len(keys), SLICE):
                for key in keys[start : start + SLICE]:
                    self._forget_evicted(mapping, key)
                pause_if_possible()

    def _forget_evicted(self, mapping: EngineMap, key: int) -> None:
        covered = mapping.covered.get(key)
        if covered is None:  # removed during a pause
            return
        request_keys = keys_of(covered)
        if request_keys and not any(map(self.table.__contains__, request_keys)):
            self._repeats -= mapping.forget(key)


@lru_cache(MAX_SHARED_COPIES)
def _single_copy(tier: int, bit: int) -> Copies:
    """Returns a tuple that all blocks with only this copy share."""
    return with_holder((), tier, bit)
