"""The subscriber: ZMQ sockets for pods' events, and the messages from them."""

import logging
import sys
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import NamedTuple, TypeAlias

import gevent
import zmq
from gevent.select import POLLIN, poll
from msgspec import Struct
from zmq.utils.monitor import parse_monitor_message

from app.core.engine.kvcache.publishing import is_ipv6, is_name
from app.core.engine.kvcache.sockets import address_of, affinity, receive
from app.extensions.kv_index.messages import (
    MAX_SEQUENCE,
    PREFIX,
    PublishedMessage,
    Topic,
    parse_topic,
)
from app.extensions.kv_index.pods import PodEndpoint, TargetSource, resolve_host
from app.extensions.kv_index.pool import Pool
from app.extensions.kv_index.presence import PodTracker
from app.extensions.kv_index.resources import PoolSettings
from config.machine import resident_bytes

log = logging.getLogger(__name__)

Context: TypeAlias = zmq.Context[zmq.Socket[bytes]]
Frame: TypeAlias = zmq.Frame

SEQUENCE_BYTES = 8
REFRESH_S = 2.0
"""Seconds between two refreshes of the targets."""
FULL_WAIT_S = 0.01
"""Maximum wait while a queue is full, in seconds."""
MAX_MESSAGES_PER_STEP = 64
"""Maximum number of messages of a socket that are read without a pause."""
MAX_BYTES_PER_STEP = 4 << 20
"""Size of messages of a socket after which reading pauses, in bytes."""
MAX_DISCARDED = 1_000
"""Maximum number of messages of a socket that are discarded in a step."""
MAX_DISCARDED_BYTES = 16 << 20
"""Size of messages of a socket after which discarding ends in a step, in bytes: about 5 ms.

ZMQ's thread receives up to 1 GB/s, so that longer steps fall behind it.
"""
MONITORED_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED


class SubscriberSettings(Struct, frozen=True, kw_only=True):
    """Addresses and limits of the sockets.

    `bind` is an address for pods to connect to; with None, the subscriber only connects to targets.
    `topic` is the prefix of topics to receive. `replay_port` is the replay port of a pod's rank 0;
    rank 1 has the next port. A target's `replay` has priority. A message above `max_bytes` ends its
    connection. ZMQ bounds only the messages of each connection; while the process takes more than
    `max_resident_bytes`, waiting messages are discarded. `pool` has the limits of the queues behind
    the sockets.
    """

    bind: str | None = "tcp://*:5557"
    topic: str = PREFIX
    model: str = ""
    replay_port: int | None = None
    hwm: int = 1_000
    max_bytes: int = 128 << 20
    max_resident_bytes: int = sys.maxsize
    grace_s: float = 30.0
    pool: PoolSettings = PoolSettings()


