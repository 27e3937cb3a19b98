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
ANSWER_BYTES = 400
"""Memory of a batch, besides its payload, that waits for a client: four frames of ZMQ."""


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
        self._sent_end = 0
        """End of the sequence numbers that have been replayed."""
        self.lent_bytes = 0
        """Maximum memory, besides `size_bytes`, that clients hold which do not read."""
        self._pauses = Slices(PAUSE_EVERY)
        self.answered = 0
        """Number of answered requests."""

    def record(self, sequence: int, payload: bytes) -> None:
        """Stores a batch under its sequence number."""
        self._batches.append((sequence, zmq.Frame(payload, copy=True)))
        self.size_bytes += len(payload) + BATCH_BYTES
        while len(self._batches) > self._max_batches or self.size_bytes > self.limit_bytes:
            oldest, frame = self._batches.popleft()
            self.size_bytes -= len(frame) + BATCH_BYTES
            if oldest < self._sent_end:
                self.lent_bytes += len(frame)

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
        if self._batches:
            self._sent_end = self._batches[-1][0] + 1
        messages = [
            (self._topic, sequence.to_bytes(8, "big"), payload)
            for sequence, payload in self._batches
            if sequence >= start
        ]
        for message in (*messages, (b"", END, zmq.Frame())):
            socket.send_multipart([*request[:2], *message], zmq.NOBLOCK, copy=False)
            self.lent_bytes += ANSWER_BYTES
            self._pauses.spend()
