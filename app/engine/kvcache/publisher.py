"""Publishes KV events on a ZMQ PUB socket, as vLLM does, and to listeners in the process.

`EventSender` waits for nothing: its caller's loop calls `turn`. `Publisher` runs in greenlets.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

import gevent
import zmq
from gevent.event import Event

from app.base import Bounded
from app.base.clock.pause import Pace, pause_if_possible
from app.engine.kvcache.events import (
    EventBatch,
    KVEvent,
    PublisherSettings,
    encoder,
    event_bytes,
    is_bound,
    is_ipv6,
    is_name,
    of_rank,
)

MORE = zmq.SNDMORE | zmq.NOBLOCK
"""Flags for sending frame by frame, at half the cost of `send_multipart`."""
MOST_REQUEST_BYTES = 1 << 20
"""Most bytes of a message from a peer (subscription, replay request); a larger one ends the
connection.
"""
END_S = 2.0
"""Longest wait for a context to end, in seconds; its closed sockets linger for half as long."""
IO_THREADS = 2
"""IO threads of a context that connects to peers; a slow name lookup blocks only one thread."""


def affinity(context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> int:
    """Returns the IO threads, as bits, for a socket that connects to `endpoint`; names have their
    own.
    """
    return 1 << is_name(endpoint) if context.get(zmq.IO_THREADS) == IO_THREADS else 0


def address_of(socket: zmq.Socket[bytes]) -> str:
    return socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")


def end_context(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """Ends a context in a thread: waits up to `END_S` for sent messages to be received."""
    gevent.get_hub().threadpool.spawn(context.term).wait(END_S)


def open_socket(
    context: zmq.Context[zmq.Socket[bytes]], kind: int, endpoint: str, bind: bool, hwm: int
) -> tuple[zmq.Socket[bytes], str]:
    """Opens a socket that keeps `hwm` messages per peer; returns it and its address.

    Raises ZMQError.
    """
    socket = context.socket(kind)
    try:
        socket.sndhwm = hwm
        socket.maxmsgsize = MOST_REQUEST_BYTES
        socket.ipv6 = is_ipv6(endpoint)
        (socket.bind if bind else socket.connect)(endpoint)
        return socket, address_of(socket)
    except zmq.ZMQError:
        socket.close(linger=0)
        raise


END = b"\xff" * 8
"""Sequence number of the end marker: -1 in 64 bits."""
LIMIT_BYTES = 64 << 20
"""Most bytes of batches kept for replay:

ten thousand batches of long prompts could take gigabytes.
"""
PAUSE_EVERY = 32
BATCH_BYTES = 150


class ReplayBuffer:
    """Keeps the last `batches` batches, and replays batches to clients from a requested sequence
    number on.

    Beyond `limit_bytes` in total the oldest batches are dropped. A request is [empty, sequence
    number]. The reply is one message per batch, then an end marker. A REQ socket receives only the
    first message, as ZMQ prescribes; a DEALER receives all.
    """

    def __init__(self, topic: bytes, batches: int, limit_bytes: int = LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._topic, self._most_batches = topic, batches
        self._batches: deque[tuple[int, zmq.Frame]] = deque()
        """Payloads in shared frames, so that slow clients cost no copies."""
        self.answered = 0

    def record(self, sequence: int, payload: bytes) -> None:
        self._batches.append((sequence, zmq.Frame(payload, copy=True)))
        self.size_bytes += len(payload) + BATCH_BYTES
        while len(self._batches) > self._most_batches or self.size_bytes > self.limit_bytes:
            self.size_bytes -= len(self._batches.popleft()[1]) + BATCH_BYTES

    def serve(self, socket: zmq.Socket[bytes]) -> None:
        """Answers all requests that wait at `socket`, with pauses."""
        with suppress(zmq.ZMQError):  # no request waits, or the socket is closed
            while True:
                request = socket.recv_multipart(zmq.NOBLOCK)
                if len(request) != 3 or request[1] or len(request[2]) < len(END):
                    continue
                start = int.from_bytes(request[2][: len(END)], "big")
                batches = [(self._topic, *it) for it in self._batches if it[0] >= start]
                for number, (topic, sequence, payload) in enumerate(
                    [*batches, (b"", -1, zmq.Frame())], 1
                ):
                    head = [request[0], b"", topic, sequence.to_bytes(8, "big", signed=True)]
                    with suppress(zmq.ZMQError):  # the client is gone
                        socket.send_multipart([*head, payload], zmq.NOBLOCK, copy=False)
                    if number % PAUSE_EVERY == 0:
                        pause_if_possible()
                self.answered += 1


MOST_BATCHES = 16
"""Most events in one message, as a multiple of `batch`; a message costs much more than an event."""
QUEUE_BYTES = 256 << 20
"""Most bytes of events waiting to be published, as estimated by `event_bytes`."""
MESSAGE_BYTES = 1 << 20
"""Most bytes of events per message, as estimated; the wire takes a fourth.

A larger event is sent alone.
"""


class EventQueue:
    """Queue of at most `capacity` events, due at `batch` events or `flush_s` seconds after the last
    batch.

    A batch takes all waiting events, up to `MOST_BATCHES` times `batch` or `MESSAGE_BYTES`. With
    `flush_s` 0 every step is sent alone, as in vLLM. Moments are monotonic seconds.
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
        return self._last_s + self._flush_s if self._events else math.inf

    def take(self, now_s: float) -> list[KVEvent]:
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


