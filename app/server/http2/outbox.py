"""What leaves on one connection of HTTP/2: all that its calls say in one turn of the loop, in one piece."""

from __future__ import annotations

import time
from collections.abc import Callable

import gevent

from app.http.connection import Connection, Watcher
from app.http.stream import WRITE, WriteBatcher
from app.server.http2.frames import WINDOW, ConnectionFailed, Reason

MOST_HELD_BYTES = 1 << 22
"""That wait for a client which does not read: by then calls have said nothing new for long."""


class Outbox:
    """Frames in, bytes out. While it is `blocked` the socket takes none, and calls keep what they would say.

    `window` is how many bytes of messages the client allows on the whole connection. `gone` is called when
    there is no client any more, `room` when the socket takes bytes again.
    """

    __slots__ = (
        *("_batcher", "_closed", "_connection", "_frames", "_gone", "_held", "_queued", "_rest", "_room"),
        *("_writer", "blocked", "bytes_sent", "since_s", "window"),
    )

    def __init__(
        self,
        connection: Connection,
        batcher: WriteBatcher,
        gone: Callable[[], None],
        room: Callable[[], None],
    ) -> None:
        self._connection, self._batcher = connection, batcher
        self._gone, self._room = gone, room
        self._frames: list[bytes] = []
        self._rest = b""
        self._held = 0
        self._queued = self._closed = False
        self._writer: Watcher | None = None
        self.window = WINDOW
        self.blocked = False
        self.since_s = 0.0
        """Since when it is blocked."""

    def put(self, frames: bytes) -> None:
        """Send these soon, with what else comes in this turn. ConnectionFailed when too much waits."""
        self._frames.append(frames)
        if self.blocked:
            self._held += len(frames)
            if self._held > MOST_HELD_BYTES:
                raise ConnectionFailed(Reason.ENHANCE_YOUR_CALM, "answers are not read")
        elif not self._queued:
            self._queued = True
            self._batcher.put(self.flush)

    def flush(self) -> None:
        """Hub: to the socket, as much as it takes."""
        self._queued = False
        if self.blocked or self._closed:
            return
        frames = self._frames
        data = frames[0] if len(frames) == 1 else b"".join(frames)
        frames.clear()
        if self._send(data) and self._rest:
            self.blocked, self.since_s, self._held = True, time.monotonic(), 0
            self._writer = gevent.get_hub().loop.io(self._connection.fileno(), WRITE)
            self._writer.start(self._writable)

    def _send(self, data: bytes) -> bool:
        """False when the client is gone; `_rest` is what there was no room for."""
        try:
            self._rest = data[self._connection.send_now(data) :]
        except BlockingIOError:
            self._rest = data
        except OSError:
            self._gone()
            return False
        return True

    def _writable(self) -> None:
        before = len(self._rest)
        if not self._send(self._rest):
            return
        if len(self._rest) < before:
            self.since_s = time.monotonic()
        if not self._rest:
            self._rest, self._held = b"".join(self._frames), 0
            self._frames.clear()
        if not self._rest:
            self._stop_writer()
            self.blocked = False
            self._room()

    def close(self) -> None:
        """Send no more, but what the socket takes at once."""
        if not self._closed and not self.blocked and self._frames:
            self.flush()
        self._closed = True
        self._stop_writer()

    def _stop_writer(self) -> None:
        if self._writer is not None:
            self._writer.stop()
            self._writer.close()
            self._writer = None
