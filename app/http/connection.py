"""The client's socket underneath a WSGI request.

gunicorn shows it as `environ["gunicorn.socket"]`. It serves two ends: noticing that a client has gone
while nothing is being written, and writing due bytes from the hub without waking a greenlet.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import gevent

from app.http.environ import ENDED

READ = 1
LOOK_AGAIN_S = 0.05
"""How often a connection with unread data is looked at."""
ESTABLISHED = b"\x01"
"""First byte of Linux' tcp_info while neither side has closed."""


class Connection:
    """One client's socket (TCP or Unix, owned by gevent). Not `plain` is TLS, where only `send_all` sends.

    `ended` tells the server that a chunked body has been written to its very end; None under a server that
    cannot be told, and ends it itself.
    """

    def __init__(self, sock: Any, ended: Callable[[], None] | None = None, plain: bool = True) -> None:
        self.ended = ended
        self.plain = plain
        self._sock = sock
        self._raw: socket.socket = sock._sock
        self.send_now: Callable[[bytes], int] = self._raw.send
        """Sends what fits without waiting. BlockingIOError: nothing; other OSError: the client is gone."""
        self._watcher: Any = None

    @classmethod
    def of(cls, environ: Mapping[str, Any]) -> Connection | None:
        """The connection of a request; None without a gevent socket (test clients)."""
        sock = environ.get("gunicorn.socket")
        if sock is None or not hasattr(sock, "_sock"):
            return None
        return cls(sock, environ.get(ENDED), environ.get("wsgi.url_scheme") == "http")

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

    def send_all(self, data: bytes, timeout_s: float) -> None:
        """Send everything, letting others run meanwhile. OSError: gone, or stalled for `timeout_s`."""
        with gevent.Timeout(timeout_s, OSError("the client takes no more data")):
            self._sock.sendall(data)

    def shut(self) -> None:
        """Break the connection, so that whoever still writes to it stops at once."""
        with suppress(OSError):
            self._raw.shutdown(socket.SHUT_RDWR)