Listener: TypeAlias = Callable[[str, int, EventBatch], None]
"""Receives topic, sequence number and batch. Its errors are logged."""

POLL_S = 0.1
"""Longest wait of a replay request, in seconds; equals the interval of vLLM's publisher."""
LINGER_MS = 1000
"""Time on close for subscribers to receive the last batches, in milliseconds."""
QUIET_S = 60.0
"""Shortest time between two log lines about lost events, in seconds."""
log = logging.getLogger(__name__)


class EventSender:
    """Batches and sends events; never waits for a subscriber."""

    def __init__(
        self,
        settings: PublisherSettings,
        wall: Callable[[], float] = time.time,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`wall` returns seconds since 1970. Raises ValueError."""
        self._settings = settings
        self._wall, self._now = wall, now
        self._topic = settings.topic.encode()
        kept = settings.replay_batches if settings.replay_endpoint else 0
        self.replay = ReplayBuffer(self._topic, kept)
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        wanted = {"events": settings.endpoint, "replay": settings.replay_endpoint}
        self._unopened = {name: of_rank(it, settings.rank) for name, it in wanted.items() if it}
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._encode = encoder(settings.layout)
        self.queue = EventQueue(settings.queue_events, settings.batch_events, settings.flush_s)
        self.next_sequence = 0
        self._listeners: list[Listener] = []
        self._wake, self._has_ended = Event(), False
        self._greenlet: gevent.Greenlet[[], None] | None = None
        self._quiet_until_s = -math.inf
        self.dropped_events = 0
        """Events without room in the queue, or put after the close."""
        self.addresses: dict[str, str] = {}
        """Open addresses of `events` and `replay`, with the port in use."""

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def forget(self, listener: Listener) -> None:
        self._listeners.remove(listener)

    @property
    def caches(self) -> Mapping[str, Bounded]:
        return {"KV events to publish": self.queue, "KV events to replay": self.replay}

    def put(self, events: Sequence[KVEvent]) -> None:
        """Queues the events of a step, in order. Counts events lost without room."""
        if lost := self.queue.put(events):
            self.dropped_events += lost
            self._complain("KV events: the queue is full, %d are lost so far", self.dropped_events)

    def turn(self) -> float:
        """Does all work that is due; returns the monotonic time of the next turn, or infinity."""
        self.open()
        if (socket := self._sockets.get("replay")) is not None:
            self.replay.serve(socket)
        now_s = self._now()
        self.send_due(now_s)
        waits_for_peers = self._unopened or self._settings.replay_endpoint
        return min(self.queue.due_s(), now_s + POLL_S if waits_for_peers else math.inf)

    def open(self) -> None:
        """Opens endpoints that are not open yet; an occupied one may be free later."""
        for name, endpoint in list(self._unopened.items()):
            try:
                self._context = self._context or zmq.Context()
                # ZMQ silently drops what exceeds the queue of a slow peer, which holds two whole
                # replays.
                kind, binds, hwm = zmq.PUB, is_bound(endpoint), self._settings.hwm
                if name == "replay":
                    kind, binds, hwm = zmq.ROUTER, True, 2 * (self._settings.replay_batches + 1)
                found = open_socket(self._context, kind, endpoint, binds, hwm)
                self._sockets[name], self.addresses[name] = found
                del self._unopened[name]
            except zmq.ZMQError as error:
                self._complain("KV events: %s cannot be opened, trying on: %s", endpoint, error)

    def send_due(self, now_s: float) -> None:
        """Publishes batches due at `now_s`, with pauses."""
        pace = Pace(self._now)
        while len(self.queue) and self.queue.due_s() <= now_s:
            self._send(self.queue.take(now_s))
            pace()

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
        sequence, self.next_sequence = self.next_sequence, self.next_sequence + 1
        payload = self._encode(batch)
        self.replay.record(sequence, payload)
        if self._settings.endpoint:
            try:
                socket = self._sockets["events"]
                socket.send(self._topic, MORE)
                socket.send(sequence.to_bytes(8, "big"), MORE)
                socket.send(payload, zmq.NOBLOCK)
            except (zmq.ZMQError, KeyError):  # the latter for an endpoint that is not open yet
                pass  # listeners and replays still have the batch
        for listener in tuple(self._listeners):
            try:
                listener(self._settings.topic, sequence, batch)
            except Exception as error:
                self._complain("KV events: a listener failed: %r", error)

    def _complain(self, line: str, *values: object) -> None:
        if self._now() >= self._quiet_until_s:
            self._quiet_until_s = self._now() + QUIET_S
            log.warning(line, *values)


class Publisher(EventSender):
    """Publishes from a greenlet, in the process of `start` or of the first `put`."""

    def start(self) -> None:
        """Opens the sockets, so that subscribers and replay requests find them."""
        if self._greenlet is None and not self._has_ended:
            self.open()
            self._greenlet = gevent.spawn(self._work)

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
        self._has_ended = True
        self._wake.set()
        if self._greenlet is not None:
            self._greenlet.join()
        super().close()

    def _work(self) -> None:
        while not self._has_ended:
            due_s = self.turn()
            self._wake.wait(None if due_s == math.inf else max(0.0, due_s - self._now()))
            self._wake.clear()
