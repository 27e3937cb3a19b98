"""The index in this process: a table of block -> masks, least recently used first, and a map per holder.

An `OrderedDict` rather than cachetools' `LRUCache`: the same order and bound at a fifth of the time for each
block (benchmarks/kv_index.py measures both).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from app.kvindex.backend import (
    CPU,
    GPU,
    Clear,
    Copies,
    Found,
    Offload,
    Operation,
    Outcome,
    Owned,
    Remove,
    Size,
    Stamp,
    Store,
)
from app.kvindex.copies import anywhere, count_copies, keys_of, spans, with_holder, without_holder
from app.kvindex.holders import Holders, Source, bits

MOST_COPIES = 10_000_000
MOST_HOLDERS = 65_536
_SPARE = 64


class MemoryBackend:
    """Bounded by the sum of what its blocks weigh: `bound` block copies, or whatever `weigh` measures.

    Beyond the bound the block that was least recently stored or asked for makes room, whoever has it. A
    holder's map may keep a quarter more entries than blocks are left (entries of blocks that made room).
    Threads may share it. `count_repeats`: see `docs/kv-index.md`.
    """

    def __init__(
        self,
        bound: int = MOST_COPIES,
        weigh: Callable[[Copies], int] = count_copies,
        most_holders: int = MOST_HOLDERS,
        count_repeats: bool = True,
    ) -> None:
        if bound < 1:
            raise ValueError("an index that holds nothing is of no use")
        self.holders = Holders(most_holders)
        self.tiers = [GPU, CPU]
        self.epoch = ""
        self.times_lost = 0
        self._bound, self._weigh = bound, weigh
        self._count_repeats = count_repeats
        self._table: OrderedDict[int, Copies] = OrderedDict()
        self._maps: dict[int, dict[int, Owned]] = {}
        self._repeats: dict[int, dict[tuple[int, int], int]] = {}
        self._stale: dict[int, int] = {}
        self._alone: dict[tuple[int, int], Copies] = {}
        self._weight = self._copies = self._evicted = 0
        self._lock = threading.Lock()

    def owned(self, source: Source, engine: Sequence[tuple[int, int]]) -> list[Owned | None]:
        numbers = self.holders.groups(source)
        found = []
        for group, key in engine:
            number = numbers.get(group)
            found.append(None if number is None else self._maps[number].get(key))
        return found

    def apply(self, source: Source, operations: Sequence[Operation], stamp: Stamp | None = None) -> Outcome:
        outcome = Outcome()
        with self._lock:
            if stamp is not None and stamp.restart:
                outcome.removed += self._clear(source)
            for operation in operations:
                match operation:
                    case Store():
                        self._store(source, operation, outcome)
                    case Remove():
                        self._remove(source, operation, outcome)
                    case Offload():
                        self._offload(source, operation, outcome)
                    case Clear():
                        outcome.removed += self._clear(source)
            self._evict()
        return outcome

    def lookup(self, keys: Sequence[int]) -> Found:
        with self._lock:
            found: list[Copies] = []
            table = self._table
            try:
                for key in keys:
                    found.append(table[key])
            except KeyError:
                pass
            self._touch(keys[: len(found)])
        return Found(found, self.holders, self.tiers)

    def position(self, source: Source) -> Stamp | None:
        return None

    def clear(self, pod: str) -> int:
        with self._lock:
            return sum(map(self._clear, self.holders.sources(pod)))

    def pods(self) -> list[str]:
        return sorted({holder.source.pod for holder in self.holders})

    def size(self) -> Size:
        return Size(len(self._table), self._copies, self._evicted, self._weight, self._bound)

    def close(self) -> None:
        pass

    def _store(self, source: Source, store: Store, outcome: Outcome) -> None:
        number = self.holders.number(source, store.group, store.scored)
        mapping = self._maps.get(number)
        if mapping is None:
            mapping = self._maps[number] = {}
        if store.adapter is not None:
            self.holders.serves(store.adapter, number)
        tier = self._tier(store.tier)
        if mapping and not mapping.keys().isdisjoint(store.engine):
            self._meet_again(number, tier, mapping, store, outcome)
        mapping.update(zip(store.engine, store.owned, strict=True))
        mapping.update([pair for pair in store.remapped if pair[0] in mapping])
        outcome.added += self._add(store.keys, tier, number)

    def _meet_again(
        self, number: int, tier: int, mapping: dict[int, Owned], store: Store, outcome: Outcome
    ) -> None:
        """Some blocks of a store are known: they are held once more, or their key now means other tokens."""
        for key, owned in zip(store.engine, store.owned, strict=True):
            before = mapping.get(key)
            if before is None:
                continue
            if before != owned:
                kept = set(keys_of(owned))
                lost = [other for other in keys_of(before) if other not in kept]
                outcome.removed += self._take(lost, number)
            elif self._count_repeats and self._has(owned, number, tier):
                repeats = self._repeats.setdefault(number, {})
                repeats[tier, key] = repeats.get((tier, key), 0) + 1

    def _offload(self, source: Source, offload: Offload, outcome: Outcome) -> None:
        number = self.holders.find(source, offload.group)
        mapping = {} if number is None else self._maps[number]
        known = [owned for key in offload.engine if (owned := mapping.get(key)) is not None]
        outcome.unknown += len(offload.engine) - len(known)
        if number is not None:
            keys = list(dict.fromkeys(chain.from_iterable(map(keys_of, known))))
            outcome.added += self._add(keys, self._tier(offload.tier), number)

    def _remove(self, source: Source, remove: Remove, outcome: Outcome) -> None:
        number = self.holders.find(source, remove.group)
        if number is None or remove.tier not in self.tiers:
            outcome.unknown += len(remove.engine)
            return
        mapping, repeats = self._maps[number], self._repeats.get(number)
        tier = self.tiers.index(remove.tier)
        for key in remove.engine:
            owned = mapping.get(key)
            if owned is None:
                outcome.unknown += 1
            elif repeats and (tier, key) in repeats:
                repeats[tier, key] -= 1
                if not repeats[tier, key]:
                    del repeats[tier, key]
            else:
                keys = keys_of(owned)
                outcome.removed += self._take(keys, number, tier)
                if not any(self._has(other, number) for other in keys):
                    del mapping[key]

    def _clear(self, source: Source) -> int:
        """Forget all groups of a source; how many copies they had."""
        removed = 0
        for number in list(self.holders.groups(source).values()):
            everything = chain.from_iterable(map(keys_of, self._maps.pop(number).values()))
            removed += self._take(everything, number)
            self._repeats.pop(number, None)
            self._stale.pop(number, None)
            self.holders.release(number)
        return removed

    def _add(self, keys: Sequence[int], tier: int, number: int) -> int:
        """Give a holder these blocks, all different, in a tier; how many of them it did not have there."""
        if not keys:
            return 0
        added = 0
        for copies, span in spans(keys, list(map(self._table.get, keys))):
            # Neighbours have the same holders more often than not: one tuple then serves them all.
            added += self._replace(span, copies, self._given(copies, tier, number))
        self._touch(keys)
        return added

    def _given(self, copies: Copies, tier: int, number: int) -> Copies:
        """The copies with one more. Blocks that only one holder has share one tuple."""
        if copies:
            return with_holder(copies, tier, 1 << number)
        alone = self._alone.get((number, tier))
        if alone is None:
            alone = self._alone[number, tier] = with_holder((), tier, 1 << number)
        return alone

    def _replace(self, keys: Sequence[int], before: Copies, after: Copies) -> int:
        """Blocks that had the copies `before` have one more; how many of them, none if that is the same."""
        if after is before:
            return 0
        table = self._table
        for key in keys:
            table[key] = after
        self._weight += (self._weigh(after) - self._weigh(before)) * len(keys)
        self._copies += len(keys)
        return len(keys)

    def _take(self, keys: Iterable[int], number: int, tier: int | None = None) -> int:
        """Take these blocks from a holder, in one tier or in all; how many copies that were."""
        table, bit, taken = self._table, 1 << number, 0
        before: Copies | None = None
        left: Copies = ()
        fewer = loss = 0
        for key in keys:
            copies = table.get(key)
            if copies is None:
                self._forget_stale(number)
                continue
            if copies is not before:
                before, left = copies, without_holder(copies, tier, bit)
                fewer = count_copies(copies) - count_copies(left)
                loss = self._weigh(copies) - self._weigh(left)
            if fewer:
                taken += fewer
                self._weight -= loss
                if left:
                    table[key] = left
                else:
                    del table[key]
        self._copies -= taken
        return taken

    def _has(self, owned: Owned, number: int, tier: int | None = None) -> bool:
        """Whether a holder has the blocks, in one tier or in any. True for no blocks."""
        for key in keys_of(owned):
            masks = self._table.get(key, ())
            if tier is not None:
                masks = masks[tier : tier + 1]
            if not any(mask >> number & 1 for mask in masks):
                return False
        return True

    def _tier(self, name: str) -> int:
        if name not in self.tiers:
            self.tiers.append(name)
        return self.tiers.index(name)

    def _touch(self, keys: Sequence[int]) -> None:
        """These blocks are in use. In a table less than half full nothing is about to make room."""
        if self._weight * 2 > self._bound:
            table = self._table
            for key in keys:
                if key in table:
                    table.move_to_end(key)

    def _evict(self) -> None:
        while self._weight > self._bound and self._table:
            _, copies = self._table.popitem(last=False)
            self._weight -= self._weigh(copies)
            held = count_copies(copies)
            self._copies -= held
            self._evicted += held
            for number in bits(anywhere(copies)):
                self._stale[number] = self._stale.get(number, 0) + 1
                if self._stale[number] > len(self._maps[number]) // 4 + _SPARE:
                    self._sweep(number)

    def _forget_stale(self, number: int) -> None:
        if self._stale.get(number):
            self._stale[number] -= 1

    def _sweep(self, number: int) -> None:
        """Forget a holder's entries for blocks that made room."""
        table, self._stale[number] = self._table, 0
        self._maps[number] = {
            key: owned
            for key, owned in self._maps[number].items()
            if not (keys := keys_of(owned)) or any(other in table for other in keys)
        }
