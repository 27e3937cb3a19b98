"""The client's socket underneath a request.

It serves two ends: noticing that a client has gone while nothing is being written, and writing due bytes from
the hub without waking a greenlet.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

import gevent
from gevent.event import Event

from app.clock.clock import Watcher

READ = 1
LOOK_AGAIN_S = 0.05
"""How often a connection with unread data is looked at."""
ESTABLISHED = b"\x01"
"""First byte of Linux' tcp_info while neither side has closed."""


class BrokenOffError(ConnectionResetError):
    """An answer ends here on purpose, in the midst; the connection is to end with it."""


class GeventSocket(Protocol):
    """What is needed of a socket of gevent: itself, and the bare one inside."""

    _sock: socket.socket

    def sendall(self, data: bytes) -> None: ...

    def close(self) -> None: ...


class Connection:
    """One client's socket (TCP or Unix). `plain` is gevent's, and not TLS: bytes may be written past the
    server.

    `ended` tells the server that a chunked body has been written to its very end; None under a server that
    cannot be told, and ends it itself. `resets` is for bodies that end with the connection, as in HTTP/1.0:
    their client notices a break by a reset alone.
    """

    def __init__(
        self,
        sock: GeventSocket | socket.socket,
        ended: Callable[[], None] | None = None,
        plain: bool = True,
        resets: bool = False,
    ) -> None:
        self.ended = ended
        self.plain = plain
        self._resets = resets
        self._raw: socket.socket = sock._sock if hasattr(sock, "_sock") else sock
        self.send_now: Callable[[bytes], int] = self._raw.send
        """Sends what fits without waiting. BlockingIOError: nothing; other OSError: the client is gone."""
        self._watcher: Watcher | None = None

    def fileno(self) -> int:
        return self._raw.fileno()

    def watch(self, gone: Callable[[], None]) -> None:
        """Call `gone` in the hub as soon as the client closes or resets the connection."""
        self._watcher = gevent.get_hub().loop.io(self._raw.fileno(), READ)
        self._watcher.start(self._readable, gone)

    def unwatch(self) -> None:
        """Stop watching; harmless when nothing is watched."""
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
            # Data that is not the end is a pipelined request: it stays readable, so watching would spin.
            self._watcher = gevent.get_hub().loop.timer(LOOK_AGAIN_S, LOOK_AGAIN_S)
            self._watcher.start(self._look_again, gone)

    def _look_again(self, gone: Callable[[], None]) -> None:
        """Behind unread data, only the state of the connection tells that the client has gone."""
        with suppress(OSError):  # a Unix socket, of which nothing can be known here
            if self._raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) != ESTABLISHED:
                self.unwatch()
                gone()

    def shut(self) -> None:
        """Break the connection: at once, or by a reset when the server closes it."""
        with suppress(OSError):
            if self._resets:
                reset_when_closed(self._raw)
            else:
                self._raw.shutdown(socket.SHUT_RDWR)


def reset_when_closed(sock: socket.socket) -> None:
    """Have the client get a reset, and not an end, when `sock` is closed."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextmanager
def leaving(connection: Connection | None) -> Iterator[Event]:
    """An event that is set when the client goes while the block lasts."""
    gone = Event()
    if connection is not None:
        connection.watch(gone.set)
    try:
        yield gone
    finally:
        if connection is not None:
            connection.unwatch()
