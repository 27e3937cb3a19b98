"""The subscriber: ZMQ sockets for pods' events, and the messages from them."""

import logging
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import NamedTuple, TypeAlias

import gevent
import zmq
from gevent.select import POLLIN, poll
from msgspec import Struct
from zmq.utils.monitor import parse_monitor_message

from app.base.clock.pause import pause_if_possible
from app.engine.kvcache.events import is_ipv6, is_name
from app.engine.kvcache.sockets import address_of, affinity
from app.kvindex.pods import (
    PREFIX,
    PodEndpoint,
    PodTracker,
    TargetSource,
    Topic,
    parse_topic,
    resolve_host,
)
from app.kvindex.pool import Pool, PublishedMessage

log = logging.getLogger(__name__)

Context: TypeAlias = zmq.Context[zmq.Socket[bytes]]
Frame: TypeAlias = zmq.Frame

SEQUENCE_BYTES = 8
LOOK_AGAIN_S, FULL_S = 2.0, 0.01
"""Seconds between two looks at files and host names with pods; longest wait while a queue is full.
"""
MOST_A_STEP, MOST_BYTES_A_STEP = 64, 4 << 20
"""Most messages, and bytes, of a socket that are read in one go."""
MOST_FRAMES = 1000
"""Most frames of a message that are read without a pause; a valid message has three."""
_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED


class SubscriberSettings(Struct, frozen=True, kw_only=True):
    """`bind` is an address for pods to connect to; with None, the subscriber only connects to
    targets.

    `topic` is the prefix of topics to receive. `replay_port` is the replay port of a pod's rank 0;
    rank 1 has the next port. A target's `replay` has priority. A message above `most_bytes` ends
    its connection.
    """

    bind: str | None = "tcp://*:5557"
    topic: str = PREFIX
    model: str = ""
    replay_port: int | None = None
    hwm: int = 1_000
    most_bytes: int = 128 << 20
    grace_s: float = 30.0


class PodSocket(NamedTuple):
    """A socket and its monitor."""

    socket: zmq.Socket[bytes]
    monitor: zmq.Socket[bytes]

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close()
        self.socket.close()


