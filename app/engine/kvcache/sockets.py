"""ZMQ sockets of a publisher."""

from __future__ import annotations

import gevent
import zmq

from app.engine.kvcache.endpoints import is_bound, is_ipv6, is_name

MORE = zmq.SNDMORE | zmq.NOBLOCK
"""Flags for sending frame by frame, at half the cost of `send_multipart`."""
MOST_REQUEST_BYTES = 1 << 20
"""Most bytes of a message from a peer (subscription, replay request); a larger one ends the connection."""


END_S = 2.0
"""Longest wait for a context to end, in seconds; its closed sockets linger for half as long."""
IO_THREADS = 2
"""IO threads of a context that connects to peers; a slow name lookup blocks only one thread."""


def affinity(context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> int:
    """Returns the IO threads, as bits, for a socket that connects to `endpoint`; names have their own."""
    return 1 << is_name(endpoint) if context.get(zmq.IO_THREADS) == IO_THREADS else 0


def address_of(socket: zmq.Socket[bytes]) -> str:
    """Returns the address that a socket is bound or connected to, with the port in use."""
    return socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")


def end_context(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """Ends a context in a thread: waits up to `END_S` for sent messages to be received.

    Other greenlets continue. A name lookup may last longer.
    """
    gevent.get_hub().threadpool.spawn(context.term).wait(END_S)


def open_socket(
    context: zmq.Context[zmq.Socket[bytes]], kind: int, endpoint: str, bind: bool, hwm: int
) -> tuple[zmq.Socket[bytes], str]:
    """Opens a socket that keeps `hwm` messages per peer; returns the socket and its address with the port.

    Raises ZMQError if the endpoint is taken or not local.
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
    """A publisher's PUB socket, which never waits for subscribers."""

    def __init__(self, topic: bytes, hwm: int) -> None:
        """Up to `hwm` messages wait for a slow subscriber; ZMQ silently drops further ones."""
        self._topic = topic
        self._hwm = hwm
        self._socket: zmq.Socket[bytes] | None = None

    def open(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> str:
        """Binds or connects to `endpoint`; returns its real address. Raises ZMQError on failure."""
        self._socket, address = open_socket(context, zmq.PUB, endpoint, is_bound(endpoint), self._hwm)
        return address

    def send(self, sequence: int, payload: bytes) -> bool:
        """Sends a message; returns False if the message is lost: no socket yet, or refused by ZMQ."""
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
        """Closes the socket; messages in transit have `linger_ms` milliseconds to leave."""
        if self._socket is not None:
            self._socket.close(linger=linger_ms)
            self._socket = None
