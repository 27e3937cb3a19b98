"""Which chunks leave a full tier: the least recently used (LRU), or by recency and frequency (ARC).

All behave as the eviction policies of vLLM's `CPUOffloadingManager`: `Lru` and `Arc` of 0.31 and
0.32, `RankedLru` since 0.33, `TouchedLru` and `TouchedArc` before 0.31, and `StrictArc`
before 0.30. Chunks that a transfer uses, or that are not written yet, are never evicted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import ClassVar, Protocol, TypeAlias

from msgspec import Struct

Key = bytes
"""Hash of the last block of a chunk."""
Rank: TypeAlias = tuple[int, int]
"""Place in the order of eviction: rank of a request, and the negative number of the chunk."""
MIN_HEAP = 64
"""Entries of a heap that are never cleaned up."""


class Chunk(Struct, gc=False):
    """One stored chunk."""

    users: int = 0
    """Number of transfers that read the chunk."""
    is_ready: bool = False
    """True after the transfer that writes the chunk."""

    @property
    def is_evictable(self) -> bool:
        """True if no transfer reads or writes the chunk."""
        return self.is_ready and not self.users


class Policy(Protocol):
    """The chunks of a tier, and the order of their eviction."""

    def __len__(self) -> int:
        """Returns the number of chunks."""

    def get(self, key: Key) -> Chunk | None:
        """Returns a chunk; None if the tier does not have it."""

    def insert(self, key: Key, chunk: Chunk, rank: Rank) -> None:
        """Adds a chunk; for `rank`, see `RankedLru`."""

    def new_rank(self) -> int:
        """Returns the rank of a request that uses its first chunk."""

    def accessed(self, ranks: Mapping[Key, Rank]) -> None:
        """Notes chunks that a request uses for the first time, also missing ones."""

    def remove(self, key: Key) -> None:
        """Removes a chunk whose transfer has failed."""

    def missed(self, keys: Sequence[Key]) -> None:
        """Notes chunks that a request wants to store, and that the tier does not have."""

    def used(self, keys: Sequence[Key], reused: Collection[Key], new: Collection[Key]) -> None:
        """Notes the chunks of a request that has ended, in the order of the prompt.

        `reused` were there before the request, and `new` only since then.
        """

    def touched(self, keys: Sequence[Key]) -> None:
        """Notes all chunks of a request that looks chunks up, or stores some, also missing ones."""

    def freed(self, key: Key) -> None:
        """Notes that the last transfer of a chunk is over."""

    def evict(self, count: int, protected: Collection[Key]) -> list[Key] | None:
        """Removes `count` chunks; None, and no change, if too few can be evicted."""

    def clear(self) -> None:
        """Removes all chunks."""


class Lru:
    """Evicts the chunk whose latest use is the oldest.

    The beginning of a prompt counts as used after its end, so that prompts lose their ends first.
    """

    def __init__(self, capacity: int) -> None:
        self._chunks: OrderedDict[Key, Chunk] = OrderedDict()

    def __len__(self) -> int:
        return len(self._chunks)

    def get(self, key: Key) -> Chunk | None:
        """See `Policy`."""
        return self._chunks.get(key)

    def new_rank(self) -> int:
        """See `Policy`; ranks have no effect."""
        return 1

    def accessed(self, ranks: Mapping[Key, Rank]) -> None:
        """Does nothing: a chunk is used when its request ends."""

    def insert(self, key: Key, chunk: Chunk, rank: Rank) -> None:
        """See `Policy`."""
        self._chunks[key] = chunk

    def remove(self, key: Key) -> None:
        """See `Policy`."""
        del self._chunks[key]

    def missed(self, keys: Sequence[Key]) -> None:
        """Does nothing: only present chunks count."""

    def used(self, keys: Sequence[Key], reused: Collection[Key], new: Collection[Key]) -> None:
        """See `Policy`."""
        self._make_latest(keys)

    def touched(self, keys: Sequence[Key]) -> None:
        """Does nothing: a chunk is used when its request ends."""

    def freed(self, key: Key) -> None:
        """Does nothing: transfers do not count as uses."""

    def _make_latest(self, keys: Sequence[Key]) -> None:
        for key in reversed(keys):
            if key in self._chunks:
                self._chunks.move_to_end(key)

    def evict(self, count: int, protected: Collection[Key]) -> list[Key] | None:
        """See `Policy`."""
        victims: list[Key] = []
        for key in _evictable(self._chunks, protected):
            if len(victims) == count:
                break
            victims.append(key)
        if len(victims) < count:
            return None
        for key in victims:
            del self._chunks[key]
        return victims

    def clear(self) -> None:
        """See `Policy`."""
        self._chunks.clear()


class TouchedLru(Lru):
    """An LRU where lookups, stores and transfers count as uses, as up to vLLM 0.30."""

    def used(self, keys: Sequence[Key], reused: Collection[Key], new: Collection[Key]) -> None:
        """Does nothing: the end of a request is no use."""

    def touched(self, keys: Sequence[Key]) -> None:
        """See `Policy`."""
        self._make_latest(keys)

    def freed(self, key: Key) -> None:
        """See `Policy`."""
        self._chunks.move_to_end(key)


class RankedLru(Lru):
    """An LRU that also orders the chunks of running requests, as of vLLM 0.33.

    A request has the rank of its first use of a chunk until it ends, and loses its later chunks
    first.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._ranks: dict[Key, Rank] = {}
        self._heap: list[tuple[Rank, Key]] = []
        """All chunks by rank, besides outdated entries."""
        self._latest = 0

    def new_rank(self) -> int:
        """See `Policy`."""
        self._latest += 1
        return self._latest

    def insert(self, key: Key, chunk: Chunk, rank: Rank) -> None:
        """See `Policy`."""
        super().insert(key, chunk, rank)
        self._set_rank(key, rank)

    def remove(self, key: Key) -> None:
        """See `Policy`."""
        super().remove(key)
        del self._ranks[key]

    def accessed(self, ranks: Mapping[Key, Rank]) -> None:
        """See `Policy`."""
        for key, rank in ranks.items():
            if key in self._chunks and self._ranks[key] < rank:
                self._set_rank(key, rank)

    def used(self, keys: Sequence[Key], reused: Collection[Key], new: Collection[Key]) -> None:
        """See `Policy`."""
        for key in reversed(keys):
            if key in self._chunks:
                self._set_rank(key, (self.new_rank(), 0))

    def evict(self, count: int, protected: Collection[Key]) -> list[Key] | None:
        """See `Policy`."""
        victims: list[Key] = []
        kept = []
        while self._heap and len(victims) < count:
            rank, key = heappop(self._heap)
            if self._ranks.get(key) != rank or key in victims:
                continue
            if self._chunks[key].is_evictable and key not in protected:
                victims.append(key)
            else:
                kept.append((rank, key))
        is_done = len(victims) == count
        for key in victims:
            if is_done:
                self.remove(key)
            else:
                kept.append((self._ranks[key], key))
        for entry in kept:
            heappush(self._heap, entry)
        return victims if is_done else None

    def clear(self) -> None:
        """See `Policy`."""
        super().clear()
        self._ranks.clear()
        self._heap.clear()

    def _set_rank(self, key: Key, rank: Rank) -> None:
        self._ranks[key] = rank
        heappush(self._heap, (rank, key))
        if len(self._heap) > MIN_HEAP + 2 * len(self._ranks):
            self._heap = [(rank, key) for key, rank in self._ranks.items()]
            heapify(self._heap)


