"""What comes back over a connection, told apart as fast as Python can: events of a stream, or one
whole body.

`feed` takes what one `recv` has given. Bytes of several recvs may be cut anywhere.
"""

from __future__ import annotations

EVENT = b"data: {"
"""Begins every event but the last, "data: [DONE]"."""
LAST_CHUNK = b"\n0\r\n\r\n"
"""An event's line end, then the chunk of length zero that ends a chunked body (RFC 9112, 7.1)."""
KEEP = max(len(EVENT) - 1, len(LAST_CHUNK))
"""Bytes to remember:

what begins in one recv and ends in the next is found, and nothing is found twice.
"""
OK = b"HTTP/1.1 200"


class RefusedError(Exception):
    """The server did not answer 200."""


class EventStream:
    """Counts server-sent events. One object per connection, `restart` before each request."""

    __slots__ = ("_tail", "done")

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._tail = b""
        self.done = False

    def feed(self, received: bytes) -> int:
        """Events that begin in `received`; `done` is True from the body's end on."""
        if not self._tail:
            _check_status(received)
        text = self._tail + received
        self._tail = text[-KEEP:]
        self.done = self._tail == LAST_CHUNK
        return text.count(EVENT)


class WholeReply:
    """One answer with a Content-Length, or with a chunked body.

    One object per connection, `restart` before each request.
    """

    __slots__ = ("_length", "_received", "done")

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._received = b""
        self._length = 0
        self.done = False

    def feed(self, received: bytes) -> int:
        """1 for the piece that completes the answer, 0 for all before."""
        if not self._received:
            _check_status(received)
        self._received += received
        if not self._length:
            self._length = _length_of(self._received)
        if self._length:
            self.done = self._length <= len(self._received)
        else:
            self.done = self._received.endswith(LAST_CHUNK)
        return int(self.done)

    @property
    def body(self) -> bytes:
        """The answer's body, as far as it has come."""
        return self._received.partition(b"\r\n\r\n")[2]


def _check_status(received: bytes) -> None:
    if not received.startswith(OK[: len(received)]):
        raise RefusedError(received.partition(b"\r\n")[0].decode("latin-1"))


def _length_of(received: bytes) -> int:
    """Bytes of head and body together; 0 while the head is incomplete, and for a chunked body."""
    head, blank, _ = received.partition(b"\r\n\r\n")
    if not blank:
        return 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return len(head) + len(blank) + int(line[15:])
        if line == b"transfer-encoding: chunked":
            return 0
    raise RefusedError("an answer without Content-Length")
