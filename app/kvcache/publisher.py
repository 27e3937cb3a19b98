"""The sender of KV events in greenlets, beside which the server goes on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence

import gevent
import zmq
from gevent.event import Event

from app.clock.pause import pause
from app.kvcache.endpoints import PublisherSettings
from app.kvcache.event_sender import POLL_S, EventSender
from app.kvcache.events import KVEvent
from app.kvcache.sockets import end_context

PAUSE_EVERY = 32
"""Messages between two pauses in which other greenlets run."""


class Publisher(EventSender):
    """Publishes from a greenlet that never waits for a subscriber.

    Sockets and greenlets begin with `start` or the first `put`, to be called in the process that uses them.
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
        """Open the sockets, so that subscribers and requests for replays find them."""
        if self._greenlets or self._end.is_set():
            return
        self.open()
        self._greenlets = [gevent.spawn(self._publish), gevent.spawn(self._tend)]

    def put(self, events: Sequence[KVEvent]) -> None:
        """The events of a step, in order. Without room, or after `close`, they are lost and counted."""
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
        """Publish what waits, give subscribers a second to receive it, and end."""
        self._end.set()
        self._wake.set()
        gevent.joinall(self._greenlets)
        super().close()

    def _end_context(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        end_context(context)

    def _tend(self) -> None:
        """Greenlet: open sockets that could not be opened, and answer requests for replays."""
        while not self._end.is_set() and self.waits_for_peers:
            self.open()
            _with_pauses(self.replay.serve())
            self._end.wait(POLL_S)

    def _publish(self) -> None:
        """Greenlet: publish batches when they are due, and the rest in the end."""
        while not self._end.is_set():
            due_s = self.queue.due_s()
            self._wake.wait(None if due_s == math.inf else max(0.0, due_s - self._now()))
            self._wake.clear()
            _with_pauses(self.send_due(self._now()))
        _with_pauses(self.send_due(math.inf))


def _with_pauses(messages: Iterable[None]) -> None:
    for number, _ in enumerate(messages, 1):
        if number % PAUSE_EVERY == 0:
            pause()
