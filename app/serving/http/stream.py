"""Sends bytes to clients' sockets from the hub, without waking a greenlet.

Bytes of one turn of the timer wheel leave together (`WriteBatcher`). When a client does not read, its
socket's buffer fills, and its `StreamTransport` lags until the socket has room. A lagging transport takes one
slice at a time from its source until it has caught up. Other streams do not wait, and at most one slice is
held.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from ssl import SSLWantReadError, SSLWantWriteError
from typing import Any, Protocol

import gevent

from app.base.clock.clock import Watcher
from app.serving.http.connection import Connection

WRITE = 2
LAST_CHUNK = b"0\r\n\r\n"
log = logging.getLogger(__name__)


class WriteBatcher:
    """Collects writes of many streams or answers while they are rendered, then sends them one after another.

    Rendering and sending (kernel code) evict each other's code and data from the processor's caches: two
    passes cost a seventh less per chunk, and a fifth to a quarter less per short answer. All queued sends run
    soon after the turn, or at once when `most` wait. A batcher belongs to the hub that first uses it.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._waiting: list[Callable[[], None]] = []
        self._run_soon: Any = None

    def put(self, send: Callable[[], None]) -> None:
        """Calls `send()` before the hub checks sockets and timers again."""
        if not self._waiting:
            if self._run_soon is None:
                self._run_soon = gevent.get_hub().loop.run_callback
            self._run_soon(self._flush)
        self._waiting.append(send)
        if len(self._waiting) == self._most:
            self._flush()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for send in waiting:
            try:
                send()
            except Exception:  # one failure must not stop the other sends
                log.exception("a write failed")


class StreamSource(Protocol):
    """Source of a body's pieces."""

    def next_slice(self) -> tuple[bytes, bool, bool]:
        """Returns the next bytes, whether more wait, and whether the body ends with these bytes."""

    def leave(self) -> None:
        """Called when the client has gone, or takes no more bytes."""


class StreamTransport:
    """Bytes for one client: sent at once as far as the socket has room, the rest later.

    Writes a streamed body in HTTP/1.1 chunks (RFC 9112 section 7.1). A client that takes no bytes for
    `write_timeout_s` is cut off. While the transport `lags`, bytes and the source's pieces wait.
    """

    __slots__ = (
        *("_batcher", "_last", "_parts", "_queued", "_send_now", "_source", "_timer", "_watcher"),
        *("_write_timeout_s", "connection", "is_open", "lags"),
    )

    def __init__(self, connection: Connection, batcher: WriteBatcher, write_timeout_s: float) -> None:
        self.connection = connection
        self._send_now = connection.send_now
        self._batcher = batcher
        self._write_timeout_s = write_timeout_s
        self._parts: list[bytes | memoryview] = []
        self._queued = self._last = False
        self._source: StreamSource | None = None
        self._watcher: Watcher | None = None
        self._timer: Any = None
        self.is_open = True
        self.lags = False

    def start(self, source: StreamSource) -> None:
        self._source = source

    def write(self, data: bytes, last: bool = False) -> None:
        """Sends a piece soon, together with all other bytes of this turn. `last` ends the body."""
        self._last |= last
        chunk = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
        if last:
            chunk += LAST_CHUNK
        if chunk:
            self.put(chunk)

    def put(self, data: bytes) -> None:
        """Sends `data`, such as a chunk with its frame, soon, together with all other bytes of this turn."""
        self._parts.append(data)
        if not self.lags and not self._queued:
            self._queued = True
            self._batcher.put(self.flush)

    send_soon = put

    def break_off(self) -> None:
        self.connection.shut()
        self.client_gone()

    def flush(self) -> None:
        self._queued = False
        if self.lags or not self.is_open:
            return
        if self._parts:
            if not self._send():
                return
            if self._parts:
                self.lag()
                return
        self.all_sent()

    def _send(self) -> bool:
        """Sends what the socket has room for, and keeps the rest; False when the client has gone."""
        parts = self._parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        try:
            sent = self._send_now(data)
        except (BlockingIOError, SSLWantReadError, SSLWantWriteError):
            sent = 0
        except OSError:
            self.client_gone()
            return False
        if sent < len(data):
            parts.append(memoryview(data)[sent:])  # a long body is not copied for each send
        if sent and self._timer is not None:
            self._timer.again(self.break_off)
        return True

    def lag(self) -> None:
        """Waits for room in the socket, and takes the source's next slices then."""
        self.lags = True
        loop, limit_s = gevent.get_hub().loop, self._write_timeout_s
        self._watcher = loop.io(self.connection.fileno(), WRITE)
        self._watcher.start(self._writable)
        self._timer = loop.timer(limit_s, limit_s)
        self._timer.start(self.break_off)

    def _writable(self) -> None:
        if self._parts or self._refill():
            if self._parts:
                self._send()
        elif self.is_open:
            self.catch_up()
            self.all_sent()

    def _refill(self) -> bool:
        if self._last or self._source is None:
            return False
        try:
            data, more, last = self._source.next_slice()
        except Exception:  # rendering failed after the head was sent: only closing is left
            log.exception("an answer broke off")
            self.break_off()
            return False
        self.write(data, last)
        return bool(data) or more or last

    def catch_up(self) -> None:
        self.lags = False
        for watcher in (self._watcher, self._timer):
            if watcher is not None:
                watcher.stop()
                watcher.close()
        self._watcher = self._timer = None

    def all_sent(self) -> None:
        """Called when the socket has taken all bytes so far."""
        if self._last:
            self.close()

    def client_gone(self) -> None:
        """Called when the client has gone, or takes no more bytes: closes, then calls `source.leave`."""
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
