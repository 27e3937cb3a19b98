"""A publisher's ZMQ sockets."""

from __future__ import annotations

import gevent
import zmq

from app.kvcache.endpoints import is_bound, is_ipv6, is_name

MORE = zmq.SNDMORE | zmq.NOBLOCK
"""Frame by frame a message costs half of what `send_multipart` takes."""
MOST_REQUEST_BYTES = 1 << 20
"""What peers send to a publisher: subscriptions, and requests for replays. Larger ones end the connection."""


END_S = 2.0
"""What an end waits for a context, whose sockets are closed and may linger for half as long."""
IO_THREADS = 2
"""Of a context that connects to others: one waits while a name is looked up, which may take its time."""


def affinity(context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> int:
    """The threads of `context`, as bits, for a socket that connects to `endpoint`: names have their own."""
    return 1 << is_name(endpoint) if context.get(zmq.IO_THREADS) == IO_THREADS else 0


def address_of(socket: zmq.Socket[bytes]) -> str:
    """Where a socket is bound or connected to, with the port in use."""
    return socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")


def end_context(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """Wait for a while until what was sent is received; other greenlets go on. A lookup may last longer."""
    gevent.get_hub().threadpool.spawn(context.term).wait(END_S)


def open_socket(
    context: zmq.Context[zmq.Socket[bytes]], kind: int, endpoint: str, bind: bool, hwm: int
) -> tuple[zmq.Socket[bytes], str]:
    """A socket that keeps `hwm` messages for each peer, and its address with the port in use.

    ZMQError when the endpoint is taken or not of this machine.
    """
    socket = context.socket(kind)
    try:
        socket.sndhwm = hwm
        socket.maxmsgsize = MOST_REQUEST_BYTES
        socket.ipv6 = is_ipv6(endpoint)
        if bind:
            socket.bind(endpoint)
        else:
            socket.connect(endpoint)
        address = address_of(socket)
    except zmq.ZMQError:
        socket.close(linger=0)
        raise
    return socket, address


class PubSocket:
    """A publisher's socket: sends messages to whoever subscribes, and never waits for anybody."""

    def __init__(self, topic: bytes, hwm: int) -> None:
        """`hwm` messages wait for a slow subscriber; ZMQ drops further ones, without telling."""
        self._topic = topic
        self._hwm = hwm
        self._socket: zmq.Socket[bytes] | None = None

    def open(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> str:
        """Bind or connect to `endpoint`; its real address. ZMQError when that is not possible."""
        self._socket, address = open_socket(context, zmq.PUB, endpoint, is_bound(endpoint), self._hwm)
        return address

    def send(self, sequence: int, payload: bytes) -> bool:
        """False when the message is lost: there is no socket yet, or ZMQ does not take it."""
        if self._socket is None:
            return False
        try:
            self._socket.send(self._topic, MORE)
            self._socket.send(sequence.to_bytes(8, "big"), MORE)
            self._socket.send(payload, zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def close(self, linger_ms: int) -> None:
        """Send no more; what is on its way may take that long."""
        if self._socket is not None:
            self._socket.close(linger=linger_ms)
            self._socket = None
