"""A dictionary that stays small."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Memo(Generic[K, V]):
    """Remembers entries of at most `size` altogether, those used last among them; every operation is O(1).

    There are two generations of half the size. What is used moves to the young one; when that is full it
    becomes the old one, and the entries of the former old one are forgotten. Entries have sizes of their own,
    each of which should be much less than half.
    """

    def __init__(self, size: int) -> None:
        self._half = size // 2
        self._room = self._half
        self._young: dict[K, tuple[V, int]] = {}
        self._old: dict[K, tuple[V, int]] = {}

    def __len__(self) -> int:
        """How large the entries are altogether."""
        return sum(size for generation in (self._young, self._old) for _, size in generation.values())

    def get(self, key: K) -> V | None:
        entry = self._young.get(key)
        if entry is None:
            entry = self._old.pop(key, None)
            if entry is None:
                return None
            self.put([key], [entry[0]], entry[1])
        return entry[0]

    def put(self, keys: Iterable[K], values: Iterable[V], size: int = 1) -> None:
        """Remember the value of each key as an entry of `size`. None of them is remembered yet."""
        for key, value in zip(keys, values, strict=True):
            if size > self._room:
                self._young, self._old = {}, self._young
                self._room = self._half
            self._young[key] = value, size
            self._room -= size
