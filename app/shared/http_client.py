"""An HTTP client that lets other greenlets run while it waits: start with `exchange`.

It needs no patched sockets. `app.core.base.http_pool` keeps connections for further requests.
"""

import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from http.client import HTTPException
from http.client import HTTPResponse as RawResponse
from urllib.parse import unquote, urlsplit

import gevent
import gevent.socket
import gevent.ssl
from msgspec import Struct
from urllib3 import BaseHTTPResponse, HTTPResponse
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError
from urllib3.exceptions import TimeoutError as ReadTimeoutError
from urllib3.util import SKIP_HEADER

from app.core.server.http.numbers import header_number
from config import ConfigError
from config.files import max_file_bytes

COMPLETIONS = "/v1/completions"
JSON = {"Content-Type": "application/json"}
ROUTED_TO = "x-routed-to"
"""Response header with the pod that a proxy chose."""
PORTS = {"http": 80, "https": 443}
PIECE_BYTES = 65536
"""Most bytes of one read of a streamed body."""
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
) -> tuple[BaseHTTPResponse, bytes]:
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
        with _os_errors(timeout_s):
            connection.request(method, path, body, headers)
            with closing(connection.getresponse()) as response:
                content = response.read(max_bytes + 1)
    except TimeoutError:
        raise TimeoutError(f"no whole response within {timeout_s:g} s") from None
    if len(content) > max_bytes:
        raise ConnectionError(f"the response is larger than {max_bytes >> 20} MiB")
    if response.length_remaining:
        raise ConnectionError(f"{response.length_remaining} bytes of the response are missing")
    return response, content


def pieces_of(response: BaseHTTPResponse, timeout_s: float) -> Iterator[bytes]:
    """Yields the parts of a body when they arrive.

    Raises:
        OSError: the body breaks off; TimeoutError if the next part, with the size of its chunk,
            takes longer than `timeout_s`.
    """
    piece = _next_piece(response, timeout_s)
    while piece:
        yield piece
        piece = _next_piece(response, timeout_s)


def _next_piece(response: BaseHTTPResponse, timeout_s: float) -> bytes:
    with _os_errors(timeout_s):
        return response.read1(PIECE_BYTES)


@contextmanager
def _os_errors(timeout_s: float) -> Iterator[None]:
    """Limits the time of the block, and raises any failure of the server as an OSError."""
    try:
        with gevent.Timeout(timeout_s, TimeoutError):
            yield
    except ReadTimeoutError as error:
        raise TimeoutError(str(error)) from error
    except (HTTPException, HTTPError) as error:
        raise ConnectionError(f"the response is not valid HTTP: {error!r}") from error


class InvalidLengthError(HTTPException):
    """The Content-Length of a response is not a number, or differs between two headers."""


class CheckedResponse(RawResponse):
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


class HttpConnection:
    """One connection to `address` (host:port), by HTTPS with `tls`. Bodies are not decoded.

    Raises:
        TimeoutError: connecting (with TLS), the head of the response, or the next part of its body
            takes longer than `timeout_s`.
    """

    def __init__(
        self, address: str, timeout_s: float, tls: gevent.ssl.SSLContext | None = None
    ) -> None:
        host, _, port = address.rpartition(":")
        self.timeout_s = timeout_s
        self._tls = tls
        # The class decides which port the Host header leaves out.
        kind = HTTPConnection if tls is None else HTTPSConnection
        self._connection = kind(host, int(port), timeout=timeout_s)
        self._connection.response_class = CheckedResponse
        self._connected_sock: socket.socket | None = None

    def connect(self) -> None:
        """Opens the connection.

        Raises:
            OSError: the port is closed, or the certificate is not valid.
        """
        address = (self._connection.host, self._connection.port)
        # The timeout of a socket is for each read: a byte now and then would end no handshake and
        # no head.
        with gevent.Timeout(self.timeout_s, TimeoutError):
            sock = gevent.socket.create_connection(address, self.timeout_s)
            self._connection.sock = sock
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_hostname=self._connection.host)
                self._connection.sock = sock
        self._connected_sock = sock

    @property
    def sock(self) -> socket.socket:
        """The socket of an open connection."""
        assert self._connected_sock is not None
        return self._connected_sock

    def request(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Sends a request; connects if needed. The library adds only Host, lengths and codings.

        Raises:
            OSError: the port is closed, or the connection breaks off.
            ValueError: a header is not valid.
        """
        if self._connection.sock is None:
            self.connect()
        self._connection.request(
            method,
            path,
            body,
            {"User-Agent": SKIP_HEADER, **(headers or {})},
            preload_content=False,
            decode_content=False,
        )

    def getresponse(self) -> HTTPResponse:
        """Reads status and headers.

        Raises:
            OSError: the connection breaks off, or the response is not valid.
        """
        with _os_errors(self.timeout_s):
            return self._connection.getresponse()

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

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
