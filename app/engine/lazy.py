"""Lists of which each item is made when it is looked at: a large request may have millions of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, overload

T = TypeVar("T", covariant=True)


class LazySequence(Sequence[T]):
    """Items of `positions`, each made by `make` whenever it is looked at; a slice is another such view."""

    __slots__ = ("_make", "_positions")

    def __init__(self, make: Callable[[int], T], positions: range) -> None:
        self._make, self._positions = make, positions

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> LazySequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | LazySequence[T]:
        if isinstance(index, slice):
            return LazySequence(self._make, self._positions[index])
        return self._make(self._positions[index])
