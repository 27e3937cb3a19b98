"""Who waits for a slot, and who of them is next."""

from __future__ import annotations

import heapq
from typing import Generic, Protocol, TypeVar

from app.lora.adapters import LoRASlots

FIRST = float("-inf")
"""Before all priorities."""
SLACK = 64
"""Those that have left the queue, and are still in its heaps, before they are looked for."""


class Waits(Protocol):
    """What can wait for a slot. They are told apart by identity."""

    @property
    def adapter(self) -> str | None:
        """The LoRA adapter that must be in memory while this runs."""

    @property
    def priority(self) -> int:
        """Lower is earlier, where the scheduling policy looks at it."""


W = TypeVar("W", bound=Waits)


class WaitingQueue(Generic[W]):
    """First come, first served, or by priority; but adapters decide first.

    Whose adapter is in memory goes before whose adapter would have to be loaded; a task whose adapter
    cannot be loaded now holds up no other (simulator.md 10.2).
    """

    def __init__(self, lora: LoRASlots, by_priority: bool) -> None:
        self._lora = lora
        self._by_priority = by_priority
        self._heaps: dict[str | None, list[tuple[float, int, W]]] = {}
        """By adapter: priority, number in order of arrival, and the task."""
        self.tasks: set[W] = set()
        """All that wait."""
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self.tasks)

    def add(self, task: W, number: int | None = None, first: bool = False) -> None:
        """Wait from now on; with the `number` that it had, at the place that it had; or before all others."""
        if number is None:
            self._arrivals += 1
            number = self._arrivals
        priority = FIRST if first else task.priority if self._by_priority else 0
        self.tasks.add(task)
        heapq.heappush(self._heaps.setdefault(task.adapter, []), (priority, number, task))

    def remove(self, task: W) -> bool:
        """Wait no more; False when it did not."""
        if task not in self.tasks:
            return False
        self._forget(task)
        return True

    def head(self) -> W | None:
        """Who is next; None when there is none that may start."""
        heads = [heap[0] for adapter in list(self._heaps) if (heap := self._live(adapter))]
        if not heads:
            return None
        room = self._lora.has_room()
        ready = [it for it in heads if self._lora.is_ready(it[2].adapter) or room and it[0] == FIRST]
        if not ready and room:
            ready = heads
        return min(ready)[2] if ready else None

    def take(self, task: W) -> None:
        """Take out `task`, which is next."""
        heapq.heappop(self._heaps[task.adapter])
        self._forget(task)

    def _forget(self, task: W) -> None:
        """Let go of those that were removed, before they are many more than those that wait."""
        self.tasks.remove(task)
        if sum(map(len, self._heaps.values())) <= 2 * len(self.tasks) + SLACK:
            return
        for adapter, heap in list(self._heaps.items()):
            self._heaps[adapter] = kept = [entry for entry in heap if entry[2] in self.tasks]
            heapq.heapify(kept)

    def _live(self, adapter: str | None) -> list[tuple[float, int, W]]:
        """The heap of `adapter` without those at its head that wait no more."""
        heap = self._heaps[adapter]
        while heap and heap[0][2] not in self.tasks:
            heapq.heappop(heap)
        if not heap:
            del self._heaps[adapter]
        return heap
