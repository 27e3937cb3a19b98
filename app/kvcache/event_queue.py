"""KV events that wait to be published, in batches."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from app.kvcache.events import KVEvent, event_bytes

MOST_BATCHES = 16
"""A message costs much more than an event in it, and who listens would have to apply all of them anyway."""
QUEUE_BYTES = 256 << 20
"""Events that wait to be published, as `event_bytes` reckons them."""
MESSAGE_BYTES = 1 << 20
"""Events of one message, reckoned likewise: on the wire it is a fourth of that. A larger event goes alone."""


class EventQueue:
    """At most `capacity` events, that go as soon as there are `batch`, or `flush_s` seconds after the last.

    What has gathered by then goes together, up to `MOST_BATCHES` times `batch` or `MESSAGE_BYTES`. With a
    `flush_s` of 0 every step goes alone, as in vLLM. Moments are monotonic seconds.
    """

    def __init__(self, capacity: int, batch: int, flush_s: float, limit_bytes: int = QUEUE_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._capacity = capacity
        self._batch = batch
        self._flush_s = flush_s
        self._events: deque[KVEvent] = deque()
        self._steps: deque[int] = deque()
        """Events of each step that waits, where steps go alone."""
        self._last_s = -math.inf

    def __len__(self) -> int:
        return len(self._events)

    def put(self, events: Sequence[KVEvent]) -> int:
        """Add the events of a step; how many found no room and are lost."""
        lost = 0
        for event in events:
            size = event_bytes(event)
            if len(self._events) < self._capacity and self.size_bytes + size <= self.limit_bytes:
                self._events.append(event)
                self.size_bytes += size
            else:
                lost += 1
        if self._flush_s == 0 and len(events) > lost:
            self._steps.append(len(events) - lost)
        return lost

    def due_s(self) -> float:
        """When the next batch goes; infinity when nothing waits."""
        if len(self._events) >= self._batch:
            return -math.inf
        return self._last_s + self._flush_s if self._events else math.inf

    def take(self, now_s: float) -> list[KVEvent]:
        """The next batch."""
        self._last_s = now_s
        taken: list[KVEvent] = []
        size, most = 0, self._steps.popleft() if self._steps else MOST_BATCHES * self._batch
        while self._events and len(taken) < most:
            size += event_bytes(self._events[0])
            if taken and size > MESSAGE_BYTES:
                break
            taken.append(self._events.popleft())
            self.size_bytes -= event_bytes(taken[-1])
        if self._flush_s == 0 and len(taken) < most:
            self._steps.appendleft(most - len(taken))
        return taken
