"""An HTTP client that lets other greenlets run while it waits, and the reader of completion streams."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from types import MappingProxyType
from urllib.parse import urlsplit

import gevent
import gevent.socket
import gevent.ssl
import msgspec
from msgspec import UNSET, Struct

from config import ConfigError

COMPLETIONS = "/v1/completions"
JSON = {"Content-Type": "application/json"}
ROUTED_TO = "x-routed-to"
"""Response header with the pod that a proxy chose."""
PATIENCE_S = 120.0
"""Longest pause of a response in seconds, before the request counts as failed."""
PORTS = {"http": 80, "https": 443}
NOTHING: Mapping[str, str] = MappingProxyType({})
DATA = b"data: "
DONE = b"[DONE]"


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


class StreamedChoice(Struct):
    text: str | None = None


class PromptDetails(Struct):
    cached_tokens: int | None = None


class StreamedUsage(Struct):
    """Token counts in the last event of a stream."""

    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None


class Event(Struct):
    """An event of a stream, with the fields that the clients read."""

    choices: Sequence[StreamedChoice] = ()
    usage: StreamedUsage | None = None
    error: object = UNSET


class StreamError(Exception):
    """A stream broke off or holds an error; the text is one line."""


class StreamedCompletion(Struct, frozen=True):
    """A whole stream: times of its first event, first text and last event, and its token counts."""

    first_s: float
    text_s: float | None
    last_s: float
    usage: StreamedUsage


def read_stream(lines: Iterable[tuple[float, bytes]]) -> StreamedCompletion:
    """Reads the lines of a stream, each with its time in seconds. Raises StreamError."""
    moments: list[float] = []
    text_s: float | None = None
    usage: StreamedUsage | None = None
    for at_s, line in lines:
        if not line.startswith(DATA):
            continue
        if (data := line.removeprefix(DATA).strip()) == DONE:
            break
        try:
            event = msgspec.json.decode(data, type=Event)
        except msgspec.MsgspecError as error:
            raise StreamError(f"an event of its stream cannot be read: {error}") from None
        if event.error is not UNSET:
            raise StreamError(f"its stream has an error: {one_line(data)}")
        if event.choices:
            moments.append(at_s)
        if text_s is None and any(choice.text for choice in event.choices):
            text_s = at_s
        usage = event.usage or usage
    else:
        raise StreamError("its stream broke off")
    if not moments or usage is None:
        raise StreamError("its stream has no tokens, or no usage")
    return StreamedCompletion(moments[0], text_s, moments[-1], usage)


def one_line(text: bytes) -> str:
    return " ".join(text.decode(errors="replace").split())[:200]
