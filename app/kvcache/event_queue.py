"""Events that wait to be published, and when they go."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from app.kvcache.events import KVEvent

MOST_BATCHES = 16
"""A message costs much more than an event in it, and who listens would have to apply all of them anyway."""


class EventQueue:
    """At most `capacity` events, that go as soon as there are `batch`, or `flush_s` seconds after the last.

    What has gathered by then goes together, up to `MOST_BATCHES` times `batch`. Moments are monotonic
    seconds.
    """

    def __init__(self, capacity: int, batch: int, flush_s: float) -> None:
        self._capacity = capacity
        self._batch = batch
        self._flush_s = flush_s
        self._events: deque[KVEvent] = deque()
        self._last_s = -math.inf

    def __len__(self) -> int:
        return len(self._events)

    def put(self, events: Sequence[KVEvent]) -> int:
        """Add the events of a step; how many found no room and are lost."""
        room = self._capacity - len(self._events)
        self._events.extend(events[:room])
        return max(0, len(events) - room)

    def due_s(self) -> float:
        """When the next batch goes; infinity when nothing waits."""
        if len(self._events) >= self._batch:
            return -math.inf
        return self._last_s + self._flush_s if self._events else math.inf

    def take(self, now_s: float) -> list[KVEvent]:
        """The next batch."""
        self._last_s = now_s
        events, most = self._events, MOST_BATCHES * self._batch
        if len(events) > most:
            return [events.popleft() for _ in range(most)]
        self._events = deque()
        return list(events)
