"""The tier in the memory of the host: which chunks it has, and which ones it evicts.

Behaves as vLLM 0.32's `CPUOffloadingManager`. Start with `CpuTier`. Nothing here takes time:
`Tiers` decides when transfers end.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence

from msgspec import Struct, field

from app.extensions.kv_offload.policies import (
    Arc,
    Chunk,
    Key,
    Lru,
    Policy,
    Rank,
    RankedLru,
    StrictArc,
    TouchedArc,
    TouchedLru,
)

CHUNK_BYTES = 400
"""Memory of a chunk's entry, in bytes: the object, its key, and its place in the policy."""
MAX_TRACKED = 64_000
"""Maximum number of chunks whose requests are counted, as in vLLM."""


class TierEvent(Struct, frozen=True):
    """Chunks that a tier has stored, or removed."""

    keys: Sequence[Key]
    medium: str
    is_removal: bool = False


class Access(Struct):
    """The chunks that one request has used so far."""

    positions: dict[Key, int] = field(default_factory=dict)
    """Number of each chunk in the prompt."""
    new: set[Key] = field(default_factory=set)
    """Chunks that the request has stored."""
    reused: set[Key] = field(default_factory=set)
    """Chunks that other requests had stored."""
    missed: set[Key] = field(default_factory=set)
    """Chunks that the request had to store."""
    generation: int = 0
    """Number of resets of the tier before the request."""
    rank: int = 0
    """See `RankedLru`; 0 before the first use of a chunk."""


