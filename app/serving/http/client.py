"""An HTTP client that lets other greenlets run while it waits, and the relay of proxies."""

import errno
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from urllib.parse import unquote, urlsplit
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import gevent
import gevent.socket
import gevent.ssl
import msgspec
from gevent.pywsgi import WSGIHandler, WSGIServer
from msgspec import Struct

from app.serving.http.client_connection import ClientConnection, watched
from app.serving.http.context import context_of
from config import ConfigError

COMPLETIONS = "/v1/completions"
JSON = {"Content-Type": "application/json"}
ROUTED_TO = "x-routed-to"
"""Response header with the pod that a proxy chose."""
PORTS = {"http": 80, "https": 443}
MOST_SHOWN = 80
"""Most characters of an invalid header in an error message."""
MOST_DIGITS = 18
"""Most digits of a Content-Length."""
KEYS = ("authorization", "x-api-key")
"""Headers with a client's API key."""


class InvalidLengthError(HTTPException):
    """The Content-Length of a response is no number, or differs between two headers."""


class CheckedResponse(HTTPResponse):
    """A response whose Content-Length is one number (RFC 9110, 8.6)."""

    def begin(self) -> None:
        """Reads status and headers.

        Equal lengths become one header; InvalidLengthError for others.
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
        is_number = length.isascii() and length.isdecimal() and len(length) <= MOST_DIGITS
        if lengths or not is_number:
            raise InvalidLengthError(f"invalid Content-Length: {', '.join(values)[:MOST_SHOWN]}")
        del self.headers["content-length"]
        self.headers["Content-Length"] = length
        if self.length is None:  # http.client does not read "5, 5"
            self.length = int(length)


class HttpConnection(HTTPConnection):
    """One connection to `address` (host:port), by HTTPS with `tls`.

    TimeoutError when connecting (with TLS), the head of the response, or the next part of its body
    take longer than `timeout_s`.
    """

    response_class = CheckedResponse

    def __init__(
        self, address: str, timeout_s: float, tls: gevent.ssl.SSLContext | None = None
    ) -> None:
        host, _, port = address.rpartition(":")
        super().__init__(host, int(port))
        self.timeout_s = timeout_s
        self._tls = tls
        self.default_port = PORTS["https" if tls else "http"]
        self._open: socket.socket | None = None

    def connect(self) -> None:
        """Opens the connection.

        Raises OSError when the port is closed or the certificate is not valid.
        """
        # The timeout of a socket is for each read: a byte now and then would end no handshake and
        # no head.
        with gevent.Timeout(self.timeout_s, TimeoutError):
            self.sock = gevent.socket.create_connection((self.host, self.port), self.timeout_s)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                self.sock = self._tls.wrap_socket(self.sock, server_hostname=self.host)
        self._open = self.sock

    def getresponse(self) -> HTTPResponse:
        """Reads status and headers. Raises OSError, and HTTPException for an invalid response."""
        with gevent.Timeout(self.timeout_s, TimeoutError):
            return super().getresponse()

    def cut(self) -> None:
        if self._open is not None:
            with suppress(OSError):
                self._open.shutdown(socket.SHUT_RDWR)


class Target(Struct, frozen=True):
    """The server that receives requests; `prefix` precedes their paths."""

    scheme: str
    host: str
    port: int
    prefix: str
    key: str = ""
    """API key for this server, in place of the client's; empty passes the client's on."""
    tls: gevent.ssl.SSLContext | None = None
    """Verifies certificates; made once, as loading the authorities takes 0.1 s."""

    @classmethod
    def of(cls, url: str) -> "Target":
        """Reads a base URL, such as https://KEY@host; a final /v1 is dropped, as paths include it.

        ConfigError, which shows no key, for another URL.
        """
        shown = url.rpartition("@")[2]
        try:
            parts = urlsplit(url)
            port = parts.port or PORTS.get(parts.scheme, 0)
        except ValueError as error:
            raise ConfigError(f"target {shown}: {error}") from None
        if not port or not parts.hostname or parts.scheme not in PORTS:
            raise ConfigError(f"target {shown}: must be like http://host:8000 or https://host")
        tls = gevent.ssl.create_default_context() if parts.scheme == "https" else None
        prefix, key = parts.path.rstrip("/").removesuffix("/v1"), unquote(parts.username or "")
        return cls(parts.scheme, parts.hostname, port, prefix, key, tls)

    @classmethod
    def by_model(cls, items: Iterable[str]) -> "dict[str, Target]":
        """Reads items, each a URL or model=URL; the model "" is for all others.

        Raises ConfigError.
        """
        targets: dict[str, Target] = {}
        for item in items:
            model, equals, url = item.partition("=")
            if not equals or "://" in model:
                model, url = "", item
            if model in targets:
                raise ConfigError(
                    f"target {item.rpartition('@')[2]}: another target has the same models"
                )
            targets[model] = cls.of(url)
        return targets

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def connection(self, timeout_s: float) -> HttpConnection:
        return HttpConnection(self.address, timeout_s, self.tls)

    def with_key(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Returns a request's headers, with this server's key where it has one."""
        if not self.key:
            return headers
        given = {name: value for name, value in headers.items() if name not in KEYS}
        own = (
            ("x-api-key", self.key)
            if "x-api-key" in headers
            else ("authorization", f"Bearer {self.key}")
        )
        return {**given, own[0]: own[1]}


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
    """Sends one request and returns the response. Raises OSError for any failure."""
    headers = {**(headers or {}), **({} if body is None else JSON)}
    with closing(HttpConnection(address, timeout_s)) as connection:
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        except HTTPException as error:
            raise ConnectionError(f"{address}: {error!r}") from error