class Subscriber:
    """Reads messages into a pool, and removes gone pods from the pool.

    After `open`, one thread calls `step` repeatedly. While a queue of the pool is full, nothing is
    read. Messages beyond ZMQ's own queue are then lost, detected as a gap, and replayed.
    """

    def __init__(
        self,
        pool: Pool,
        settings: SubscriberSettings = SubscriberSettings(),  # noqa: B008 (immutable)
        sources: Sequence[TargetSource] = (),
    ) -> None:
        self._pool, self._metrics = pool, pool.index.metrics
        self._context: Context | None = None
        self._settings, self._sources = settings, sources
        self._presence = PodTracker(settings.grace_s)
        self._lines: dict[PodEndpoint | None, PodSocket] = {}
        """Sockets by target; None is the socket that pods connect to."""
        self._poller = zmq.Poller()
        self._look_at = float("-inf")

    @property
    def address(self) -> str | None:
        return address_of(self._lines[None].socket) if None in self._lines else None

    @property
    def targets(self) -> list[PodEndpoint]:
        return [target for target in self._lines if target is not None]

    def open(self, context: Context) -> None:
        """Opens the socket for pods to connect to.

        ZMQError for an invalid address, or an address in use.
        """
        self._context = context
        if self._settings.bind is not None:
            self._lines[None] = self._line(
                self._settings.bind, zmq.Socket.bind, self._settings.topic
            )

    def step(self, now: float) -> bool:
        """Reads some waiting messages of each socket; returns True if there were any.

        `now` is monotonic.
        """
        if now >= self._look_at:
            self._look_at = now + LOOK_AGAIN_S
            self._follow(now)
        ready = dict(self._poller.poll(0))
        done = 0
        for target, line in list(self._lines.items()):
            if line.socket in ready:
                done += self._read(target, now)
                self._pool.pace()
            if line.monitor in ready:
                done += self._watch(target, line.monitor, now)
        gone = self._presence.step(now)
        for pod in gone:
            self._pool.gone(pod)
        return done + len(gone) > 0

    def wait(self, timeout_s: float) -> None:
        waiting = poll()
        for socket, _ in self._poller.sockets:
            waiting.register(socket.fileno(), POLLIN)
        # ZMQ does not signal again for messages that stayed unread while a queue was full.
        waiting.poll(1e3 * (min(timeout_s, FULL_S) if self._pool.full else timeout_s))

    def close(self) -> None:
        for target in list(self._lines):
            self._shut(target)

    def _line(
        self, endpoint: str, attach: Callable[[zmq.Socket[bytes], str], object], topic: str
    ) -> PodSocket:
        """Opens a socket; `attach` binds or connects it.

        ZMQError for an endpoint that cannot be used.
        """
        assert self._context is not None
        socket = self._context.socket(zmq.SUB)
        line = PodSocket(socket, socket.get_monitor_socket(_EVENTS))
        try:
            socket.linger = 0
            socket.rcvhwm = self._settings.hwm
            socket.maxmsgsize = self._settings.most_bytes
            socket.ipv6 = is_ipv6(endpoint)
            socket.affinity = affinity(self._context, endpoint)
            socket.subscribe(topic)
            attach(socket, endpoint)
        except zmq.ZMQError:
            line.close()
            raise
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(line.monitor, zmq.POLLIN)
        return line

    def _shut(self, target: PodEndpoint | None) -> None:
        line = self._lines.pop(target)
        self._poller.unregister(line.socket)
        self._poller.unregister(line.monitor)
        line.close()

    def _follow(self, now: float) -> None:
        wanted = {target: None for source in self._sources for target in source.targets}
        for target in self.targets:
            if target not in wanted:
                self._read(target, now)
                self._shut(target)
                self._presence.closed(target, now)
        for target in wanted:
            if target in self._lines:
                continue
            try:  # all topics: a publisher with vLLM's default topic, which is empty, is known by its address
                self._lines[target] = self._line(target.endpoint, zmq.Socket.connect, "")
            except zmq.ZMQError as error:
                log.warning("KV event sources: no connection to %s: %s", target.endpoint, error)
            else:
                if is_name(target.endpoint):
                    gevent.spawn(self._warn_of_unknown, target)

    def _warn_of_unknown(self, target: PodEndpoint) -> None:
        """Logs a warning for a host without an address: ZMQ retries silently."""
        with suppress(OSError):
            if resolve_host(target.host or ""):
                return
        log.warning("KV event sources: nobody knows the host of %s, trying on", target.endpoint)

    def _read(self, target: PodEndpoint | None, now: float) -> int:
        line, read, size = self._lines[target], 0, 0
        while read < MOST_A_STEP and size < MOST_BYTES_A_STEP and not self._pool.full:
            try:
                frames = _next_message(line.socket)
            except zmq.Again:
                break
            read += 1
            size += len(frames[-1])
            self._take(frames, target, now)
        return read

    def _take(self, frames: Sequence[Frame], target: PodEndpoint | None, now: float) -> None:
        if len(frames) != 3 or len(frames[1]) != SEQUENCE_BYTES:
            self._metrics.skip_message("bad_frames")
            return
        name = frames[0].bytes
        topic = parse_topic(name)
        if topic is None and (target is None or name):
            self._metrics.skip_message("bad_topic")
            return
        connection, host = _peer(frames[0]) if target is None else (target, target.host)
        message = self._message(frames, topic, target, host)
        self._presence.seen(message.pod, connection, now)
        crowded_out = self._pool.put(message)
        if crowded_out is not None:
            self._presence.forget(crowded_out)

    def _message(
        self,
        frames: Sequence[Frame],
        topic: Topic | None,
        target: PodEndpoint | None,
        host: str | None,
    ) -> PublishedMessage:
        pod, model = (topic.pod, topic.model) if topic else ("", None)
        replay, shared = None, False
        if target is not None:
            pod = target.pod or (topic.pod if topic and topic.standard else target.name)
            model, replay = target.model or model, target.replay
        port = self._settings.replay_port
        if port is not None and replay is None and host:
            replay, shared = f"tcp://{host}:{port}", True
        name, number, content = frames
        payload = content.bytes if len(content) <= self._pool.settings.most_payload_bytes else None
        sequence = int.from_bytes(number.bytes, "big")
        model = model or self._settings.model
        return PublishedMessage(pod, model, sequence, payload, replay, shared, name.bytes)

    def _watch(self, target: PodEndpoint | None, monitor: zmq.Socket[bytes], now: float) -> int:
        seen = 0
        while seen < MOST_A_STEP and monitor.poll(0):
            seen += 1
            event = parse_monitor_message(monitor.recv_multipart(zmq.NOBLOCK))
            connection: Hashable = target or int(event["value"])
            if event["event"] == zmq.EVENT_DISCONNECTED:
                self._presence.closed(connection, now)
            elif event["event"] == zmq.EVENT_CONNECTED:
                self._presence.opened(connection)
            elif event["event"] == zmq.EVENT_ACCEPTED:
                self._presence.replaced(connection)
        return seen


def _next_message(socket: zmq.Socket[bytes]) -> list[Frame]:
    """Returns the first four frames of the next message, and skips further ones; zmq.Again without
    a message.

    Reading frame by frame takes half the time of `recv_multipart`.
    """
    frames = [socket.recv(zmq.NOBLOCK, copy=False)]
    more, read = frames[0].more, 1
    while more:
        frame = socket.recv(zmq.NOBLOCK, copy=False)
        more, read = frame.more, read + 1
        if read <= 4:
            frames.append(frame)
        if read % MOST_FRAMES == 0:
            pause_if_possible()
    return frames


def _peer(frame: Frame) -> tuple[Hashable, str | None]:
    try:
        connection = int(str(frame.get(zmq.SRCFD)))
    except zmq.ZMQError:  # from within the process
        return "inproc", None
    try:
        address = ip_address(str(frame.get("Peer-Address")))
    except (ValueError, zmq.ZMQError):
        return connection, None
    return connection, f"[{address}]" if address.version == 6 else str(address)
