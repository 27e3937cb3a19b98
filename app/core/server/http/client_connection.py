"""A client's socket, which notices when the client disconnects."""

import socket
import struct
from collections.abc import Callable
from contextlib import suppress

import gevent.socket

from app.core.base.clock.clock import Watcher

READ = 1
"""Event mask of gevent's loop: the socket has data, or has been closed by the client."""
PEEK_INTERVAL_S = 0.05
"""Seconds between two checks of a connection with unread data."""
ESTABLISHED = b"\x01"
CLOSE_WAIT = b"\x08"
"""First byte of Linux' tcp_info while neither side has closed, and when the client has."""


class BrokenOffError(ConnectionResetError):
    """Raised to end an answer early on purpose; the connection has to end, too."""


class ClientConnection:
    """One client's socket (TCP, Unix or TLS).

    `resets` is for bodies that end with the connection (HTTP/1.0): only a reset shows their client
    that the body broke off.
    """

    __slots__ = ("_closes_by_reset", "_leaving", "_raw", "send_now")

    def __init__(self, sock: gevent.socket.socket | socket.socket, resets: bool = False) -> None:
        self._closes_by_reset = resets
        self._raw: socket.socket = sock._sock if hasattr(sock, "_sock") else sock
        self.send_now: Callable[[bytes | memoryview], int] = self._raw.send
        """Sends what fits, without waiting.

        Raises:
            BlockingIOError, SSLWantReadError, SSLWantWriteError: the socket has no room.
            OSError: the client has disconnected.
        """
        tls = getattr(sock, "_sslobj", None)
        if tls is not None:
            self.send_now = tls.write
        self._leaving: Watcher | None = None

    def watch(self, gone: Callable[[], None]) -> None:
        """Calls `gone` in the hub as soon as the client closes or resets the connection."""
        self._leaving = gevent.get_hub().loop.io(self._raw.fileno(), READ)
        self._leaving.start(self._peek, gone)

    def unwatch(self) -> None:
        """Ends `watch`; has no effect without it."""
        if self._leaving is not None:
            self._leaving.stop()
            self._leaving.close()
            self._leaving = None

    def _peek(self, gone: Callable[[], None]) -> None:
        try:
            is_closed = not self._raw.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            is_closed = True
        self.unwatch()
        if is_closed:
            gone()
        elif hasattr(socket, "TCP_INFO"):
            # The data is a pipelined request. The socket stays readable, and a watcher would spin.
            self._leaving = gevent.get_hub().loop.timer(PEEK_INTERVAL_S, PEEK_INTERVAL_S)
            self._leaving.start(self._check_closed, gone)

    def _check_closed(self, gone: Callable[[], None]) -> None:
        if self.is_closed_by_client:
            self.unwatch()
            gone()

    @property
    def is_closed_by_client(self) -> bool:
        """True if the client has closed the connection, even if sent bytes are still unread.

        Only known for TCP on Linux.
        """
        return tcp_state(self._raw) != ESTABLISHED

    def shut(self) -> None:
        """Breaks the connection: at once, or by a reset when the server closes it."""
        with suppress(OSError):
            if self._closes_by_reset:
                reset_when_closed(self._raw)
            else:
                self._raw.shutdown(socket.SHUT_RDWR)


def tcp_state(sock: socket.socket) -> bytes:
    """Returns the state of a connection; ESTABLISHED where it is not known."""
    try:
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    except (AttributeError, OSError):  # a Unix socket has no TCP state
        return ESTABLISHED


def reset_when_closed(sock: socket.socket) -> None:
    """Makes closing `sock` send a reset (RST) instead of an end (FIN)."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
