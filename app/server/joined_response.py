"""gunicorn's response, with head and body of a whole answer in one system call."""

from __future__ import annotations

import time
from contextlib import suppress
from email.utils import formatdate
from functools import lru_cache
from typing import Any

from gevent.socket import socket
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
        lines = [
            f"HTTP/{major}.{minor} {self.status}\r\n",
            f"Server: {self.version}\r\nDate: {http_date(int(time.time()))}\r\n",
            "Connection: close\r\n" if self.should_close() else "Connection: keep-alive\r\n",
        ]
        if self.chunked:
            lines.append("Transfer-Encoding: chunked\r\n")
        return lines

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


@lru_cache(maxsize=2)
def http_date(second: int) -> str:
    """The Date header of a Unix second (RFC 9110 section 5.6.7)."""
    return formatdate(second, usegmt=True)
