"""Publisher of KV events that runs in greenlets."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import gevent
import zmq
from gevent.event import Event

from app.engine.kvcache.endpoints import PublisherSettings
from app.engine.kvcache.event_sender import POLL_S, EventSender
from app.engine.kvcache.events import KVEvent
from app.engine.kvcache.sockets import end_context


class Publisher(EventSender):
    """Publishes from a greenlet, and never waits for a subscriber.

    `start` or the first `put` opens sockets and starts greenlets. Both belong in the process that publishes.
    """

    def __init__(
        self,
        settings: PublisherSettings,
        wall: Callable[[], float] = time.time,
        now: Callable[[], float] = time.monotonic,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
    ) -> None:
        super().__init__(settings, wall, now, context)
        self._wake, self._end = Event(), Event()
        self._greenlets: list[gevent.Greenlet] = []

    def start(self) -> None:
        """Opens the sockets, so that subscribers and replay requests find them."""
        if self._greenlets or self._end.is_set():
            return
        self.open()
        self._greenlets = [gevent.spawn(self._publish), gevent.spawn(self._tend)]

    def put(self, events: Sequence[KVEvent]) -> None:
        """Queues the events of a step, in order. Counts events lost without room, or after `close`."""
        if not events:
            return
        if self._end.is_set():
            self.published.dropped_events += len(events)
            return
        self.start()
        due_s = self.queue.due_s()
        super().put(events)
        if self.queue.due_s() < due_s:
            self._wake.set()

    def close(self) -> None:
        """Publishes waiting events, gives subscribers a second to receive them, and ends."""
        self._end.set()
        self._wake.set()
        gevent.joinall(self._greenlets)
        super().close()

    def _end_context(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        end_context(context)

    def _tend(self) -> None:
        """Greenlet: opens remaining sockets, and answers replay requests."""
        while not self._end.is_set() and self.waits_for_peers:
            self.open()
            self.replay.serve()
            self._end.wait(POLL_S)

    def _publish(self) -> None:
        """Greenlet: publishes batches when due, and the rest at the end."""
        while not self._end.is_set():
            due_s = self.queue.due_s()
            self._wake.wait(None if due_s == math.inf else max(0.0, due_s - self._now()))
            self._wake.clear()
            self.send_due(self._now())
        self.send_due(math.inf)
