"""A client's socket: notices the client's leaving, and takes bytes from the hub, without waking a
greenlet.

Bytes of one turn of the timer wheel leave together (`WriteBatcher`). When a client does not read,
its socket's buffer fills, and its `StreamTransport` lags until the socket has room. A lagging
transport takes one slice at a time from its source until it has caught up. Other streams do not
wait, and at most one slice is held. Rendering a slice takes up to a millisecond, so each slice
waits for its turn of the event loop (`StreamTransport.take_turn`): sixty sockets that have room at
once would otherwise hold the loop for all of their slices.
"""

import logging
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ssl import SSLWantReadError, SSLWantWriteError
from typing import Any, Protocol

import gevent.socket

from app.base.clock.clock import Watcher

READ, WRITE = 1, 2
LOOK_AGAIN_S = 0.05
"""Seconds between two checks of a connection with unread data."""
ESTABLISHED = b"\x01"
"""First byte of Linux' tcp_info while neither side has closed."""
LAST_CHUNK = b"0\r\n\r\n"
log = logging.getLogger(__name__)


class BrokenOffError(ConnectionResetError):
    """Raised to end an answer early on purpose; the connection has to end, too."""


class Connection:
    """One client's socket (TCP, Unix or TLS).

    `resets` is for bodies that end with the connection (HTTP/1.0): only a reset shows their client
    that the body broke off.
    """

    __slots__ = ("_by_reset", "_leaving", "_raw", "send_now")

    def __init__(self, sock: gevent.socket.socket | socket.socket, resets: bool = False) -> None:
        self._by_reset = resets
        self._raw: socket.socket = sock._sock if hasattr(sock, "_sock") else sock
        tls = getattr(sock, "_sslobj", None)
        self.send_now: Callable[[bytes | memoryview], int] = (
            self._raw.send if tls is None else tls.write
        )
        """Sends what fits, without waiting. BlockingIOError, or SSLWantReadError and
        SSLWantWriteError: no room; other OSError: the client has gone. """
        self._leaving: Watcher | None = None

    def watch(self, gone: Callable[[], None]) -> None:
        """Calls `gone` in the hub as soon as the client closes or resets the connection."""
        self._leaving = gevent.get_hub().loop.io(self._raw.fileno(), READ)
        self._leaving.start(self._peek, gone)

    def unwatch(self) -> None:
        if self._leaving is not None:
            self._leaving.stop()
            self._leaving.close()
            self._leaving = None

    def _peek(self, gone: Callable[[], None]) -> None:
        try:
            closed = not self._raw.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            closed = True
        self.unwatch()
        if closed:
            gone()
        elif hasattr(socket, "TCP_INFO"):
            # The data is a pipelined request. The socket stays readable, and a watcher would spin.
            self._leaving = gevent.get_hub().loop.timer(LOOK_AGAIN_S, LOOK_AGAIN_S)
            self._leaving.start(self._look_again, gone)

    def _look_again(self, gone: Callable[[], None]) -> None:
        if self.is_closed_by_client:
            self.unwatch()
            gone()

    @property
    def is_closed_by_client(self) -> bool:
        """True if the client has closed the connection, even if not all that it sent is read.

        Only known for TCP on Linux.
        """
        try:
            return self._raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) != ESTABLISHED
        except (AttributeError, OSError):  # a Unix socket has no TCP state
            return False

    def shut(self) -> None:
        """Breaks the connection: at once, or by a reset when the server closes it."""
        with suppress(OSError):
            if self._by_reset:
                reset_when_closed(self._raw)
            else:
                self._raw.shutdown(socket.SHUT_RDWR)


