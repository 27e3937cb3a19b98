"""Sends bytes from the hub to clients, without waking a greenlet; start with `StreamTransport`.

All bytes that become due in one turn of the timer wheel are sent together (`WriteBatcher`). When a
client does not read, its socket's buffer fills up, and its `StreamTransport` lags until the socket
has room. A lagging transport pulls one slice at a time from its source until it has caught up.
Other streams do not wait for it, and at most one slice is held in memory. Rendering a slice takes
up to a millisecond, so each slice waits for its turn of the event loop
(`StreamTransport.run_in_turn`). Otherwise, sixty sockets that have room at the same time would hold
the loop for all of their slices.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from ssl import SSLWantReadError, SSLWantWriteError
from typing import Any, Protocol

import gevent.socket

from app.core.base.clock.clock import Watcher
from app.core.server.http.client_connection import ClientConnection

WRITE = 2
"""Event mask of gevent's loop: the socket has room."""
LAST_CHUNK = b"0\r\n\r\n"
log = logging.getLogger(__name__)


class StreamSource(Protocol):
    """Source of a body's pieces."""

    def next_slice(self) -> tuple[bytes, bool, bool]:
        """Returns the next bytes, whether more wait, and whether the body ends with these bytes."""

    def leave(self) -> None:
        """Called when the client has disconnected, or takes no more bytes."""


class WriteBatcher:
    """Collects writes of many streams while they are rendered, then sends them one after another.

    Rendering and sending (kernel code) evict each other's code and data from the processor's
    caches: two passes cost a seventh less per chunk, and a fifth to a quarter less per short
    answer. All queued sends run soon after the turn, or at once when `max_waiting` are queued. A
    batcher belongs to the hub that first uses it.
    """

    def __init__(self, max_waiting: int | None = None) -> None:
        self.max_waiting = max_waiting
        self.waiting: list[StreamTransport] = []
        """Transports with queued writes: `flush` runs before the hub checks sockets and timers."""

    def flush(self) -> None:
        """Runs the sends that wait."""
        waiting = self.waiting
        self.waiting = []
        for transport in waiting:
            try:
                transport.flush()
            except Exception:  # one failure must not stop the other sends
                log.exception("a write failed")


class StreamTransport(ClientConnection):
    """Sends bytes to one client: at once as far as the socket has room, the remainder later.

    Writes a streamed body in HTTP/1.1 chunks (RFC 9112 section 7.1). A client that takes no bytes
    for `write_timeout_s` is disconnected. While the transport `lags`, bytes and the source's pieces
    wait.
    """

    __slots__ = (
        "_batcher",
        "_has_last_piece",
        "_parts",
        "_source",
        "_timer",
        "_watcher",
        "_write_timeout_s",
        "is_open",
        "lags",
    )

    def __init__(
        self, sock: gevent.socket.socket, batcher: WriteBatcher, write_timeout_s: float
    ) -> None:
        super().__init__(sock)
        self._batcher = batcher
        self._write_timeout_s = write_timeout_s
        self._parts: list[bytes | memoryview] = []
        self._source: StreamSource | None = None
        self._watcher: Watcher | None = None
        self._timer: Any = None
        self._has_last_piece = False
        """The last piece of the body has been queued."""
        self.is_open = True
        self.lags = False

    def start(self, source: StreamSource) -> None:
        """Sets the source from which slices are pulled while the transport lags."""
        self._source = source

    def write(self, data: bytes, last: bool = False) -> None:
        """Sends a piece soon, together with all other bytes of this turn; `last` ends the body."""
        self._has_last_piece |= last
        chunk = b""
        if data:
            chunk = b"%x\r\n%b\r\n" % (len(data), data)
        if last:
            chunk += LAST_CHUNK
        if chunk:
            self.put(chunk)

    def put(self, data: bytes) -> None:
        """Sends `data` as it is soon, together with all other bytes of this turn."""
        parts = self._parts
        parts.append(data)
        if len(parts) > 1 or self.lags:
            return  # an earlier write waits
        batcher = self._batcher
        waiting = batcher.waiting
        if not waiting:
            gevent.get_hub().loop.run_callback(batcher.flush)
        waiting.append(self)
        if len(waiting) == batcher.max_waiting:
            batcher.flush()

    def break_off(self) -> None:
        """Breaks the connection in the middle of the answer."""
        self.shut()
        self.client_gone()

    def flush(self) -> None:
        """Sends the queued data, and starts to lag if the socket does not take all data."""
        if self.lags or not self.is_open:
            return
        parts = self._parts
        if parts:
            data = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
            try:
                sent = self.send_now(data)
            except (BlockingIOError, SSLWantReadError, SSLWantWriteError):
                sent = 0
            except OSError:
                self.client_gone()
                return
            if sent and self._timer is not None:
                self._timer.again(self._time_out)
            if sent < len(data):
                parts.append(memoryview(data)[sent:])  # a long body is not copied for each send
                self.lag()
                return
        if self._source is None or self._has_last_piece:
            if self._watcher is not None:
                self.catch_up()
            self.all_sent()

    def lag(self) -> None:
        """Waits until the socket has room, then sends the source's next slices."""
        if self.lags or not self.is_open:  # since the source began to render a slice
            return
        self.lags = True
        if self._watcher is not None:  # the rest of a slice
            return
        loop = gevent.get_hub().loop
        self._watcher = loop.io(self._raw.fileno(), WRITE)
        self._watcher.start(self._writable)
        self._timer = loop.timer(self._write_timeout_s, self._write_timeout_s)
        # Without `update`, the timer would count from the loop's last turn, perhaps long ago.
        self._timer.start(self._time_out, update=True)

    def run_in_turn(self, work: Callable[[], None]) -> None:
        """Hub: runs `work`, which may take a millisecond. Subclasses may delay it."""
        work()

    def _writable(self) -> None:
        """Waits for a turn. Stops watching the socket, which would report its room all the time."""
        assert self._watcher is not None
        self._watcher.stop()
        self.run_in_turn(self._continue)

    def _continue(self) -> None:
        """Sends queued bytes, or the source's next slice, unless the connection was closed."""
        if not self.is_open or self._watcher is None:
            return
        if self._parts or self._refill():
            self.lags = False
            self.flush()
            if self._watcher is not None:
                self.lags = True
                self._watcher.start(self._writable)
        elif self.is_open:
            self.catch_up()
            self.all_sent()

    def _time_out(self) -> None:
        """Disconnects a client that takes no bytes, unless the server itself waits for a turn."""
        if self._watcher is not None and self._watcher.active:
            self.break_off()

    def _refill(self) -> bool:
        if self._has_last_piece or self._source is None:
            return False
        try:
            data, has_more, last = self._source.next_slice()
        except Exception:  # rendering failed after the head was sent: only closing is left
            log.exception("a response ended early")
            self.break_off()
            return False
        self.write(data, last)
        return bool(data) or has_more or last

    def catch_up(self) -> None:
        """Stops lagging."""
        self.lags = False
        for watcher in (self._watcher, self._timer):
            if watcher is not None:
                watcher.stop()
                watcher.close()
        self._watcher = None
        self._timer = None

    def all_sent(self) -> None:
        """Called when the socket has taken all queued bytes."""
        if self._has_last_piece:
            self.close()

    def client_gone(self) -> None:
        """Called when the client has disconnected: closes, then calls `source.leave`."""
        if self.is_open:
            source = self._source
            self.close()
            if source is not None:
                source.leave()

    def close(self) -> None:
        """Stops sending, and drops the source, which refers to this object."""
        self.is_open = False
        self._source = None
        self._parts.clear()
        self.catch_up()
