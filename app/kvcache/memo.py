"""A dictionary that stays small."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Memo(Generic[K, V]):
    """Remembers at most `size` entries, those used last among them; every operation is O(1) per entry.

    There are two generations of half the size. What is used moves to the young one; when that is full it
    becomes the old one, and the entries of the former old one are forgotten.
    """

    def __init__(self, size: int) -> None:
        self._half = max(1, size // 2)
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, key: K) -> V | None:
        value = self._young.get(key)
        if value is None and (value := self._old.pop(key, None)) is not None:
            self.put([key], [value])
        return value

    def put(self, keys: Iterable[K], values: Sequence[V]) -> None:
        """Remember the value of each key; they should be many fewer than half the size."""
        if len(self._young) + len(values) > self._half:
            self._young, self._old = {}, self._young
        self._young.update(zip(keys, values, strict=True))
