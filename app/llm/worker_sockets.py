"""The engine's socket: receives orders of all workers and sends notices, and never waits for a worker.

A module without torch: the socket is bound, and orders wait, while torch and the model are loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import msgspec
import zmq

from app.engine.core.wire import Notice, Order

MOST_ORDER_BYTES: Final = 64 << 20
"""Largest message in bytes; a larger one ends the connection."""
MOST_MESSAGES: Final = 256
"""Most messages received at a time, so that a flood of orders does not stop the steps."""
QUEUED_MESSAGES: Final = 10_000
"""Most messages, one a step, that wait for a worker that does not read."""
LINGER_MS: Final = 500
"""Milliseconds on close to send the last notices."""

Delivery: TypeAlias = Literal["sent", "full", "gone"]

logger = logging.getLogger(__name__)


class WorkerSockets:
    """A ROUTER socket at `endpoint`. Raises ZMQError when `endpoint` cannot be bound."""

    def __init__(self, endpoint: str, queued_messages: int = QUEUED_MESSAGES) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.router_mandatory = 1  # sending to a worker that has left is an error
        self._socket.sndhwm = queued_messages
        self._socket.maxmsgsize = MOST_ORDER_BYTES
        self._socket.linger = LINGER_MS
        self._socket.bind(endpoint)
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(list[Order]).decode

    def receive(self, timeout_s: float) -> list[tuple[bytes, list[Order]]]:
        """Returns orders with the names of their workers; waits at most `timeout_s` seconds for the first."""
        received: list[tuple[bytes, list[Order]]] = []
        if not self._socket.poll(round(timeout_s * 1000)):
            return received
        for _ in range(MOST_MESSAGES):
            try:
                worker, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            try:
                received.append((worker, self._decode(b"".join(frames))))
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                logger.warning("a message of a worker is ignored: %s", error)
        return received

    def send(self, worker: bytes, notices: Sequence[Notice]) -> Delivery:
        """Sends without waiting; returns "full" when the worker has no room, "gone" when it has left."""
        try:
            self._socket.send_multipart([worker, self._encode(notices)], zmq.NOBLOCK)
        except zmq.Again:
            return "full"
        except zmq.ZMQError:
            return "gone"
        return "sent"

    def close(self) -> None:
        self._socket.close()
        self._context.term()
