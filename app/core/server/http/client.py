"""An HTTP client that lets other greenlets run while it waits: start with `exchange`."""

import socket
from collections.abc import Mapping
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from urllib.parse import unquote, urlsplit

import gevent
import gevent.socket
import gevent.ssl
from msgspec import Struct

from app.core.server.http.numbers import header_number
from config import ConfigError
from config.files import max_file_bytes

COMPLETIONS = "/v1/completions"
JSON = {"Content-Type": "application/json"}
ROUTED_TO = "x-routed-to"
"""Response header with the pod that a proxy chose."""
PORTS = {"http": 80, "https": 443}
MAX_QUOTED_LENGTH = 80
"""Most characters of an invalid header in an error message."""
KEYS = ("authorization", "x-api-key")
"""Headers with a client's API key."""

Answer = tuple[int, bytes]
"""Status and body."""


def exchange(
    address: str,
    method: str,
    path: str,
    body: bytes | None = None,
    timeout_s: float = 5.0,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Sends one request and returns the response, which may take `timeout_s` in all.

    Raises:
        OSError: any failure, in one line.
    """
    request_headers = dict(headers or {})
    if body is not None:
        request_headers |= JSON
    with closing(HttpConnection(address, timeout_s)) as connection:
        response, content = whole_response(
            connection, method, path, body=body, headers=request_headers
        )
    return response.status, content


def whole_response(
    connection: "HttpConnection",
    method: str,
    path: str,
    *,
    body: bytes | None,
    headers: Mapping[str, str],
    max_bytes: int | None = None,
) -> tuple[HTTPResponse, bytes]:
    """Sends a request; returns the response and its body. All commands that read a server use it.

    A server may send bytes for ever, or a byte now and then. So the timeout of the connection is
    one for the whole exchange, and the body is limited to `max_bytes`, by default those of a file
    (`max-file-size-mb`).

    Raises:
        OSError: any failure, in one line.
    """
    if max_bytes is None:
        max_bytes = max_file_bytes()
    timeout_s = connection.timeout_s
    try:
        with gevent.Timeout(timeout_s, TimeoutError):
            connection.request(method, path, body, dict(headers))
            with closing(connection.getresponse()) as response:
                content = response.read(max_bytes + 1)
    except TimeoutError:
        raise TimeoutError(f"no whole response within {timeout_s:g} s") from None
    except HTTPException as error:
        raise ConnectionError(f"the response is not valid HTTP: {error!r}") from error
    if len(content) > max_bytes:
        raise ConnectionError(f"the response is larger than {max_bytes >> 20} MiB")
    if response.length:
        raise ConnectionError(f"{response.length} bytes of the response are missing")
    return response, content


class InvalidLengthError(HTTPException):
    """The Content-Length of a response is not a number, or differs between two headers."""


class CheckedResponse(HTTPResponse):
    """A response whose Content-Length is one number (RFC 9110, 8.6)."""

    def begin(self) -> None:
        """Reads status and headers. Equal lengths become one header.

        Raises:
            InvalidLengthError: the lengths differ, or are not numbers.
        """
        super().begin()
        values = self.headers.get_all("content-length")
        if values is None:
            return
        if self.chunked:
            del self.headers["content-length"]  # the coding determines the length (RFC 9112, 6.3)
            return
        lengths = {length.strip() for value in values for length in value.split(",")}
        length = lengths.pop()
        number = header_number(length)
        if lengths or number is None:
            raise InvalidLengthError(
                f"invalid Content-Length: {', '.join(values)[:MAX_QUOTED_LENGTH]}"
            )
        del self.headers["content-length"]
        self.headers["Content-Length"] = length
        if self.length is None:  # http.client does not read "5, 5"
            self.length = number


class HttpConnection(HTTPConnection):
    """One connection to `address` (host:port), by HTTPS with `tls`.

    Raises:
        TimeoutError: connecting (with TLS), the head of the response, or the next part of its body
            takes longer than `timeout_s`.
    """

    response_class = CheckedResponse

    def __init__(
        self, address: str, timeout_s: float, tls: gevent.ssl.SSLContext | None = None
    ) -> None:
        host, _, port = address.rpartition(":")
        super().__init__(host, int(port))
        self.timeout_s = timeout_s
        self._tls = tls
        self.default_port = PORTS["http"] if tls is None else PORTS["https"]
        self._connected_sock: socket.socket | None = None

    def connect(self) -> None:
        """Opens the connection.

        Raises:
            OSError: the port is closed, or the certificate is not valid.
        """
        # The timeout of a socket is for each read: a byte now and then would end no handshake and
        # no head.
        with gevent.Timeout(self.timeout_s, TimeoutError):
            self.sock = gevent.socket.create_connection((self.host, self.port), self.timeout_s)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                self.sock = self._tls.wrap_socket(self.sock, server_hostname=self.host)
        self._connected_sock = self.sock

    def getresponse(self) -> HTTPResponse:
        """Reads status and headers.

        Raises:
            OSError: the connection breaks off.
            HTTPException: the response is not valid.
        """
        with gevent.Timeout(self.timeout_s, TimeoutError):
            return super().getresponse()

    def cut(self) -> None:
        """Shuts the socket down, which ends a read in another greenlet."""
        if self._connected_sock is not None:
            with suppress(OSError):
                self._connected_sock.shutdown(socket.SHUT_RDWR)


class Target(Struct, frozen=True):
    """The server that receives requests; `prefix` precedes their paths."""

    scheme: str
    host: str
    port: int
    prefix: str
    key: str = ""
    """API key for this server, in place of the client's; empty passes the client's on."""
    tls: gevent.ssl.SSLContext | None = None
    """Verifies certificates; created once, as loading the authorities takes 0.1 s."""

    @classmethod
    def from_url(cls, url: str) -> "Target":
        """Reads a base URL, such as https://KEY@host; a final /v1 is dropped, as paths include it.

        Raises:
            ConfigError: the URL is not valid; the message shows no key.
        """
        url_without_key = url.rpartition("@")[2]
        try:
            parts = urlsplit(url)
            port = parts.port or PORTS.get(parts.scheme, 0)
        except ValueError as error:
            raise ConfigError(f"target {url_without_key}: {error}") from None
        if not port or not parts.hostname or parts.scheme not in PORTS:
            raise ConfigError(
                f"target {url_without_key}: must be a URL such as http://host:8000 or https://host"
            )
        return cls(
            scheme=parts.scheme,
            host=parts.hostname,
            port=port,
            prefix=parts.path.rstrip("/").removesuffix("/v1"),
            key=unquote(parts.username or ""),
            tls=gevent.ssl.create_default_context() if parts.scheme == "https" else None,
        )

    @property
    def url(self) -> str:
        """Base URL, without a key."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{self.host}:{self.port}"

    def connection(self, timeout_s: float) -> HttpConnection:
        """Returns a connection, which connects at the first request."""
        return HttpConnection(self.address, timeout_s, self.tls)

    def with_key(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Returns a request's headers, with this server's key where it has one."""
        if not self.key:
            return headers
        keyed = {name: value for name, value in headers.items() if name not in KEYS}
        if "x-api-key" in headers:
            keyed["x-api-key"] = self.key
        else:
            keyed["authorization"] = f"Bearer {self.key}"
        return keyed
