"""The tier on disk, which gets a copy of each chunk that the host stores. No file is written.

vLLM's tier keeps its files forever. This one has a capacity, and removes the least recent chunks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from app.extensions.kv_offload.cpu_tier import CHUNK_BYTES, TierEvent
from app.extensions.kv_offload.policies import Key


class DiskTier:
    """Up to `capacity` chunks."""

    medium = "STORAGE"

    def __init__(self, capacity: int, has_events: bool = False) -> None:
        self.capacity = capacity
        self.events: list[TierEvent] = []
        """Events since the latest `take_events`."""
        self._has_events = has_events
        self._keys: OrderedDict[Key, None] = OrderedDict()

    def __contains__(self, key: Key) -> bool:
        return key in self._keys

    @property
    def size_bytes(self) -> int:
        """Memory of the entries, in bytes."""
        return len(self._keys) * CHUNK_BYTES

    @property
    def limit_bytes(self) -> int:
        """Maximum of `size_bytes`."""
        return self.capacity * CHUNK_BYTES

    def use(self, keys: Sequence[Key]) -> None:
        """Notes that chunks are read."""
        for key in reversed(keys):
            if key in self._keys:
                self._keys.move_to_end(key)

    def store(self, keys: Sequence[Key]) -> None:
        """Stores chunks; a full tier removes its least recent ones."""
        for key in keys:
            self._keys[key] = None
            self._keys.move_to_end(key)
        removed = []
        while len(self._keys) > self.capacity:
            removed.append(self._keys.popitem(last=False)[0])
        if self._has_events:
            self.events.append(TierEvent(keys, self.medium))
            if removed:
                self.events.append(TierEvent(removed, self.medium, is_removal=True))

    def take_events(self) -> list[TierEvent]:
        """Returns and clears the events."""
        events = self.events
        self.events = []
        return events
