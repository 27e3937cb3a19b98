"""Queue of the KV events that wait to be published."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from app.core.engine.kvcache.events import KVEvent, event_bytes
from app.core.engine.kvcache.publishing import QUEUE_BYTES

MAX_BATCHES = 16
"""Maximum events in one message, as a multiple of `batch`.

A message costs much more than an event.
"""
MESSAGE_BYTES = 1 << 20
"""Maximum bytes of events per message, as estimated; the wire takes a fourth.

A larger event is sent alone.
"""


class EventQueue:
    """Queue of at most `capacity` events.

    A batch is due at `batch` events, or `flush_s` seconds after the last batch. It takes all
    waiting events, up to `MAX_BATCHES` times `batch` or `MESSAGE_BYTES`. With `flush_s` 0 every
    step is sent alone, as in vLLM. Moments are monotonic seconds.
    """

    def __init__(
        self, capacity: int, batch: int, flush_s: float, limit_bytes: int = QUEUE_BYTES
    ) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._capacity = capacity
        self._batch = batch
        self._flush_s = flush_s
        self._events: deque[KVEvent] = deque()
        self._steps: deque[int] = deque()
        """Number of events of each waiting step, if steps are sent alone."""
        self._last_s = -math.inf

    def __len__(self) -> int:
        return len(self._events)

    def put(self, events: Sequence[KVEvent]) -> int:
        """Adds the events of a step; returns how many were lost for lack of room."""
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
        """Returns when the next batch is due; infinity if no event waits."""
        if len(self._events) >= self._batch:
            return -math.inf
        if self._events:
            return self._last_s + self._flush_s
        return math.inf

    def take(self, now_s: float) -> list[KVEvent]:
        """Removes and returns the next batch."""
        self._last_s = now_s
        batch: list[KVEvent] = []
        size = 0
        max_events = MAX_BATCHES * self._batch
        if self._steps:
            max_events = self._steps.popleft()
        while self._events and len(batch) < max_events:
            event_size = event_bytes(self._events[0])
            size += event_size
            if batch and size > MESSAGE_BYTES:
                break
            batch.append(self._events.popleft())
            self.size_bytes -= event_size
        if self._flush_s == 0 and len(batch) < max_events:
            self._steps.appendleft(max_events - len(batch))
        return batch