class Arc:
    """Adaptive Replacement Cache (Megiddo and Modha, 2003).

    `_recent` has chunks of one request, `_frequent` those that a later request used again. The keys
    of evicted chunks stay in `_lost_recent` and `_lost_frequent`. A request for such a key moves
    the target size of `_recent` up or down.
    """

    _falls_back: ClassVar[bool] = True
    """A recent chunk is evicted where no frequent one can be."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._target = 0.0
        """Number of chunks that `_recent` keeps before chunks of `_frequent` are evicted."""
        self._recent: OrderedDict[Key, Chunk] = OrderedDict()
        self._frequent: OrderedDict[Key, Chunk] = OrderedDict()
        self._lost_recent: OrderedDict[Key, None] = OrderedDict()
        self._lost_frequent: OrderedDict[Key, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._recent) + len(self._frequent)

    def get(self, key: Key) -> Chunk | None:
        """See `Policy`."""
        chunk = self._recent.get(key)
        if chunk is None:
            chunk = self._frequent.get(key)
        return chunk

    def new_rank(self) -> int:
        """See `Policy`; ranks have no effect."""
        return 1

    def accessed(self, ranks: Mapping[Key, Rank]) -> None:
        """Does nothing: a chunk is used when its request ends."""

    def insert(self, key: Key, chunk: Chunk, rank: Rank) -> None:
        """See `Policy`."""
        self._recent[key] = chunk
        self._lost_recent.pop(key, None)
        self._lost_frequent.pop(key, None)

    def remove(self, key: Key) -> None:
        """See `Policy`."""
        if self._recent.pop(key, None) is None:
            del self._frequent[key]

    def missed(self, keys: Sequence[Key]) -> None:
        """Adapts the target to keys of evicted chunks."""
        for key in reversed(keys):
            self._adapt(key)

    def touched(self, keys: Sequence[Key]) -> None:
        """Does nothing: a chunk is used when its request ends."""

    def freed(self, key: Key) -> None:
        """Does nothing: transfers do not count as uses."""

    def _adapt(self, key: Key) -> None:
        recent = self._lost_recent
        frequent = self._lost_frequent
        if key in recent:
            step = max(1.0, len(frequent) / len(recent))
            self._target = min(self._target + step, self._capacity)
            recent.move_to_end(key)
        elif key in frequent:
            step = max(1.0, len(recent) / len(frequent))
            self._target = max(self._target - step, 0.0)
            frequent.move_to_end(key)

    def used(self, keys: Sequence[Key], reused: Collection[Key], new: Collection[Key]) -> None:
        """See `Policy`."""
        for key in reversed(keys):
            if key in new:
                for chunks in (self._recent, self._frequent):
                    if key in chunks:
                        chunks.move_to_end(key)
            elif key in reused:
                chunk = self._recent.pop(key, None)
                if chunk is not None:
                    self._frequent[key] = chunk
                elif key in self._frequent:
                    self._frequent.move_to_end(key)

    def evict(self, count: int, protected: Collection[Key]) -> list[Key] | None:
        """See `Policy`."""
        recent = _evictable(self._recent, protected)
        frequent = _evictable(self._frequent, protected)
        victims: list[Key] = []
        size = len(self._recent)
        """Number of chunks that stay in `_recent`."""
        for _ in range(count):
            victim = None
            if size >= int(self._target):
                victim = next(recent, None)
                size -= victim is not None
            if victim is None:
                victim = next(frequent, None)
            if victim is None and self._falls_back:
                victim = next(recent, None)
                size -= victim is not None
            if victim is None:
                return None
            victims.append(victim)
        for victim in victims:
            if self._recent.pop(victim, None) is not None:
                self._lost_recent[victim] = None
            else:
                del self._frequent[victim]
                self._lost_frequent[victim] = None
        for lost in (self._lost_recent, self._lost_frequent):
            while len(lost) > self._capacity:
                lost.popitem(last=False)
        return victims

    def clear(self) -> None:
        """See `Policy`."""
        self._target = 0.0
        for chunks in (self._recent, self._frequent):
            chunks.clear()
        for lost in (self._lost_recent, self._lost_frequent):
            lost.clear()


class TouchedArc(Arc):
    """An ARC where each lookup and each store of a request counts as a use, as up to vLLM 0.30."""

    def missed(self, keys: Sequence[Key]) -> None:
        """Does nothing: `touched` adapts the target."""

    def used(self, keys: Sequence[Key], reused: Collection[Key], new: Collection[Key]) -> None:
        """Does nothing: the end of a request is no use."""

    def touched(self, keys: Sequence[Key]) -> None:
        """See `Policy`; a chunk that is not written yet stays among the recent ones."""
        for key in reversed(keys):
            chunk = self._recent.get(key)
            if chunk is not None and chunk.is_ready:
                del self._recent[key]
                self._frequent[key] = chunk
            elif chunk is not None:
                self._recent.move_to_end(key)
            elif key in self._frequent:
                self._frequent.move_to_end(key)
            else:
                self._adapt(key)


class StrictArc(TouchedArc):
    """A `TouchedArc` that evicts no recent chunk in place of a frequent one, as up to 0.29."""

    _falls_back = False


def _evictable(chunks: OrderedDict[Key, Chunk], protected: Collection[Key]) -> Iterator[Key]:
    """Yields the keys of chunks that may be evicted, the least recent first."""
    for key, chunk in chunks.items():
        if chunk.is_evictable and key not in protected:
            yield key
