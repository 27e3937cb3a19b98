"""Publishes KV events on a ZMQ socket, as vLLM does, and to listeners in the process.

`EventSender` waits for nothing: its caller's loop calls `turn`. `Publisher` runs in greenlets.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

import gevent
import zmq
from gevent.event import Event

from app.core.base import Bounded
from app.core.base.background import BackgroundLoops
from app.core.base.clock.pause import Pace
from app.core.base.limited_log import LimitedLog
from app.core.engine.kvcache.event_queue import EventQueue
from app.core.engine.kvcache.events import EventBatch, KVEvent, encoder
from app.core.engine.kvcache.publishing import PublisherSettings, is_bound, of_rank
from app.core.engine.kvcache.replay import ReplayBuffer
from app.core.engine.kvcache.sockets import end_context, open_socket

MORE = zmq.SNDMORE | zmq.NOBLOCK
"""Flags for sending frame by frame, at half the cost of `send_multipart`."""
POLL_S = 0.1
"""Maximum wait of a replay request, in seconds; equals the interval of vLLM's publisher."""
LINGER_MS = 1000
"""Time on close for subscribers to receive the last batches, in milliseconds."""
MAX_SUBSCRIPTIONS_BYTES = 1 << 20
"""Maximum bytes of all subscriptions since the socket was opened, also of canceled ones.

ZMQ takes about 64 bytes for each byte, and cannot refuse a subscription.
"""
MESSAGE_BYTES = 64
"""Bytes that a subscription counts besides its text; bounds the work for short ones."""
RECONNECT_S = 0.5
"""Time for subscribers to connect anew before more events are sent, in seconds.

ZMQ connects anew after 0.1 to 0.2 seconds, and a turn later at an occupied port.
"""
WARNING_INTERVAL_S = 60.0
"""Minimum time between two log lines about lost events, in seconds."""
SILENCE_S = 60.0
"""Time after the first batch within which a client should subscribe, in seconds."""
Listener: TypeAlias = Callable[[str, int, EventBatch], None]
"""Receives topic, sequence number and batch. Its errors are logged."""
log = logging.getLogger(__name__)


