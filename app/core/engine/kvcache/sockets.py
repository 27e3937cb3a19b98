"""ZMQ sockets of KV events."""

from __future__ import annotations

from itertools import count

import gevent
import zmq

from app.core.base.clock.pause import pause_if_possible
from app.core.engine.kvcache.publishing import is_ipv6, is_name

MAX_REQUEST_BYTES = 1 << 20
"""Maximum bytes of a message from a peer, such as a replay request.

A larger one ends the connection.
"""
MAX_SUBSCRIPTION_BYTES = 1 << 12
"""Maximum bytes of a subscription. ZMQ takes about 64 bytes for each of its bytes."""
MAX_WAITING_REQUESTS = 16
"""Messages of a peer that wait to be read; more wait at the peer."""
FRAMES_PER_PAUSE = 1000
"""Number of frames of a message that are read without a pause; a valid message has three."""
END_S = 2.0
"""Maximum wait for a context to end, in seconds; its closed sockets linger for half as long."""
IO_THREADS = 2
"""IO threads of a context that connects to peers; a slow name lookup blocks only one thread."""


def affinity(context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> int:
    """Returns the IO threads, as bits, for a socket that connects to `endpoint`.

    Names have a thread of their own.
    """
    if context.get(zmq.IO_THREADS) != IO_THREADS:
        return 0
    return 1 << is_name(endpoint)


def address_of(socket: zmq.Socket[bytes]) -> str:
    """Returns the address of a socket, with the port in use."""
    return socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")


def end_context(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """Ends a context in a thread: waits up to `END_S` for sent messages to be received."""
    gevent.get_hub().threadpool.spawn(context.term).wait(END_S)


def open_socket(
    context: zmq.Context[zmq.Socket[bytes]], kind: int, endpoint: str, *, bind: bool, hwm: int
) -> tuple[zmq.Socket[bytes], str]:
    """Opens a socket that keeps `hwm` messages per peer; returns the socket and its address.

    Raises:
        ZMQError: The endpoint cannot be opened.
    """
    socket = context.socket(kind)
    try:
        socket.sndhwm = hwm
        socket.rcvhwm = MAX_WAITING_REQUESTS
        socket.maxmsgsize = MAX_REQUEST_BYTES
        if kind == zmq.PUB:
            socket.maxmsgsize = MAX_SUBSCRIPTION_BYTES
        socket.ipv6 = is_ipv6(endpoint)
        if bind:
            socket.bind(endpoint)
        else:
            socket.connect(endpoint)
        return socket, address_of(socket)
    except zmq.ZMQError:
        socket.close(linger=0)
        raise


def receive(socket: zmq.Socket[bytes]) -> list[zmq.Frame]:
    """Returns the first four frames of the next message, and skips further ones; may pause.

    Reading frame by frame takes half the time of `recv_multipart`.

    Raises:
        zmq.Again: No message is waiting.
    """
    frames: list[zmq.Frame] = []
    for number in count(1):
        frame = socket.recv(zmq.NOBLOCK, copy=False)
        if number <= 4:
            frames.append(frame)
        if not frame.more:
            break
        if number % FRAMES_PER_PAUSE == 0:
            pause_if_possible()
    return frames
