"""Neighbouring operations of one kind as one: engines announce blocks one by one, backends like them many."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from app.kvindex.backend import Operation, Owned, Remove, Store

SMALL = 8
"""Blocks of a store that is joined to others; larger ones gain nothing."""


def joined(operations: Iterable[Operation]) -> list[Operation]:
    """The same operations in fewer pieces; what they do, in which order, stays the same."""
    pieces: list[Operation] = []
    stores, removals = _Stores(), _Removals()
    for operation in operations:
        if isinstance(operation, Store):
            removals.end(pieces)
            stores.add(operation, pieces)
        elif isinstance(operation, Remove):
            stores.end(pieces)
            removals.add(operation, pieces)
        else:
            stores.end(pieces)
            removals.end(pieces)
            pieces.append(operation)
    stores.end(pieces)
    removals.end(pieces)
    return pieces


class _Stores:
    """Small stores of one group, tier and adapter, of blocks that are all different.

    A block that is stored again is a further copy of it, which has to be seen as such.
    """

    def __init__(self) -> None:
        self._run: list[Store] = []
        self._engine: set[int] = set()
        self._keys: set[int] = set()

    def add(self, store: Store, pieces: list[Operation]) -> None:
        if len(store.engine) > SMALL:
            self.end(pieces)
            pieces.append(store)
            return
        if self._run and not self._fits(store):
            self.end(pieces)
        self._run.append(store)
        self._engine.update(store.engine)
        self._keys.update(store.keys)

    def end(self, pieces: list[Operation]) -> None:
        if len(self._run) > 1:
            first = self._run[0]
            owned: list[Owned] = [each for store in self._run for each in store.owned]
            pieces.append(
                replace(
                    first,
                    engine=[key for store in self._run for key in store.engine],
                    owned=owned,
                    keys=[key for store in self._run for key in store.keys],
                )
            )
        else:
            pieces += self._run
        if self._run:
            self._run, self._engine, self._keys = [], set(), set()

    def _fits(self, store: Store) -> bool:
        first = self._run[0]
        return (
            store.group == first.group
            and store.tier == first.tier
            and store.adapter == first.adapter
            and store.scored == first.scored
            and not store.remapped
            and not first.remapped
            and self._engine.isdisjoint(store.engine)
            and self._keys.isdisjoint(store.keys)
        )


class _Removals:
    """Removals of one group and tier."""

    def __init__(self) -> None:
        self._run: list[Remove] = []

    def add(self, remove: Remove, pieces: list[Operation]) -> None:
        if self._run and (self._run[0].group, self._run[0].tier) != (remove.group, remove.tier):
            self.end(pieces)
        self._run.append(remove)

    def end(self, pieces: list[Operation]) -> None:
        if len(self._run) > 1:
            engine = [key for remove in self._run for key in remove.engine]
            pieces.append(replace(self._run[0], engine=engine))
        else:
            pieces += self._run
        self._run = []