# Passing on a request, and its answer to the client: WSGI body, headers, refusals.

READ_TIMEOUT_S = 300.0
"""Longest pause of a pod in seconds, before a response or within it."""
HOP_BY_HOP = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "upgrade",
    )
) | {"transfer-encoding"}
NOT_FORWARDED = HOP_BY_HOP | {"host", "content-length", "expect"}
PIECE = 65536
"""Most bytes of one read; smaller pieces are forwarded at once."""
CLIENT, TARGET = "relay.client", "relay.target"
"""Keys of the client's connection, and of its path and query, in the WSGI environ."""


def pieces_of(response: HTTPResponse, timeout_s: float = READ_TIMEOUT_S) -> Iterator[bytes]:
    """Yields the body. Raises ConnectionResetError when it breaks off, to break off the client's,
    too.

    Its cause is a TimeoutError when the next piece takes longer than `timeout_s`.
    """
    why, cause = "", None
    try:
        while piece := _next_piece(response, timeout_s):
            yield piece
        if response.length:
            why = f"{response.length} bytes are missing"
    except (OSError, HTTPException, ValueError) as error:
        why, cause = repr(error), error
    if why:
        # For this errno the server closes the connection without a log entry and without the body's
        # end.
        raise ConnectionResetError(
            errno.ECONNRESET, f"the pod's answer broke off: {why}"
        ) from cause


def _next_piece(response: HTTPResponse, timeout_s: float) -> bytes:
    """Reads the next piece of a body, with the size of its chunk, which may trickle."""
    with gevent.Timeout(timeout_s, TimeoutError):
        return response.read1(PIECE)


class ClientHandler(WSGIHandler):  # type: ignore[misc]
    """Handler of gevent that also passes the client's connection and target to the application."""

    def get_environ(self) -> WSGIEnvironment:
        environ: WSGIEnvironment = super().get_environ()
        # A token must not wait for the acknowledgement of the previous one.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        environ[CLIENT], environ[TARGET] = ClientConnection(self.socket), self.path
        return environ


def server_of(application: WSGIApplication, host: str = "127.0.0.1", port: int = 0) -> WSGIServer:
    """Returns a server, not yet started and without a log; port 0 is any free one."""
    return WSGIServer(
        (host, port), application, handler_class=ClientHandler, log=None, error_log=None
    )


@contextmanager
def watching(client: ClientConnection | None, left: Callable[[], None]) -> Iterator[None]:
    """Calls `left` in a greenlet when the client closes its side, also while no data can be sent to
    it.
    """
    leaving = gevent.Greenlet(left)
    try:
        with watched(client, leaving.start):
            yield
    finally:
        leaving.kill(block=False)


def request_headers(environ: WSGIEnvironment) -> dict[str, str]:
    headers = context_of(environ).headers
    return {name: value for name, value in headers.items() if value and name not in NOT_FORWARDED}


def refuse(
    start_response: StartResponse, status: str, message: str, pod: str | None = None
) -> Iterable[bytes]:
    code, _, kind = status.partition(" ")
    body = {"error": {"message": message, "type": kind, "param": None, "code": int(code)}}
    return reply(start_response, status, body, [(ROUTED_TO, pod)] if pod else [])


def reply(
    start_response: StartResponse,
    status: str,
    body: object,
    headers: Sequence[tuple[str, str]] = (),
) -> Iterable[bytes]:
    text = msgspec.json.encode(body)
    sizes = [("Content-Type", "application/json"), ("Content-Length", str(len(text)))]
    start_response(status, [*sizes, *headers])
    return [text]
