"""HTTP connections that let other greenlets run while they wait, without patching anything."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse

import gevent.socket

JSON = {"Content-Type": "application/json"}


class Connection(HTTPConnection):
    """One connection to `address` (host:port). What waits longer than `timeout_s` gets a TimeoutError."""

    def __init__(self, address: str, timeout_s: float) -> None:
        host, _, port = address.rpartition(":")
        super().__init__(host, int(port))
        self._timeout_s = timeout_s
        self._open: socket.socket | None = None

    def connect(self) -> None:
        """Open the connection. OSError when nobody is there."""
        self._open = self.sock = gevent.socket.create_connection((self.host, self.port), self._timeout_s)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def cut(self) -> None:
        """End it under the hands of whoever reads from it, who sees the end of the stream."""
        if self._open is not None:
            with suppress(OSError):
                self._open.shutdown(socket.SHUT_RDWR)


def exchange(
    address: str, method: str, path: str, body: bytes | None = None, timeout_s: float = 5.0
) -> tuple[int, bytes]:
    """Status and body of one request. OSError for whatever keeps it from being answered."""
    headers: Mapping[str, str] = JSON if body is not None else {}
    with closing(Connection(address, timeout_s)) as connection:
        try:
            connection.request(method, path, body, headers)
            response: HTTPResponse = connection.getresponse()
            return response.status, response.read()
        except HTTPException as error:
            raise ConnectionError(f"{address}: {error!r}") from error
