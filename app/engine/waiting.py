"""The sequences that wait for a slot, and which of them is next."""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

from app.engine.batch import SequenceState
from app.lora.adapters import LoRASlots

FIRST = float("-inf")
"""Before all priorities."""
SLACK = 64
"""Entries of removed sequences that the heaps keep before they are cleared."""


W = TypeVar("W", bound=SequenceState)


class WaitingQueue(Generic[W]):
    """First come, first served, or by priority; but adapters decide first.

    A sequence whose adapter is in memory goes before one whose adapter would have to be loaded. One whose
    adapter cannot be loaded now holds up no other (simulator.md 10.2). A sequence that leaves the queue for a
    slot keeps its adapter in memory until `left`.
    """

    def __init__(self, lora: LoRASlots | None = None, by_priority: bool = False) -> None:
        """Without `lora` no sequence has an adapter."""
        self._lora = LoRASlots(0, lambda adapter: False) if lora is None else lora
        self._by_priority = by_priority
        self._heaps: dict[str | None, list[tuple[float, int, W]]] = {}
        """By adapter: priority, number in order of arrival, and the sequence."""
        self.members: set[W] = set()
        """All that wait."""
        self._adapters: dict[W, str] = {}
        """Adapters that running sequences hold: each may be unloaded before its sequence leaves."""
        self._arrivals = 0

    def is_ready(self, adapter: str | None) -> bool:
        """Returns whether a sequence with this adapter could run now."""
        return adapter is None or self._lora.is_ready(adapter) or self._lora.has_room()

    def add(self, sequence: W, first: bool = False) -> None:
        """Adds a sequence: one that was here before at its old place, or `first`, before all others."""
        if not sequence.arrived:
            self._arrivals += 1
            sequence.arrived = self._arrivals
        priority = FIRST if first else sequence.priority if self._by_priority else 0
        self.members.add(sequence)
        heapq.heappush(self._heaps.setdefault(sequence.adapter, []), (priority, sequence.arrived, sequence))

    def remove(self, sequence: W) -> bool:
        """Takes a sequence out of the queue; False when it does not wait."""
        if sequence not in self.members:
            return False
        self._forget(sequence)
        return True

    def head(self) -> W | None:
        """Returns the next one; None when none may start."""
        if not self.members:
            return None
        heads = [heap[0] for adapter in list(self._heaps) if (heap := self._live(adapter))]
        if len(heads) == 1 and heads[0][2].adapter is None:
            return heads[0][2]
        room = self._lora.has_room()
        ready = [it for it in heads if self._lora.is_ready(it[2].adapter) or room and it[0] == FIRST]
        if not ready and room:
            ready = heads
        return min(ready)[2] if ready else None

    def pop(self, sequence: W) -> None:
        """Takes out the `head`, which has a slot now."""
        heapq.heappop(self._heaps[sequence.adapter])
        self._forget(sequence)
        if sequence.adapter is not None:
            self.hold(sequence)

    def hold(self, sequence: W) -> None:
        """Keeps the adapter of a sequence that got a slot in memory."""
        adapter = sequence.adapter
        if adapter is not None and self._lora.enter(adapter):
            self._adapters[sequence] = adapter

    def left(self, sequence: W) -> None:
        if self._adapters and (adapter := self._adapters.pop(sequence, None)) is not None:
            self._lora.leave(adapter)

    def _forget(self, sequence: W) -> None:
        """Drops entries of sequences that were removed, before they outnumber those that wait."""
        self.members.remove(sequence)
        if sum(map(len, self._heaps.values())) <= 2 * len(self.members) + SLACK:
            return
        for adapter, heap in list(self._heaps.items()):
            self._heaps[adapter] = kept = [entry for entry in heap if entry[2] in self.members]
            heapq.heapify(kept)

    def _live(self, adapter: str | None) -> list[tuple[float, int, W]]:
        heap = self._heaps[adapter]
        while heap and heap[0][2] not in self.members:
            heapq.heappop(heap)
        if not heap:
            del self._heaps[adapter]
        return heap
