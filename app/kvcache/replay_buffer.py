"""Published batches once more, for subscribers that missed some (kv-cache specification, section 2.10)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import dropwhile

import zmq

from app.kvcache.endpoints import ReplayLayout
from app.kvcache.sockets import open_socket

END = b"\xff" * 8
"""Stands for a sequence number behind the last batch: -1 in 64 bits."""
LIMIT_BYTES = 64 << 20
"""Batches of long prompts are large: ten thousand of them could have gigabytes."""
BATCH_BYTES = 150
"""What a batch takes besides its payload."""


class ReplayBuffer:
    """Keeps the last `batches` batches, and sends those from a sequence number on to whoever asks.

    Fewer are kept where they take more than `limit_bytes` together. A request is [empty, sequence number];
    each batch is a message of its own, and a marker follows the last. Whoever asks with a REQ socket receives
    the first message only, as ZMQ has it; a DEALER receives all.
    """

    def __init__(
        self, topic: bytes, batches: int, layout: ReplayLayout = "topic", limit_bytes: int = LIMIT_BYTES
    ) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._topic = topic
        self._layout = layout
        self._batches: deque[tuple[int, zmq.Frame]] = deque()
        """Each payload is one piece of memory, however many clients are slow to read it."""
        self._most_batches = batches
        self._socket: zmq.Socket[bytes] | None = None
        self.answered = 0
        """Requests that were answered."""
        self.malformed = 0
        """Requests that were ignored, as they were none."""

    def record(self, sequence: int, payload: bytes) -> None:
        """A batch has been published."""
        self._batches.append((sequence, zmq.Frame(payload, copy=True)))
        self.size_bytes += len(payload) + BATCH_BYTES
        while len(self._batches) > self._most_batches or self.size_bytes > self.limit_bytes:
            self.size_bytes -= len(self._batches.popleft()[1]) + BATCH_BYTES

    def open(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> str:
        """Answer at `endpoint`; its real address. ZMQError when that is not possible."""
        # Room for two whole replays. A client that does not read loses what is beyond that.
        hwm = 2 * (self._most_batches + 1)
        self._socket, address = open_socket(context, zmq.ROUTER, endpoint, bind=True, hwm=hwm)
        return address

    def close(self, linger_ms: int) -> None:
        """Answer no more; what is on its way may take that long."""
        if self._socket is not None:
            self._socket.close(linger=linger_ms)
            self._socket = None

    def serve(self) -> Iterator[None]:
        """Answer the requests that wait, a message before each item: pause there if others wait."""
        while self._socket is not None:
            try:
                request = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.ZMQError:  # nobody asks
                return
            yield from self._answer(request)

    def _answer(self, request: list[bytes]) -> Iterator[None]:
        if len(request) != 3 or request[1] or len(request[2]) < len(END):
            self.malformed += 1
            return
        client, start = request[0], int.from_bytes(request[2][: len(END)], "big")
        for sequence, payload in dropwhile(lambda batch: batch[0] < start, list(self._batches)):
            self._send(client, self._topic, sequence.to_bytes(8, "big"), payload)
            yield
        self._send(client, b"", END, zmq.Frame())
        self.answered += 1

    def _send(self, client: bytes, topic: bytes, sequence: bytes, payload: zmq.Frame) -> None:
        frames: list[bytes | zmq.Frame] = (
            [sequence, payload] if self._layout == "bare" else [topic, sequence, payload]
        )
        with suppress(zmq.ZMQError):  # the client is gone
            if self._socket is not None:
                self._socket.send_multipart([client, b"", *frames], zmq.NOBLOCK, copy=False)