class PodSocket(NamedTuple):
    """A socket and its monitor."""

    socket: zmq.Socket[bytes]
    monitor: zmq.Socket[bytes]

    def close(self) -> None:
        """Closes both sockets."""
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
        resident: Callable[[], int] = resident_bytes,
    ) -> None:
        """`resident` returns the memory of this process."""
        self._pool = pool
        self._metrics = pool.index.metrics
        self._context: Context | None = None
        self._settings = settings
        self._sources = sources
        self._resident = resident
        self._tracker = PodTracker(settings.grace_s)
        self._sockets: dict[PodEndpoint | None, PodSocket] = {}
        """Sockets by target; None is the socket that pods connect to."""
        self._poller = zmq.Poller()
        self._next_refresh = float("-inf")
        self._bind = settings.bind
        self._is_full = False
        """True while the process takes too much memory; the start of each time is logged."""
        self._has_disconnected = False
        """True if all connections were ended since then: to end them again would free nothing."""

    @property
    def address(self) -> str | None:
        """Address that pods connect to, with the port in use; None if pods cannot connect."""
        return address_of(self._sockets[None].socket) if None in self._sockets else None

    @property
    def targets(self) -> list[PodEndpoint]:
        """Endpoints that the subscriber is connected to."""
        return [target for target in self._sockets if target is not None]

    def open(self, context: Context) -> None:
        """Opens the socket for pods to connect to.

        Raises:
            ZMQError: the address is invalid or in use.
        """
        self._context = context
        settings = self._settings
        if settings.bind is not None:
            self._sockets[None] = self._open(settings.bind, zmq.Socket.bind, settings.topic)
            self._bind = self.address  # with the port that the system chose

    def step(self, now: float) -> bool:
        """Reads some waiting messages of each socket; returns True if there were any.

        `now` is monotonic, in seconds.
        """
        if now >= self._next_refresh:
            self._next_refresh = now + REFRESH_S
            self._update_targets(now)
        if self._is_memory_full():
            return self._shed(now)
        ready = dict(self._poller.poll(0))
        processed = 0
        for target, pod_socket in list(self._sockets.items()):
            if pod_socket.socket in ready:
                processed += self._read(target, now)
                self._pool.pace()
            if pod_socket.monitor in ready:
                processed += self._read_monitor(target, pod_socket.monitor, now)
        expired = self._tracker.pop_expired(now)
        for pod in expired:
            self._pool.remove_pod(pod)
        return processed + len(expired) > 0

    def wait(self, timeout_s: float) -> None:
        """Waits for messages, at most `timeout_s` seconds."""
        readable = poll()
        for socket, _ in self._poller.sockets:
            readable.register(socket.fileno(), POLLIN)
        if self._pool.full:
            # ZMQ does not signal messages again that stayed unread while a queue was full.
            timeout_s = min(timeout_s, FULL_WAIT_S)
        readable.poll(1e3 * timeout_s)

    def close(self) -> None:
        """Closes all sockets."""
        for target in list(self._sockets):
            self._close(target)

    def _open(
        self, endpoint: str, attach: Callable[[zmq.Socket[bytes], str], object], topic: str
    ) -> PodSocket:
        """Opens a socket; `attach` binds or connects it.

        Raises:
            ZMQError: the endpoint cannot be used.
        """
        assert self._context is not None
        socket = self._context.socket(zmq.SUB)
        pod_socket = PodSocket(socket, socket.get_monitor_socket(MONITORED_EVENTS))
        try:
            socket.linger = 0
            socket.rcvhwm = self._settings.hwm
            socket.maxmsgsize = self._settings.max_bytes
            socket.ipv6 = is_ipv6(endpoint)
            socket.affinity = affinity(self._context, endpoint)
            socket.subscribe(topic)
            attach(socket, endpoint)
        except zmq.ZMQError:
            pod_socket.close()
            raise
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(pod_socket.monitor, zmq.POLLIN)
        return pod_socket

    def _close(self, target: PodEndpoint | None) -> None:
        pod_socket = self._sockets.pop(target)
        self._poller.unregister(pod_socket.socket)
        self._poller.unregister(pod_socket.monitor)
        pod_socket.close()

    def _is_memory_full(self) -> bool:
        is_full = self._resident() > self._settings.max_resident_bytes
        if is_full and not self._is_full:
            self._pool.resources.warnings.warning(
                "KV event sources: the memory of the server is full (--server-memory); "
                "waiting messages are discarded"
            )
        self._is_full = is_full
        if not is_full:
            self._has_disconnected = False
        return is_full

    def _shed(self, now: float) -> bool:
        """Discards waiting messages; returns True if there were any, or events of connections.

        Discarded messages leave a gap, as messages beyond ZMQ's own queues do. Messages that arrive
        faster than a step discards them, and parts of messages, are freed with their connections.
        With a thousand unread events, ZMQ's thread would wait for ever, and so would each call that
        closes a socket.
        """
        count = 0
        event_count = 0
        is_behind = False
        for target, pod_socket in list(self._sockets.items()):
            discarded, is_empty = self._discard(pod_socket.socket)
            count += discarded
            is_behind = is_behind or not is_empty
            event_count += self._read_monitor(target, pod_socket.monitor, now)
            self._pool.pace()
        self._metrics.skip_message("no_memory", count)
        may_free_more = is_behind or not count and not self._has_disconnected
        if may_free_more and self._is_memory_full():
            self._disconnect(now)
            self._has_disconnected = True
        return count + event_count > 0

    def _discard(self, socket: zmq.Socket[bytes]) -> tuple[int, bool]:
        """Discards some waiting messages of a socket; returns their number, and if none remain."""
        count = 0
        size_bytes = 0
        while count < MAX_DISCARDED and size_bytes < MAX_DISCARDED_BYTES:
            try:
                frames = receive(socket)
            except zmq.Again:
                return count, True
            count += 1
            size_bytes += sum(map(len, frames))
            self._pool.pace()
        return count, False

    def _disconnect(self, now: float) -> None:
        """Ends all connections; the next refresh of the targets makes new ones."""
        for target in list(self._sockets):
            self._close(target)
        for connection in self._tracker.connections:
            self._tracker.record_close(connection, now)

    def _reopen(self) -> None:
        """Opens the socket for pods to connect to again, once its address is free."""
        if self._bind is not None and None not in self._sockets:
            with suppress(zmq.ZMQError):
                self._sockets[None] = self._open(self._bind, zmq.Socket.bind, self._settings.topic)

    def _update_targets(self, now: float) -> None:
        """Closes sockets of targets that are no longer listed, and connects to new targets."""
        self._reopen()
        listed = {target: None for source in self._sources for target in source.targets}
        for target in self.targets:
            if target not in listed:
                self._read(target, now)
                self._close(target)
                self._tracker.record_close(target, now)
        for target in listed:
            if target not in self._sockets:
                self._connect(target)

    def _connect(self, target: PodEndpoint) -> None:
        # All topics: a publisher with vLLM's default topic, which is empty, is known by its
        # address.
        try:
            self._sockets[target] = self._open(target.endpoint, zmq.Socket.connect, "")
        except zmq.ZMQError as error:
            log.warning("KV event sources: cannot connect to %s: %s", target.endpoint, error)
            return
        if is_name(target.endpoint):
            gevent.spawn(self._warn_of_unknown_host, target)

    def _warn_of_unknown_host(self, target: PodEndpoint) -> None:
        """Logs a warning for a host without an address: ZMQ retries silently."""
        with suppress(OSError):
            if resolve_host(target.host or ""):
                return
        log.warning("KV event sources: unknown host in %s; retrying", target.endpoint)

    def _read(self, target: PodEndpoint | None, now: float) -> int:
        """Reads some waiting messages of a socket; returns their number."""
        socket = self._sockets[target].socket
        message_count = 0
        size_bytes = 0
        while (
            message_count < MAX_MESSAGES_PER_STEP
            and size_bytes < MAX_BYTES_PER_STEP
            and not self._pool.full
        ):
            try:
                frames = receive(socket)
            except zmq.Again:
                break
            message_count += 1
            size_bytes += len(frames[-1])
            self._process(frames, target, now)
        return message_count

    def _process(self, frames: Sequence[Frame], target: PodEndpoint | None, now: float) -> None:
        if len(frames) != 3 or len(frames[1]) != SEQUENCE_BYTES:
            self._metrics.skip_message("bad_frames")
            return
        topic_bytes = frames[0].bytes
        topic = parse_topic(topic_bytes)
        if topic is None and (target is None or topic_bytes):
            self._metrics.skip_message("bad_topic")
            return
        if int.from_bytes(frames[1].bytes, "big") > MAX_SEQUENCE:
            self._metrics.skip_message("bad_sequence")
            return
        connection: Hashable
        if target is None:
            connection, host = _peer(frames[0])
        else:
            connection = target
            host = target.host
        message = self._message(frames, topic, target, host)
        self._tracker.record_message(message.pod, connection, now)
        evicted_pod = self._pool.put(message)
        if evicted_pod is not None:
            self._tracker.forget(evicted_pod)

    def _message(
        self,
        frames: Sequence[Frame],
        topic: Topic | None,
        target: PodEndpoint | None,
        host: str | None,
    ) -> PublishedMessage:
        topic_frame, sequence, content = frames
        pod = ""
        model = None
        replay = None
        if topic is not None:
            pod = topic.pod
            model = topic.model
        if target is not None:
            if target.pod:
                pod = target.pod
            elif topic is None or not topic.standard:
                pod = target.name
            model = target.model or model
            replay = target.replay
        port = self._settings.replay_port
        per_rank = port is not None and replay is None and bool(host)
        if per_rank:
            replay = f"tcp://{host}:{port}"
        is_small = len(content) <= self._pool.settings.max_payload_bytes
        return PublishedMessage(
            pod=pod,
            model=model or self._settings.model,
            sequence=int.from_bytes(sequence.bytes, "big"),
            payload=content.bytes if is_small else None,
            replay=replay,
            per_rank=per_rank,
            topic=topic_frame.bytes,
        )

    def _read_monitor(
        self, target: PodEndpoint | None, monitor: zmq.Socket[bytes], now: float
    ) -> int:
        """Reads some events of a socket's connections; returns their number."""
        event_count = 0
        while event_count < MAX_MESSAGES_PER_STEP and monitor.poll(0):
            event_count += 1
            event = parse_monitor_message(monitor.recv_multipart(zmq.NOBLOCK))
            connection: Hashable = target or int(event["value"])
            if event["event"] == zmq.EVENT_DISCONNECTED:
                self._tracker.record_close(connection, now)
            elif event["event"] == zmq.EVENT_CONNECTED:
                self._tracker.record_open(connection)
            elif event["event"] == zmq.EVENT_ACCEPTED:
                self._tracker.record_reuse(connection)
        return event_count


def _peer(frame: Frame) -> tuple[Hashable, str | None]:
    """Returns the connection that a frame came over, and the host of its address, if known."""
    try:
        connection = int(str(frame.get(zmq.SRCFD)))
    except zmq.ZMQError:  # from within the process
        return "inproc", None
    try:
        address = ip_address(str(frame.get("Peer-Address")))
    except (ValueError, zmq.ZMQError):
        return connection, None
    return connection, f"[{address}]" if address.version == 6 else str(address)
