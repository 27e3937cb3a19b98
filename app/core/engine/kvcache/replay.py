"""Replays of KV events for subscribers that missed some."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress

import zmq

from app.core.base.clock.pause import Slices
from app.core.engine.kvcache.publishing import REPLAY_BYTES
from app.core.engine.kvcache.sockets import receive

END = b"\xff" * 8
"""Sequence number of the end marker: -1 in 64 bits."""
PAUSE_EVERY = 32
"""Batches that are sent between two pauses."""
MAX_REQUESTS = 100
"""Requests that are answered before waiting events are published."""
BATCH_BYTES = 150
"""Estimated memory of a batch besides its payload."""


class ReplayBuffer:
    """Stores the last `max_batches` batches, and replays them from a requested sequence number on.

    Beyond `limit_bytes` in total the oldest batches are dropped. A request is [empty, sequence
    number]. The reply is one message per batch, then an end marker. A REQ socket receives only the
    first message, as ZMQ prescribes; a DEALER receives all.
    """

    def __init__(self, topic: bytes, max_batches: int, limit_bytes: int = REPLAY_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._topic = topic
        self._max_batches = max_batches
        self._batches: deque[tuple[int, zmq.Frame]] = deque()
        """Payloads in shared frames, so that slow clients cost no copies."""
        self._pauses = Slices(PAUSE_EVERY)
        self.answered = 0
        """Number of answered requests."""

    def record(self, sequence: int, payload: bytes) -> None:
        """Stores a batch under its sequence number."""
        self._batches.append((sequence, zmq.Frame(payload, copy=True)))
        self.size_bytes += len(payload) + BATCH_BYTES
        while len(self._batches) > self._max_batches or self.size_bytes > self.limit_bytes:
            self.size_bytes -= len(self._batches.popleft()[1]) + BATCH_BYTES

    def serve(self, socket: zmq.Socket[bytes]) -> None:
        """Answers some of the requests that wait at `socket`, with pauses."""
        with suppress(zmq.ZMQError):  # no request waits, or the socket is closed
            for _ in range(MAX_REQUESTS):
                request = receive(socket)
                self._pauses.spend()
                if len(request) == 3 and not request[1] and len(request[2]) >= len(END):
                    self._answer(socket, request)
                    self.answered += 1

    def _answer(self, socket: zmq.Socket[bytes], request: Sequence[zmq.Frame]) -> None:
        start = int.from_bytes(request[2].bytes[:8], "big")
        messages = [
            (self._topic, sequence.to_bytes(8, "big"), payload)
            for sequence, payload in self._batches
            if sequence >= start
        ]
        for message in (*messages, (b"", END, zmq.Frame())):
            socket.send_multipart([*request[:2], *message], zmq.NOBLOCK, copy=False)
            self._pauses.spend()
