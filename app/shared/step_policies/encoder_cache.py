"""The cache of an encoder's outputs for images and other items, as in vLLM's scheduler.

Pure bookkeeping in embeddings. An item is stored under its hash, and sequences hold the items that
they have not yet computed. The item that was unused for the longest time is evicted first.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

H = TypeVar("H", bound=Hashable)


class EncoderCache(Generic[H]):
    """Items by hash; each one is held by sequences, or can be evicted."""

    def __init__(self, capacity: int, *, keeps_repeated_items: bool = True) -> None:
        """Without `keeps_repeated_items`, the first release of an item of a sequence counts."""
        self._keeps_repeated_items = keeps_repeated_items
        self._free = capacity
        """Embeddings that no item takes."""
        self._evictable = capacity
        """Free embeddings, and the embeddings of items that no sequence holds."""
        self._sizes: dict[str, int] = {}
        self._holders: dict[str, set[H]] = {}
        self._unused: dict[str, None] = {}
        """Items that no sequence holds, in order of eviction."""
        self._held: dict[H, dict[int, str]] = {}
        """The hash of each held item of a sequence, by its number in the prompt."""

    def hold(self, sequence: H, number: int, name: str) -> bool:
        """Lets a sequence hold an item; returns whether the item is there."""
        holders = self._holders.get(name)
        if holders is None:
            return False
        if not holders:
            del self._unused[name]
            self._evictable -= self._sizes[name]
        holders.add(sequence)
        self._held.setdefault(sequence, {})[number] = name
        return True

    def make_room(self, size: int) -> bool:
        """Evicts unused items until `size` embeddings are free; returns False if they cannot be."""
        if size > self._evictable:
            return False
        while size > self._free:
            name = next(iter(self._unused))
            del self._unused[name]
            del self._holders[name]
            self._free += self._sizes.pop(name)
        return True

    def store(self, sequence: H, number: int, name: str, size: int) -> None:
        """Stores a new item that a sequence holds; `make_room` has been called."""
        self._sizes[name] = size
        self._holders[name] = {sequence}
        self._held.setdefault(sequence, {})[number] = name
        self._free -= size
        self._evictable -= size

    def held(self, sequence: H) -> list[int]:
        """Returns the numbers of the items that a sequence holds, in order."""
        return sorted(self._held.get(sequence, ()))

    def release(self, sequence: H, number: int) -> None:
        """Lets a sequence no longer hold an item."""
        names = self._held[sequence]
        name = names.pop(number)
        is_repeated = name in names.values()
        if not names:
            del self._held[sequence]
        holders = self._holders.get(name)
        if not holders or (is_repeated and self._keeps_repeated_items):
            return
        holders.discard(sequence)
        if not holders:
            self._unused[name] = None
            self._evictable += self._sizes[name]

    def release_all(self, sequence: H) -> None:
        """Lets a sequence hold no items."""
        for number in self.held(sequence):
            self.release(sequence, number)
