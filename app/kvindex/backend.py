"""The index's storage: its interface, its operations, and the holders of blocks as bits.

A *request key* names a block's content, the same on every pod. An *engine key* is one engine's name
for a block. Scores look blocks up by request keys; engines remove blocks by engine keys.

A mask is a set of holders as one integer, for fast set operations. The copies of a block are its
masks, tier by tier; functions of copies return new ones and change none.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, MutableMapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from cachetools import LRUCache
from msgspec import Struct

Copies: TypeAlias = tuple[int, ...]
"""Masks of a block's holders, one for each tier, in the order of the backend's tiers."""

MOST_ADAPTERS = 4096
"""Most adapters whose holders are remembered; the least recently used is dropped."""


class IndexedEngine(Struct, frozen=True, gc=False):
    """An engine: a data parallel `rank` of a pod, with its base model."""

    pod: str
    model: str
    rank: int


class EngineGroup(Struct, frozen=True, gc=False):
    """A KV cache group of an engine.

    Blocks of groups that are not `scored` do not count in scores.
    """

    source: IndexedEngine
    group: int
    scored: bool


class TooManyHolders(Exception):
    """Raised when no bit is left for another holder."""


class Holders:
    """Assigns a bit to every holder, and keeps the bits of each pod, model and adapter.

    Free bits are assigned again, so that the length of masks follows the size of the fleet. `most`
    limits the number of holders at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._holders: list[EngineGroup | None] = []
        self._free: list[int] = []
        self._groups: dict[IndexedEngine, dict[int, int]] = {}
        self._pods: dict[str, int] = {}
        self._models: dict[str, int] = {}
        self._scored = 0
        self._adapters: LRUCache[str, int] = LRUCache(MOST_ADAPTERS)

    def __len__(self) -> int:
        return len(self._holders) - len(self._free)

    @property
    def one_group_each(self) -> bool:
        return len(self._groups) == len(self)

    @property
    def pods(self) -> Collection[str]:
        return self._pods.keys()

    def __getitem__(self, number: int) -> EngineGroup | None:
        """Returns the holder of bit `number`; None for a free bit."""
        return self._holders[number] if number < len(self._holders) else None

    def number(self, source: IndexedEngine, group: int, scored: bool | None = None) -> int:
        """Returns the bit of a group, assigned now if needed.

        TooManyHolders when no bit is free.
        """
        known = self._groups.get(source, {}).get(group)
        if known is None:
            number = self._free[0] if self._free else len(self._holders)
            if number >= self._most:
                raise TooManyHolders(f"there are {self._most} holders already")
            if self._free:
                heapq.heappop(self._free)
            else:
                self._holders.append(None)
            self._place(
                number, EngineGroup(source, group, group == 0 if scored is None else scored)
            )
            return number
        holder = self._holders[known]
        if holder is not None and scored is not None and holder.scored != scored:
            self.assign(known, EngineGroup(source, group, scored))
        return known

    def groups(self, source: IndexedEngine) -> dict[int, int]:
        """Returns group -> bit for an engine."""
        return self._groups.get(source, {})

    def sources(self, pod: str) -> list[IndexedEngine]:
        return list({holder.source for _, holder in self.of(self._pods.get(pod, 0))})

    def assign(self, number: int, holder: EngineGroup) -> None:
        """Assigns bit `number`, chosen by a shared backend, to a holder."""
        self.release(number)
        for unused in range(len(self._holders), number + 1):
            self._holders.append(None)
            self._free.append(unused)
        self._free.remove(number)
        heapq.heapify(self._free)
        self._place(number, holder)

    def release(self, number: int) -> None:
        """Frees bit `number`."""
        holder = self[number]
        if holder is None:
            return
        source = holder.source
        self._holders[number] = None
        self._scored &= ~(1 << number)
        heapq.heappush(self._free, number)
        groups = self._groups[source]
        del groups[holder.group]
        if not groups:
            del self._groups[source]
        _drop(self._pods, source.pod, number)
        _drop(self._models, source.model, number)
        for adapter, mask in list(self._adapters.items()):
            if mask >> number & 1:
                _drop(self._adapters, adapter, number)

    def serves(self, adapter: str, number: int) -> None:
        self._adapters[adapter] = self._adapters.get(adapter, 0) | 1 << number

    def mask(self, model: str, pods: Collection[str] = ()) -> int:
        """Returns the scored holders of a model, else of an adapter of this name; with `pods`, only
        these.
        """
        serving = self._models.get(model) or self._adapters.get(model, 0) & self._scored
        if not pods:
            return serving
        return serving & anywhere([self._pods.get(pod, 0) for pod in pods])

    def seats(self) -> list[EngineGroup | None]:
        """Returns a copy of the holders by bit; None for a free bit."""
        return self._holders.copy()

    def of(self, mask: int) -> list[tuple[int, EngineGroup]]:
        """Returns bits and holders of a mask, lowest bit first."""
        holders = self._holders
        return [
            (number, holder) for number in bits(mask) if (holder := holders[number]) is not None
        ]

    def _place(self, number: int, holder: EngineGroup) -> None:
        source = holder.source
        self._holders[number] = holder
        self._groups.setdefault(source, {})[holder.group] = number
        self._pods[source.pod] = self._pods.get(source.pod, 0) | 1 << number
        if holder.scored:
            self._scored |= 1 << number
            self._models[source.model] = self._models.get(source.model, 0) | 1 << number


def _drop(masks: MutableMapping[str, int], name: str, number: int) -> None:
    left = masks.get(name, 0) & ~(1 << number)
    if left:
        masks[name] = left
    else:
        masks.pop(name, None)


