"""The client's socket of a request.

`Connection` notices a client's leaving while nothing is written, and sends from the hub without a greenlet.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import gevent.socket
from gevent.event import Event

from app.base.clock.clock import Watcher

READ = 1
LOOK_AGAIN_S = 0.05
"""Seconds between two checks of a connection with unread data."""
ESTABLISHED = b"\x01"
"""First byte of Linux' tcp_info while neither side has closed."""


class BrokenOffError(ConnectionResetError):
    """Raised to end an answer early on purpose; the connection has to end, too."""


class Connection:
    """One client's socket (TCP, Unix or TLS).

    `resets` is for bodies that end with the connection (HTTP/1.0): only a reset shows their client that the
    body broke off.
    """

    def __init__(self, sock: gevent.socket.socket | socket.socket, resets: bool = False) -> None:
        self._resets = resets
        self._raw: socket.socket = sock._sock if hasattr(sock, "_sock") else sock
        tls = getattr(sock, "_sslobj", None)
        self.send_now: Callable[[bytes | memoryview], int] = self._raw.send if tls is None else tls.write
        """Sends what fits, without waiting. BlockingIOError, or SSLWantReadError and SSLWantWriteError: no
        room; other OSError: the client has gone.
        """
        self._watcher: Watcher | None = None

    def fileno(self) -> int:
        return self._raw.fileno()

    def watch(self, gone: Callable[[], None]) -> None:
        """Calls `gone` in the hub as soon as the client closes or resets the connection."""
        self._watcher = gevent.get_hub().loop.io(self._raw.fileno(), READ)
        self._watcher.start(self._readable, gone)

    def unwatch(self) -> None:
        if self._watcher is not None:
            self._watcher.stop()
            self._watcher.close()
            self._watcher = None

    def _readable(self, gone: Callable[[], None]) -> None:
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
            self._watcher = gevent.get_hub().loop.timer(LOOK_AGAIN_S, LOOK_AGAIN_S)
            self._watcher.start(self._look_again, gone)

    def _look_again(self, gone: Callable[[], None]) -> None:
        with suppress(OSError):  # a Unix socket has no TCP state
            if self._raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) != ESTABLISHED:
                self.unwatch()
                gone()

    def shut(self) -> None:
        """Breaks the connection: at once, or by a reset when the server closes it."""
        with suppress(OSError):
            if self._resets:
                reset_when_closed(self._raw)
            else:
                self._raw.shutdown(socket.SHUT_RDWR)


def reset_when_closed(sock: socket.socket) -> None:
    """Makes closing `sock` send a reset (RST) instead of an end (FIN)."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextmanager
def leaving(connection: Connection | None) -> Iterator[Event]:
    """Yields an event that is set when the client leaves during the block."""
    gone = Event()
    if connection is not None:
        connection.watch(gone.set)
    try:
        yield gone
    finally:
        if connection is not None:
            connection.unwatch()
