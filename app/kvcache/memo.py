"""A dictionary that is bounded in bytes."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

K = TypeVar("K")
V = TypeVar("V")

ENTRY_BYTES = 200
"""What an entry takes besides its key and its value: a place in a dictionary, a pair, and its size."""


class Bounded(Protocol):
    """Whatever grows with what comes in: what it holds by its own reckoning, and the most that may be."""

    @property
    def size_bytes(self) -> int: ...

    @property
    def limit_bytes(self) -> int: ...


class Memo(Generic[K, V]):
    """Remembers entries of `limit_bytes` altogether, those used last among them; every operation is O(1).

    There are two generations of half the size. What is used moves to the young one; when that is full it
    becomes the old one, and the entries of the former old one are forgotten. An entry that is larger than
    half is not remembered.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._half = limit_bytes // 2
        self._young: dict[K, tuple[V, int]] = {}
        self._old: dict[K, tuple[V, int]] = {}
        self._young_bytes = self._old_bytes = 0

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    @property
    def size_bytes(self) -> int:
        return self._young_bytes + self._old_bytes

    def get(self, key: K) -> V | None:
        entry = self._young.get(key)
        if entry is None:
            entry = self._old.pop(key, None)
            if entry is None:
                return None
            value, size = entry
            self._old_bytes -= size
            self._keep(key, value, size)
        return entry[0]

    def put(self, key: K, value: V, size_bytes: int) -> None:
        """Remember a value under a key that has none yet; `size_bytes` are those of both."""
        self._keep(key, value, size_bytes + ENTRY_BYTES)

    def _keep(self, key: K, value: V, size: int) -> None:
        if size > self._half:
            return
        if self._young_bytes + size > self._half:
            self._old, self._old_bytes = self._young, self._young_bytes
            self._young, self._young_bytes = {}, 0
        self._young[key] = value, size
        self._young_bytes += size
