"""Caches with a limit in bytes, for values that cannot be kept by `cachetools` (see each class)."""

from __future__ import annotations

from array import array
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

ENTRY_BYTES = 200
"""Memory of an entry besides key and value, in bytes.

It consists of a place in a dictionary, a pair, and the size.
"""
HASH_COUNT = 1 << 13
"""Number of hashes of keys seen once: 64 KB."""


class Memo(Generic[K, V]):
    """Cache of recently used entries, up to `limit_bytes` in total; every operation is O(1).

    Two generations have half the size each. A used entry moves to the young generation. A full
    young generation becomes the old one, and the former old one is dropped. Entries larger than
    half the limit are not stored.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._young: dict[K, tuple[V, int]] = {}
        self._old: dict[K, tuple[V, int]] = {}
        self._young_bytes = 0
        self._old_bytes = 0

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    @property
    def size_bytes(self) -> int:
        """Memory of all entries."""
        return self._young_bytes + self._old_bytes

    def get(self, key: K) -> V | None:
        """Returns the value of a key; None if there is none."""
        entry = self._young.get(key)
        if entry is None:
            entry = self._old.pop(key, None)
            if entry is None:
                return None
            self._old_bytes -= entry[1]
            self._store(key, *entry)
        return entry[0]

    def put(self, key: K, value: V, size_bytes: int) -> None:
        """Adds a value under a new key; `size_bytes` is the size of both."""
        self._store(key, value, size_bytes + ENTRY_BYTES)

    def shrink(self) -> None:
        """Drops the old generation, and makes the young one the old one."""
        self._old = self._young
        self._old_bytes = self._young_bytes
        self._young = {}
        self._young_bytes = 0

    def _store(self, key: K, value: V, size: int) -> None:
        half = self.limit_bytes // 2
        if size > half:
            return
        if self._young_bytes + size > half:
            self.shrink()
        self._young[key] = value, size
        self._young_bytes += size


class ComputedMemo(Memo[K, V]):
    """A memo of values that can be computed again (`Recomputable`)."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self.full_limit_bytes = limit_bytes


class LimitedDict(dict[K, V]):
    """A dictionary that is cleared when its entries exceed a limit of memory.

    Looking a key up costs no call of a Python function. Frequent entries are soon added again.
    """

    def __init__(self, limit_bytes: int) -> None:
        super().__init__()
        self.full_limit_bytes = limit_bytes
        self.limit_bytes = limit_bytes
        self.size_bytes = 0

    def clear(self) -> None:
        """Removes all entries."""
        super().clear()
        self.size_bytes = 0

    def shrink(self) -> None:
        """Removes all entries."""
        self.clear()

    def add(self, key: K, value: V, entry_bytes: int) -> None:
        """Adds an entry, unless it alone exceeds the limit."""
        if self.size_bytes + entry_bytes > self.limit_bytes:
            self.clear()
        if entry_bytes <= self.limit_bytes:
            self[key] = value
            self.size_bytes += entry_bytes


class RecentKeys:
    """Recognizes the latest keys by their hashes, in constant memory."""

    def __init__(self) -> None:
        self._hashes = array("q", bytes(8 * HASH_COUNT))
        """Hash of the latest key, by the hash's remainder."""

    def has(self, key: str | bytes) -> bool:
        """Returns whether `key` has been seen, from then on True.

        Returns False for a key whose place another key has taken since.
        """
        key_hash = hash(key)
        place = key_hash % HASH_COUNT
        if self._hashes[place] == key_hash:
            return True
        self._hashes[place] = key_hash
        return False