def bits(mask: int) -> list[int]:
    """Returns the numbers of the set bits, lowest first."""
    digits = bin(mask)[::-1]  # ends in "b0", which has no "1"
    found, at = [], digits.find("1")
    while at >= 0:
        found.append(at)
        at = digits.find("1", at + 1)
    return found


def count_copies(copies: Copies) -> int:
    """Counts the holders of a block, once for each tier."""
    if len(copies) == 1:
        return copies[0].bit_count()
    return sum(map(int.bit_count, copies))


def with_holder(copies: Copies, tier: int, bit: int) -> Copies:
    """Returns the copies with a holder added; the same object if the holder is present."""
    if tier < len(copies):
        if copies[tier] & bit:
            return copies
        return (*copies[:tier], copies[tier] | bit, *copies[tier + 1 :])
    return (*copies, *(0,) * (tier - len(copies)), bit)


def without_holder(copies: Copies, tier: int | None, bit: int) -> Copies:
    """Returns the copies without a holder, in one tier or all; the same object if the holder is
    absent.
    """
    if not any(mask & bit for mask in (copies if tier is None else copies[tier : tier + 1])):
        return copies
    left = [mask & ~bit if tier in (None, at) else mask for at, mask in enumerate(copies)]
    while left and not left[-1]:
        left.pop()
    return tuple(left)


def anywhere(copies: Iterable[int]) -> int:
    mask = 0
    for one in copies:
        mask |= one
    return mask


GPU, CPU = "gpu", "cpu"
MOST_TIERS, MOST_HOLDERS = 16, 65_536
"""Most storage tiers, and most KV cache groups of all engines at once; each group is a bit of every
mask.
"""

Owned: TypeAlias = int | tuple[int, ...]
"""Request keys of the index blocks that an engine's block overlaps, in order.

A single number where both blocks are the same. A tuple ends in `UNALIGNED` where the engine's block
ends inside an index block. """

UNALIGNED = 0
"""End mark of an `Owned` tuple; no block has this request key."""


def keys_of(owned: Owned) -> tuple[int, ...]:
    """Returns the request keys of an entry, without the end mark."""
    if isinstance(owned, int):
        return (owned,)
    return owned[:-1] if owned and owned[-1] == UNALIGNED else owned


class BlockOperation(Struct, gc=False):
    """An operation on blocks, named by `engine` keys, of a KV cache group in a tier."""

    group: int
    tier: str
    engine: Sequence[int]


class Store(BlockOperation, gc=False):
    """Adds blocks to a tier: `owned` has the request keys of each block in `engine`.

    `keys` lists all full index blocks, without duplicates. `joined` pairs engine keys of earlier
    events with the request key of a further index block that they overlap.
    """

    owned: Sequence[Owned]
    keys: Sequence[int]
    joined: Sequence[tuple[int, int]] = ()
    scored: bool | None = None
    adapter: str | None = None


class Offload(BlockOperation, gc=False):
    """Adds known blocks to a further tier."""


class Remove(BlockOperation, gc=False):
    """Removes blocks from a tier."""


class Clear(Struct, frozen=True, gc=False):
    """Removes all blocks of the engine."""


Operation: TypeAlias = Store | Offload | Remove | Clear


class Stamp(Struct, frozen=True, gc=False):
    """Number of an engine's batch; `restart` marks the first batch after an engine's restart."""

    sequence: int
    ts: float
    restart: bool = False


class Outcome(Struct):
    """Result of operations, in block copies; not `applied` if another indexer was first."""

    added: int = 0
    removed: int = 0
    unknown: int = 0
    applied: bool = True

    def add(self, later: Outcome) -> None:
        self.added += later.added
        self.removed += later.removed
        self.unknown += later.unknown
        self.applied = later.applied


class IndexSize(Struct, frozen=True):
    """Content of a backend: `blocks`, `copies` (a block in a tier of a holder), and `weight`.

    `weight` and `bound` have the same unit, which depends on the backend; both are None without a
    bound.
    """

    blocks: int
    copies: int
    evicted: int = 0
    weight: int | None = None
    bound: int | None = None


class BackendUnavailable(Exception):
    """Raised when the backend does not answer; the same call may succeed later."""


class Found(NamedTuple):
    """Result of a lookup:

    copies of a prompt's first blocks, holders of the bits, and tiers in order.
    """

    copies: list[Copies]
    holders: Holders
    tiers: Sequence[str]


class Backend(Protocol):
    """Storage for the copies of blocks, by holder and tier.

    Every method may raise `BackendUnavailable`.
    """

    tiers: list[str]
    """Names of the known tiers."""
    epoch: str = ""
    """Changes after the backend has lost all data."""
    times_lost: int = 0
    """Number of such losses."""
    events_a_turn: int
    """Most events to apply in one go."""

    def owned(self, source: IndexedEngine, engine: Sequence[tuple[int, int]]) -> list[Owned | None]:
        """Returns the entry of each (group, engine key) of a source; None for an unknown block."""

    def apply(
        self, source: IndexedEngine, operations: Sequence[Operation], stamp: Stamp | None = None
    ) -> Outcome:
        """Applies the operations in order; a backend that indexers share applies all or none.

        Long work pauses. Raises TooManyHolders when there is no bit left for the source.
        """

    def lookup(self, keys: Sequence[int]) -> Found:
        """Returns the copies of blocks, up to the first block without a holder."""

    def position(self, source: IndexedEngine) -> Stamp | None:
        """Returns the latest batch of an engine that any indexer has applied; None if unknown."""
        return None

    def clear(self, pod: str) -> int:
        """Removes a pod; returns its number of copies. Long work pauses."""

    def pods(self) -> list[str]:
        """Returns names of pods that have or had blocks, except removed pods."""

    def size(self) -> IndexSize: ...

    def close(self) -> None:
        """Closes connections; shared data stays."""