class CpuTier:
    """Up to `capacity` chunks.

    A chunk is stored from the `store_threshold`-th request for it on.
    """

    medium = "CPU"

    def __init__(
        self,
        capacity: int,
        policy: str = "lru",
        store_threshold: int = 0,
        orders_prompts: bool = False,
        chunk_uses: str = "requests",
    ) -> None:
        """With `orders_prompts`, an LRU is a `RankedLru`. See `SchedulerRules` for `chunk_uses`."""
        self.capacity = capacity
        self.events: list[TierEvent] = []
        """Events since the latest `take_events`."""
        self.allocations: list[int] = []
        """Chunks of each allocation, also of failed ones, since they were last counted."""
        self.skipped = 0
        """Number of chunks that were not stored because too few requests had them."""
        self.writing = 0
        """Number of chunks that transfers write."""
        self.reading = 0
        """Number of chunks that transfers read."""
        is_touched = chunk_uses != "requests"
        lru = TouchedLru if is_touched else Lru
        if orders_prompts:
            lru = RankedLru
        arc = TouchedArc if is_touched else Arc
        if chunk_uses in ("offers", "lookups"):
            arc = StrictArc
        self._policy: Policy = arc(capacity) if policy == "arc" else lru(capacity)
        self._store_threshold = store_threshold
        self._counts_lookups = chunk_uses == "lookups"
        self._requests: OrderedDict[Key, int] = OrderedDict()
        """Number of requests for each chunk, the least recent first."""
        self._generation = 0

    @property
    def size_bytes(self) -> int:
        """Memory of the entries, in bytes."""
        return len(self._policy) * CHUNK_BYTES

    @property
    def limit_bytes(self) -> int:
        """Maximum of `size_bytes`."""
        return self.capacity * CHUNK_BYTES

    @property
    def room(self) -> int:
        """Number of chunks that could be stored now."""
        return self.capacity - self.writing - self.reading

    def new_access(self) -> Access:
        """Returns the chunks of a new request."""
        return Access(generation=self._generation)

    def get(self, key: Key) -> Chunk | None:
        """Returns a chunk; None if the tier does not have it."""
        return self._policy.get(key)

    def hold(self, keys: Sequence[Key]) -> None:
        """Keeps chunks from being evicted until `release`."""
        for key in keys:
            chunk = self._policy.get(key)
            assert chunk is not None
            self.reading += not chunk.users
            chunk.users += 1

    def release(self, keys: Sequence[Key]) -> None:
        """Ends a `hold`."""
        for key in keys:
            chunk = self._policy.get(key)
            assert chunk is not None
            chunk.users -= 1
            if not chunk.users:
                self.reading -= 1
                self._policy.freed(key)

    def looked_up(self, keys: Sequence[Key]) -> None:
        """Notes a lookup of chunks, which ended at the first missing one."""
        if self._counts_lookups:
            self._count_requests(keys)

    def touch(self, keys: Sequence[Key]) -> None:
        """Notes all chunks of a request that looks chunks up, or stores some."""
        self._policy.touched(keys)

    def note_load(self, keys: Sequence[Key], first: int, access: Access) -> None:
        """Notes that a request loads chunks, which begin at chunk `first` of its prompt."""
        self._renew(access)
        self._note_access(keys, first, access, set(keys))
        access.reused.update(key for key in keys if key not in access.new)

    def prepare_store(
        self, keys: Sequence[Key], first: int, access: Access
    ) -> tuple[Key, ...] | None:
        """Makes room for the chunks of a prompt, from chunk `first` on, that the tier lacks.

        Returns the chunks to write, or None if too few chunks can be evicted.
        """
        self._renew(access)
        if not self._counts_lookups:
            self._count_requests(keys)
        missing = []
        ready = set()
        for key in keys:
            chunk = self._policy.get(key)
            if chunk is None:
                missing.append(key)
            elif chunk.is_ready:
                ready.add(key)
        if self._store_threshold >= 2:
            wanted = [key for key in missing if self._requests.get(key, 0) >= self._store_threshold]
            self.skipped += len(missing) - len(wanted)
            missing = wanted
        self._policy.missed([key for key in missing if key not in access.missed])
        access.missed.update(missing)
        self._note_access(keys, first, access, ready.union(missing))
        access.reused.update(key for key in ready if key not in access.new)
        if missing:
            self.allocations.append(len(missing))
            if not self._make_room(len(missing), keys):
                return None
        for key in missing:
            self._policy.insert(key, Chunk(), (access.rank, -access.positions[key]))
        self.writing += len(missing)
        access.new.update(missing)
        return tuple(missing)

    def complete_store(self, keys: Sequence[Key]) -> None:
        """Notes that chunks are written."""
        for key in keys:
            chunk = self._policy.get(key)
            assert chunk is not None
            chunk.is_ready = True
            self._policy.freed(key)
        self.writing -= len(keys)
        self.events.append(TierEvent(keys, self.medium))

    def finish(self, access: Access) -> None:
        """Notes the end of a request."""
        if access.generation != self._generation:
            return
        keys = sorted(access.positions, key=access.positions.__getitem__)
        self._policy.used(keys, access.reused, access.new - access.reused)

    def take_events(self) -> list[TierEvent]:
        """Returns and clears the events."""
        events = self.events
        self.events = []
        return events

    def reset(self) -> None:
        """Removes all chunks, without events, as in vLLM. Transfers under way have no effect."""
        self._policy.clear()
        self._generation += 1
        self.writing = 0
        self.reading = 0

    def _renew(self, access: Access) -> None:
        """Forgets what a request has used before the latest reset."""
        if access.generation != self._generation:
            access.rank = 0
            for noted in (access.positions, access.new, access.reused, access.missed):
                noted.clear()
            access.generation = self._generation

    def _note_access(
        self, keys: Sequence[Key], first: int, access: Access, noted: Collection[Key]
    ) -> None:
        """Notes the places of `noted` chunks among `keys`, which begin at chunk `first`."""
        ranks: dict[Key, Rank] = {}
        for position, key in enumerate(keys, first):
            if key in noted and key not in access.positions:
                access.rank = access.rank or self._policy.new_rank()
                access.positions[key] = position
                ranks[key] = (access.rank, -position)
        if ranks:
            self._policy.accessed(ranks)

    def _count_requests(self, keys: Collection[Key]) -> None:
        """Counts a use of chunks; a full table forgets the least recent other ones."""
        if self._store_threshold < 2:
            return
        requests = self._requests
        counted = {key for key in keys if key in requests}
        for key in keys:
            if key in counted:
                requests.move_to_end(key)
                requests[key] += 1
        others = len(requests) - len(counted)
        for key in keys:
            if key in requests:
                continue
            if len(requests) >= MAX_TRACKED:
                if not others:
                    continue
                requests.popitem(last=False)
                others -= 1
            requests[key] = 1

    def _make_room(self, count: int, protected: Sequence[Key]) -> bool:
        """Evicts chunks until `count` more fit; returns False if too few can be evicted."""
        surplus = len(self._policy) + count - self.capacity
        if surplus <= 0:
            return True
        victims = self._policy.evict(surplus, set(protected))
        if victims is None:
            return False
        self.events.append(TierEvent(victims, self.medium, is_removal=True))
        return True
