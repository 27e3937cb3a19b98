"""Long values of a request, looked at in slices, so that nobody else waits for longer than some ms.

A `Slices` counts the values that were looked at, at about 0.3 us each, and pauses now and then. One goes with
all work on a request, or on all requests of a server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from app.clock.pause import Slices

T = TypeVar("T")

SLICE = 12_000
"""Values between two pauses: about 4 ms."""
_FEW = 16
"""Values that are counted before they are looked at, which is soon done."""
_AT_ONCE = 1_000
"""Values that a function of ours is applied to without counting."""
_SCALARS = 20_000
"""Numbers or words that a function of the library looks at without counting, at 0.02 us each."""


def slices() -> Slices:
    """A new count."""
    return Slices(SLICE)


def each(values: Iterable[T], within: Slices, cost: int = 1) -> Iterator[T]:
    """`values` one by one; what is done with one of them counts as `cost` values looked at."""
    if isinstance(values, list) and len(values) <= _FEW:
        within.spend(cost * len(values))
        return iter(values)
    return _each(values, within, cost)


def _each(values: Iterable[T], within: Slices, cost: int) -> Iterator[T]:
    for value in values:
        yield value
        within.spend(cost)


def every(fits: Callable[[T], bool], values: Sequence[T], within: Slices) -> bool:
    """Whether all `values` do."""
    if len(values) <= _AT_ONCE:
        within.spend(len(values))
        return all(map(fits, values))
    return all(all(map(fits, part)) for part in within.parts(values, _AT_ONCE, _AT_ONCE))


def parts(values: Sequence[T], within: Slices) -> Iterable[Sequence[T]]:
    """`values` in parts, none of which is empty, that the library looks at, by `min` or `set` or the like."""
    if len(values) <= _SCALARS:
        within.spend(len(values) // 16)
        return (values,) if values else ()
    return within.parts(values, _SCALARS, _SCALARS // 16)


def pieces(values: Sequence[T], within: Slices, share: int) -> Iterator[Sequence[T]]:
    """`values` in parts for a loop of Python's own; so many of them count as one value looked at."""
    for start in range(0, len(values), _AT_ONCE):
        piece = values[start : start + _AT_ONCE]
        yield piece
        within.spend(len(piece) // share)


def kinds_of(values: Sequence[object], within: Slices) -> set[type]:
    """The types of `values`."""
    return {kind for part in parts(values, within) for kind in set(map(type, part))}


def is_long(value: object, most: int = 5_000) -> bool:
    """Whether a JSON value holds more than so many others."""
    pending, seen = [value], 0
    while pending and seen <= most:
        item = pending.pop()
        inside = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        seen += len(inside)
        if seen <= most:
            pending.extend(inside)
    return seen > most


def distinct(values: Sequence[T], within: Slices) -> frozenset[T]:
    """Each of `values` once."""
    seen: set[T] = set()
    for part in parts(values, within):
        seen.update(part)
    return frozenset(seen)


def release(values: object, within: Slices) -> None:
    """Empty a list that nobody needs any more: to free 100,000 objects in one go would take 10 ms."""
    while isinstance(values, list) and values:
        del values[-_AT_ONCE:]
        within.spend(_AT_ONCE)