class EventSender:
    """Batches and sends events; never waits for a subscriber."""

    def __init__(
        self,
        settings: PublisherSettings,
        wall: Callable[[], float] = time.time,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`wall` returns seconds since 1970.

        Raises:
            ValueError: A rank cannot have the endpoint, or the layout of events is unknown.
        """
        self._settings = settings
        self._wall = wall
        self._now = now
        self._topic = settings.topic.encode()
        replay_batches = 0
        if settings.replay_endpoint:
            replay_batches = settings.replay_batches
        self.replay = ReplayBuffer(self._topic, replay_batches, settings.replay_bytes)
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        self._endpoints: dict[str, str] = {}
        """Endpoints of `events` and `replay`."""
        if settings.endpoint:
            self._endpoints["events"] = of_rank(settings.endpoint, settings.rank)
        if settings.replay_endpoint:
            self._endpoints["replay"] = of_rank(settings.replay_endpoint, settings.rank)
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self.subscribed_bytes = 0
        """Bytes of the subscriptions since the socket for events was opened."""
        self._encode = settings.encode or encoder(settings.layout)
        self.queue = EventQueue(
            settings.queue_events,
            settings.batch_events,
            settings.flush_s,
            limit_bytes=settings.queue_bytes,
        )
        self.next_sequence = 0
        self._silent_s = 0.0
        """Time from which on the lack of subscribers is logged; 0 before the first batch."""
        self._resume_s = -math.inf
        """Time until which no events are sent, so that subscribers connect anew before."""
        self._listeners: list[Listener] = []
        self._warnings = LimitedLog(log, WARNING_INTERVAL_S, now)
        self.dropped_events = 0
        """Events without room in the queue, or put after the close."""
        self.addresses: dict[str, str] = {}
        """Open addresses of `events` and `replay`, with the port in use."""

    def listen(self, listener: Listener) -> None:
        """Calls `listener` with each batch."""
        self._listeners.append(listener)

    def forget(self, listener: Listener) -> None:
        """Calls `listener` no more."""
        self._listeners.remove(listener)

    @property
    def caches(self) -> Mapping[str, Bounded]:
        """All bounded memory, by a name for reports."""
        return {"KV events to publish": self.queue, "KV events to replay": self.replay}

    def put(self, events: Sequence[KVEvent]) -> None:
        """Queues the events of a step, in order. Counts events lost without room."""
        lost = self.queue.put(events)
        if lost:
            self.dropped_events += lost
            self._warnings.warning(
                "KV events: the queue is full, %d are lost so far", self.dropped_events
            )

    def turn(self) -> float:
        """Does all work that is due; returns the monotonic time of the next turn, or infinity."""
        self.open()
        replay_socket = self._sockets.get("replay")
        if replay_socket is not None:
            self.replay.serve(replay_socket)
            if self.replay.lent_bytes > self.replay.limit_bytes:
                self.replay.lent_bytes = 0
                self._close("replay")
        now_s = self._now()
        self.send_due(now_s)
        due_s = max(self.queue.due_s(), self._resume_s)
        if len(self._sockets) < len(self._endpoints) or self._settings.replay_endpoint:
            due_s = min(due_s, now_s + POLL_S)
        return due_s

    def open(self) -> None:
        """Opens endpoints that are not open yet; an occupied one may be free later."""
        for name, endpoint in self._endpoints.items():
            try:
                if name not in self._sockets:
                    self._open(name, endpoint)
            except zmq.ZMQError as error:
                self._warnings.warning(
                    "KV events: %s cannot be opened, trying on: %s", endpoint, error
                )

    def _open(self, name: str, endpoint: str) -> None:
        if self._context is None:
            self._context = zmq.Context()
        kind = zmq.XPUB
        bind = is_bound(endpoint)
        hwm = self._settings.hwm
        if name == "replay":
            # ZMQ silently drops messages that exceed the queue of a slow peer, which holds two
            # whole replays.
            kind = zmq.ROUTER
            bind = True
            hwm = 2 * (self._settings.replay_batches + 1)
        socket, address = open_socket(self._context, kind, endpoint, bind=bind, hwm=hwm)
        self._sockets[name] = socket
        self.addresses[name] = address
        if name == "events":
            self.subscribed_bytes = 0

    def _limit_subscriptions(self) -> None:
        """Opens the socket anew if subscriptions take too much; ordinary subscribers reconnect."""
        with suppress(zmq.ZMQError):  # no subscription waits
            while self.subscribed_bytes <= MAX_SUBSCRIPTIONS_BYTES:
                message = self._sockets["events"].recv(zmq.NOBLOCK)
                self.subscribed_bytes += len(message) + MESSAGE_BYTES
            self._close("events")
            self._resume_s = self._now() + RECONNECT_S

    def _watch_subscribers(self) -> None:
        """Warns once if no client has subscribed within a minute after the first batch."""
        now_s = self._now()
        self._silent_s = self._silent_s or now_s + SILENCE_S
        if self.subscribed_bytes:
            self._silent_s = math.inf
        elif now_s >= self._silent_s:
            self._silent_s = math.inf
            address = self.addresses["events"]
            log.warning("KV events: no subscriber has connected to %s within a minute", address)

    def _close(self, name: str) -> None:
        """Closes a socket whose clients hold too much; the next turn opens it anew."""
        self._sockets.pop(name).close(linger=LINGER_MS)
        self._warnings.warning("KV events: clients of %s hold too much, all reconnect", name)

    def send_due(self, now_s: float) -> None:
        """Publishes batches due at `now_s`, with pauses."""
        pause_if_due = Pace(self._now)
        while len(self.queue) and max(self.queue.due_s(), self._resume_s) <= now_s:
            self._send(self.queue.take(now_s))
            pause_if_due()

    def close(self) -> None:
        """Publishes waiting events, and gives subscribers a second to receive them."""
        self.send_due(math.inf)
        for socket in self._sockets.values():
            socket.close(linger=LINGER_MS)
        self._sockets.clear()
        if self._context is not None:
            end_context(self._context)
            self._context = None

    def _send(self, events: list[KVEvent]) -> None:
        batch = EventBatch(self._wall(), events, self._settings.rank)
        sequence = self.next_sequence
        self.next_sequence += 1
        payload = self._encode(batch)
        self.replay.record(sequence, payload)
        if self._settings.endpoint:
            try:
                socket = self._sockets["events"]
                socket.send(self._topic, MORE)
                socket.send(sequence.to_bytes(8, "big"), MORE)
                socket.send(payload, zmq.NOBLOCK)
                self._limit_subscriptions()
                self._watch_subscribers()
            except (zmq.ZMQError, KeyError):  # the latter for an endpoint that is not open yet
                pass  # listeners and replays still have the batch
        for listener in tuple(self._listeners):
            try:
                listener(self._settings.topic, sequence, batch)
            except Exception as error:
                self._warnings.warning("KV events: a listener failed: %r", error)


class Publisher(EventSender):
    """Publishes from a greenlet, in the process of `start` or of the first `put`."""

    def __init__(
        self,
        settings: PublisherSettings,
        wall: Callable[[], float] = time.time,
        loops: BackgroundLoops | None = None,
    ) -> None:
        super().__init__(settings, wall)
        self._loops = loops or BackgroundLoops()
        self._wake = Event()
        self._has_ended = False
        self._greenlet: gevent.Greenlet[[], None] | None = None

    def start(self) -> None:
        """Opens the sockets, so that subscribers and replay requests find them."""
        if self._greenlet is None and not self._has_ended:
            self.open()
            self._greenlet = self._loops.spawn("KV event publisher", self._run)

    def put(self, events: Sequence[KVEvent]) -> None:
        """Queues the events of a step, in order.

        Counts events lost without room, or after `close`.
        """
        if not events:
            return
        if self._has_ended:
            self.dropped_events += len(events)
            return
        self.start()
        due_s = self.queue.due_s()
        super().put(events)
        if self.queue.due_s() < due_s:
            self._wake.set()

    def close(self) -> None:
        """Ends the greenlet, publishes waiting events, and closes the sockets."""
        self._has_ended = True
        self._wake.set()
        if self._greenlet is not None:
            self._greenlet.join()
        super().close()

    def _run(self) -> None:
        while not self._has_ended:
            due_s = self.turn()
            self._wake.wait(None if due_s == math.inf else max(0.0, due_s - self._now()))
            self._wake.clear()
