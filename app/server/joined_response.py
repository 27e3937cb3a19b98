"""gunicorn's response, with head and body of a whole answer in one system call."""

from __future__ import annotations

import time
from contextlib import suppress
from email.utils import formatdate
from functools import lru_cache
from typing import Any

from gevent.socket import socket
from gunicorn import SERVER
from gunicorn.http.wsgi import Response


class JoinedResponse(Response):  # type: ignore[misc]
    """Keeps the head back until the first bytes of a body of known length; other answers send it at once.

    Who writes a chunked body past the server may write its end, too, and then calls `ended`.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.headers_sent: bool = False
        self._head = b""
        self._ended = False

    def send_headers(self) -> None:
        if self.headers_sent:
            return
        self.headers_sent = True
        lines = [*self.default_headers(), *(f"{name}: {value}\r\n" for name, value in self.headers), "\r\n"]
        head = "".join(lines).encode("latin-1")
        if self.response_length:
            self._head = head
        else:
            self._send(head)

    def default_headers(self) -> list[str]:
        major, minor = self.req.version
        closes = self.should_close()
        return [default_head(self.status, int(time.time()), closes, self.chunked, f"HTTP/{major}.{minor}")]

    def _emit_body(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        if self.chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self._send(data)

    def _send(self, data: bytes) -> None:
        """Send all of `data`, which nearly always fits at once; gevent would ask for buffer sizes first."""
        sent = 0
        if type(self.sock) is socket:
            with suppress(BlockingIOError):
                sent = self.sock._sock.send(data)
        if sent < len(data):
            self.sock.sendall(data[sent:])

    def ended(self) -> None:
        """The last chunk is out already."""
        self._ended = True

    def close(self) -> None:
        if not self._ended:
            super().close()
        if self._head:
            self._send(self._head)
            self._head = b""


@lru_cache(maxsize=16)
def default_head(status: str, second: int, closes: bool, chunked: bool, version: str = "HTTP/1.1") -> str:
    """What gunicorn sends before an application's own headers, at a Unix second."""
    connection = "close" if closes else "keep-alive"
    lines = (
        f"{version} {status}\r\nServer: {SERVER}\r\nDate: {http_date(second)}\r\nConnection: {connection}\r\n"
    )
    return lines + "Transfer-Encoding: chunked\r\n" if chunked else lines


@lru_cache(maxsize=2)
def http_date(second: int) -> str:
    """The Date header of a Unix second (RFC 9110 section 5.6.7)."""
    return formatdate(second, usegmt=True)
