"""An HTTP client that lets other greenlets run while it waits."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from types import MappingProxyType
from urllib.parse import urlsplit

import gevent
import gevent.socket
import gevent.ssl
from msgspec import Struct

from config import ConfigError

COMPLETIONS = "/v1/completions"
JSON = {"Content-Type": "application/json"}
ROUTED_TO = "x-routed-to"
"""Response header with the pod that a proxy chose."""
PORTS = {"http": 80, "https": 443}
NOTHING: Mapping[str, str] = MappingProxyType({})


class HttpConnection(HTTPConnection):
    """One connection to `address` (host:port). Waiting longer than `timeout_s` raises TimeoutError."""

    def __init__(self, address: str, timeout_s: float) -> None:
        host, _, port = address.rpartition(":")
        super().__init__(host, int(port))
        self._timeout_s = timeout_s
        self._open: socket.socket | None = None

    def connect(self) -> None:
        """Opens the connection. Raises OSError when the port is closed."""
        self._open = self.sock = gevent.socket.create_connection((self.host, self.port), self._timeout_s)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def cut(self) -> None:
        if self._open is not None:
            with suppress(OSError):
                self._open.shutdown(socket.SHUT_RDWR)


class SecureConnection(HttpConnection):
    """A TLS connection that verifies the server's certificate."""

    default_port = PORTS["https"]

    def connect(self) -> None:
        """Opens the connection. Raises OSError when the port is closed or the certificate is not valid."""
        super().connect()
        context = gevent.ssl.create_default_context()
        self._open = self.sock = context.wrap_socket(self.sock, server_hostname=self.host)


class Target(Struct, frozen=True):
    """The server that receives requests; `prefix` precedes their paths."""

    scheme: str
    host: str
    port: int
    prefix: str

    @classmethod
    def of(cls, url: str) -> Target:
        """Reads a base URL; a final /v1 is dropped, as paths include it. Raises ConfigError."""
        try:
            parts = urlsplit(url)
            port = parts.port or PORTS.get(parts.scheme, 0)
        except ValueError as error:
            raise ConfigError(f"target {url}: {error}") from None
        if not port or not parts.hostname:
            raise ConfigError(f"target {url}: must be like http://host:8000 or https://host")
        return cls(parts.scheme, parts.hostname, port, parts.path.rstrip("/").removesuffix("/v1"))

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def connection(self, timeout_s: float) -> HttpConnection:
        kind = SecureConnection if self.scheme == "https" else HttpConnection
        return kind(self.address, timeout_s)


Answer = tuple[int, bytes]
"""Status and body."""


def exchange(
    address: str,
    method: str,
    path: str,
    body: bytes | None = None,
    timeout_s: float = 5.0,
    headers: Mapping[str, str] = NOTHING,
) -> Answer:
    """Sends one request and returns the response. Raises OSError for any failure."""
    headers = {**headers, **({} if body is None else JSON)}
    with closing(HttpConnection(address, timeout_s)) as connection:
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        except HTTPException as error:
            raise ConnectionError(f"{address}: {error!r}") from error
