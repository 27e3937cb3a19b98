"""Request heads of the fast path, parsed once and cached by their bytes, and response heads."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from email.utils import formatdate
from functools import lru_cache
from types import SimpleNamespace

import httptools
from gunicorn import SERVER
from msgspec import Struct

from app.serving.http.response import STATUS_LINES, Response
from app.serving.http.route import Route

MOST_HEAD_BYTES = 8192
MOST_FIELDS = 64
MOST_DIGITS = 9
HEAD_OVERHEAD_BYTES = 2048
"""Estimated memory of a cached head besides its bytes: the dictionary and its strings."""
LIMIT_BYTES = 1 << 20
GENERAL = {"transfer-encoding", "expect", "upgrade", "connection", "content-encoding", "te", "trailer"}
"""Headers for the general path. Exceptions: `Connection: keep-alive`, and `close` of a GET request."""
CONNECTION = {"keep-alive": False, "close": True}
HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.~!$&'()*+,;=%-]+)(:\d*)?", re.ASCII)
"""A valid Host (RFC 9112 section 3.2): a name or address, which is required, and perhaps a port."""


class RequestHead(Struct, frozen=True):
    """Head of an HTTP/1.1 request for `route`, with a body of `content_length` bytes.

    `headers` has lower-case names. `closes`: the client wants no further answer on this connection.
    """

    route: Route
    method: str
    headers: Mapping[str, str]
    content_length: int
    closes: bool = False


class RequestHeads:
    """Parses heads of requests for the plain `routes`, and caches them.

    The cache holds up to `limit_bytes` in all; the oldest head is dropped first.
    """

    def __init__(self, routes: Iterable[Route], limit_bytes: int = LIMIT_BYTES) -> None:
        plain = [route for route in routes if route.plain is not None]
        self._routes = {(route.methods[0].encode(), route.path.encode()): route for route in plain}
        self._known: dict[bytes, RequestHead] = {}
        self.size_bytes = 0
        self.limit_bytes = limit_bytes
        self._most_bytes, self._most_fields = MOST_HEAD_BYTES, MOST_FIELDS

    def keep_to(self, field_bytes: int, fields: int) -> None:
        """Leaves heads that exceed gunicorn's limits to the general path; 0: no limit."""
        self._most_bytes = min(MOST_HEAD_BYTES, field_bytes or MOST_HEAD_BYTES)
        self._most_fields = min(MOST_FIELDS, fields or MOST_FIELDS)

    def read(self, data: bytes) -> RequestHead | None:
        """Returns the head in `data`, which includes the empty line; None: for the general path."""
        head = self._known.get(data)
        if head is None and (head := self._parse(data)) is not None:
            self._known[data] = head
            self.size_bytes += len(data) + HEAD_OVERHEAD_BYTES
            while self.size_bytes > self.limit_bytes:
                oldest = next(iter(self._known))
                del self._known[oldest]
                self.size_bytes -= len(oldest) + HEAD_OVERHEAD_BYTES
        return head

    def _parse(self, data: bytes) -> RequestHead | None:
        method, _, rest = data[: data.find(b"\r\n")].partition(b" ")
        route = self._routes.get((method, rest.removesuffix(b" HTTP/1.1")))
        if route is None or route.plain is None or len(data) > self._most_bytes or has_bare_line_feed(data):
            return None
        fields: list[tuple[bytes, bytes]] = []
        listener = SimpleNamespace(on_header=lambda name, value: fields.append((name, value)))
        parser = httptools.HttpRequestParser(listener)
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            return None
        if parser.get_http_version() != "1.1" or len(fields) > self._most_fields:
            return None
        headers: dict[str, str] = {}
        for raw_name, raw_value in fields:
            name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
            if name in headers or "_" in name:
                return None
            if name in GENERAL and not (name == "connection" and value.lower() in CONNECTION):
                return None
            headers[name] = value.strip(" \t")
        is_special = not route.plain.special_headers.isdisjoint(headers)
        if is_special or not HOST.fullmatch(headers.get("host", "")):
            return None
        closes = CONNECTION[headers.get("connection", "keep-alive").lower()]
        if route.methods[0] == "GET":
            return RequestHead(route, "GET", headers, 0, closes)
        length = headers.get("content-length", "")
        is_json = headers.get("content-type") == "application/json"
        if closes or not is_json or not length.isdecimal() or len(length) > MOST_DIGITS:
            return None
        return RequestHead(route, "POST", headers, int(length))


def response_head(response: Response, closes: bool = False) -> bytes:
    """Returns status line and headers as gunicorn sends them; `closes`: no further answer follows."""
    status = STATUS_LINES.get(response.status) or response.status_line
    chunked = response.streamed or type(response.body) is not bytes
    head = default_head(status, int(time.time()), closes, chunked)
    for name, value in response.headers.items():
        head += f"{name}: {value}\r\n"
    return (head + "\r\n").encode("latin-1")


@lru_cache(maxsize=16)
def default_head(status: str, second: int, closes: bool, chunked: bool, version: str = "HTTP/1.1") -> str:
    """Returns gunicorn's status line and headers before the application's headers, at a Unix second."""
    connection, date = "close" if closes else "keep-alive", _http_date(second)
    lines = f"{version} {status}\r\nServer: {SERVER}\r\nDate: {date}\r\nConnection: {connection}\r\n"
    return lines + "Transfer-Encoding: chunked\r\n" if chunked else lines


@lru_cache(maxsize=2)
def _http_date(second: int) -> str:
    return formatdate(second, usegmt=True)  # as RFC 9110 section 5.6.7 has it


def has_bare_line_feed(data: bytes) -> bool:
    """True if a line of a head, complete or not, ends without a carriage return (RFC 9112 section 2.2)."""
    return data.count(b"\n") != data.count(b"\r\n")