def reset_when_closed(sock: socket.socket) -> None:
    """Makes closing `sock` send a reset (RST) instead of an end (FIN)."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextmanager
def watched(connection: Connection | None, gone: Callable[[], None]) -> Iterator[None]:
    """Calls `gone` in the hub when the client leaves during the block."""
    if connection is not None:
        connection.watch(gone)
    try:
        yield
    finally:
        if connection is not None:
            connection.unwatch()


class WriteBatcher:
    """Collects writes of many streams or answers while they are rendered, then sends them one after
    another.

    Rendering and sending (kernel code) evict each other's code and data from the processor's
    caches: two passes cost a seventh less per chunk, and a fifth to a quarter less per short
    answer. All queued sends run soon after the turn, or at once when `most` wait. A batcher belongs
    to the hub that first uses it.
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


class StreamTransport(Connection):
    """Bytes for one client: sent at once as far as the socket has room, the rest later.

    Writes a streamed body in HTTP/1.1 chunks (RFC 9112 section 7.1). A client that takes no bytes
    for `write_timeout_s` is cut off. While the transport `lags`, bytes and the source's pieces
    wait.
    """

    __slots__ = (
        *(
            "_batcher",
            "_last",
            "_parts",
            "_queued",
            "_source",
            "_timer",
            "_watcher",
            "_write_timeout_s",
        ),
        *("is_open", "lags"),
    )

    def __init__(
        self, sock: gevent.socket.socket, batcher: WriteBatcher, write_timeout_s: float
    ) -> None:
        super().__init__(sock)
        self._batcher, self._write_timeout_s = batcher, write_timeout_s
        self._parts: list[bytes | memoryview] = []
        self._source: StreamSource | None = None
        self._watcher: Watcher | None = None
        self._timer: Any = None
        self.is_open = True
        self.lags = self._queued = self._last = False

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
        """Sends `data`, such as a chunk with its frame, soon, together with all other bytes of this
        turn.
        """
        self._parts.append(data)
        if not self.lags and not self._queued:
            self._queued = True
            self._batcher.put(self.flush)

    def break_off(self) -> None:
        self.shut()
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
        if self._source is None or self._last:  # no stream goes on
            self.all_sent()

    def _send(self) -> bool:
        """Sends what the socket has room for, and keeps the rest; False when the client has gone."""
        parts = self._parts
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        try:
            sent = self.send_now(data)
        except (BlockingIOError, SSLWantReadError, SSLWantWriteError):
            sent = 0
        except OSError:
            self.client_gone()
            return False
        if sent < len(data):
            parts.append(memoryview(data)[sent:])  # a long body is not copied for each send
        if sent and self._timer is not None:
            self._timer.again(self._time_out)
        return True

    def lag(self) -> None:
        """Waits for room in the socket, and takes the source's next slices then."""
        self.lags = True
        loop, limit_s = gevent.get_hub().loop, self._write_timeout_s
        self._watcher = loop.io(self._raw.fileno(), WRITE)
        self._watcher.start(self._writable)
        self._timer = loop.timer(limit_s, limit_s)
        # The time of the loop is that of its last turn, which may be long ago.
        self._timer.start(self._time_out, update=True)

    def take_turn(self, work: Callable[[], None]) -> None:
        """Hub: runs `work`, which may take a millisecond. Subclasses may delay it."""
        work()

    def _writable(self) -> None:
        """Waits for a turn. The socket is not watched: it would report its room all the time."""
        assert self._watcher is not None
        self._watcher.stop()
        self.take_turn(self._continue)

    def _continue(self) -> None:
        """Sends what waits, or the source's next slice, unless the connection was closed."""
        if not self.is_open or self._watcher is None:
            return
        if self._parts or self._refill():
            if self._parts:
                self._send()
            if self._watcher is not None:
                self._watcher.start(self._writable)
        elif self.is_open:
            self.catch_up()
            self.all_sent()

    def _time_out(self) -> None:
        """Cuts off a client that takes no bytes, but not while the server waits for a turn."""
        if self._watcher is not None and self._watcher.active:
            self.break_off()

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
        """Called when the client has gone, or takes no more bytes:

        closes, then calls `source.leave`.
        """
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
