"""A cache of large values that frees them a few at a time."""

from __future__ import annotations

from typing import TypeVar

from app.core.base.caches import Memo

K = TypeVar("K")
V = TypeVar("V")

FREED_ENTRIES = 4
"""Entries of a dropped generation that are freed with each new entry."""


class GradualMemo(Memo[K, V]):
    """A memo of large values: a dropped generation is freed with each new entry, a few at a time.

    Freeing 64 MiB of small objects at once takes 50 ms.
    """

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self._dropped: dict[K, tuple[V, int]] = {}
        self._dropped_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Memory of all entries, including entries that are not freed yet."""
        return super().size_bytes + self._dropped_bytes

    def _store(self, key: K, value: V, size: int) -> None:
        old = self._old
        old_bytes = self._old_bytes
        super()._store(key, value, size)
        if self._old is not old:
            self._dropped = old
            self._dropped_bytes = old_bytes
        for _ in range(min(FREED_ENTRIES, len(self._dropped))):
            _, (_, freed_bytes) = self._dropped.popitem()
            self._dropped_bytes -= freed_bytes
