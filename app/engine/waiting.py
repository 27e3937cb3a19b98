"""Who waits for a place, and who is next."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from msgspec import Struct

from app.lora.slots import LoRASlots

Waiting = tuple[int, int, Future[Any]]
"""Priority, number in order of arrival, and whose turn it is."""


def always() -> bool:
    """Most tasks fit at any time."""
    return True


class Turn(Struct, frozen=True):
    """What decides whose turn it is: the adapter that a task needs, and its priority (lower is earlier).

    Whose turn it is but does not fit (into the KV cache) holds up the others until it does.
    """

    adapter: str | None = None
    priority: int = 0
    fits: Callable[[], bool] = always


ANY_TIME = Turn()


class Line:
    """The waiting line. First come, first served, or by priority; but adapters decide first.

    Whose adapter is in memory goes before whose adapter would have to be loaded; nobody whose adapter
    cannot be loaded now holds up the others (simulator.md 10.2).
    """

    def __init__(self, residents: LoRASlots, by_priority: bool = False) -> None:
        self._residents = residents
        self._by_priority = by_priority
        self._queues: dict[str | None, list[Waiting]] = {}
        self._turns: dict[Future[Any], Turn] = {}
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._turns)

    def may_run(self, turn: Turn) -> bool:
        """True when only a place is missing."""
        return (self._residents.is_ready(turn.adapter) or self._residents.has_room()) and turn.fits()

    def join(self, future: Future[Any], turn: Turn) -> None:
        """Wait from now on."""
        self._arrivals += 1
        priority = turn.priority if self._by_priority else 0
        self._turns[future] = turn
        heapq.heappush(self._queues.setdefault(turn.adapter, []), (priority, self._arrivals, future))

    def forget(self, future: Future[Any]) -> bool:
        """Wait no more; False when it did not."""
        return self._turns.pop(future, None) is not None

    def next(self) -> tuple[Future[Any], Turn] | None:
        """Take out who is next; None when nobody is there who may run."""
        heads = [(queue[0], adapter) for adapter in list(self._queues) if (queue := self._live(adapter))]
        ready = [head for head in heads if self._residents.is_ready(head[1])]
        if not ready and self._residents.has_room():
            ready = heads
        if not ready:
            return None
        (_, _, future), adapter = min(ready, key=lambda head: head[0][:2])
        if not self._turns[future].fits():
            return None
        heapq.heappop(self._queues[adapter])
        return future, self._turns.pop(future)

    def _live(self, adapter: str | None) -> list[Waiting]:
        """The queue of `adapter` without those at its head that wait no more."""
        queue = self._queues[adapter]
        while queue and queue[0][2] not in self._turns:
            heapq.heappop(queue)
        if not queue:
            del self._queues[adapter]
        return queue
