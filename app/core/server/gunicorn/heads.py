"""Heads of requests for known routes, parsed once, and heads of responses."""

import re
import time
from collections.abc import Callable, Iterable, Mapping
from email.utils import formatdate
from functools import lru_cache

from gunicorn import SERVER
from gunicorn.util import is_hoppish
from msgspec import Struct

from app.core.server.http.response import JSON, STATUS_LINES, Response
from app.core.server.http.route import PlainHandler, Route

MAX_HEAD_BYTES = 8192
MAX_FIELDS = 64
MAX_LENGTH_DIGITS = 9
"""Most digits of a Content-Length."""
MAX_CACHED_HEADS = 512
MAX_CACHED_HEADER_LINES = 256
"""Most cached header lines of answers; clients can fill about 8 KiB of each, so 2 MiB at most."""
FIELDS = re.compile(rb"([!#$%&'*+.^`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*\r\n)*\r\n")
"""Headers (RFC 9112 section 5) and the empty line.

No name has an underscore, which may be mistaken for a hyphen.
"""
GENERAL_HEADERS = {
    "transfer-encoding",
    "expect",
    "upgrade",
    "content-encoding",
    "te",
    "trailer",
}
"""Headers of requests for gunicorn's parser.

Exceptions: `Connection: keep-alive`, and `close` of a request without a body.
"""
CLOSES_CONNECTION = {"keep-alive": False, "close": True}
"""Values of the header Connection that `RequestHeads` accepts."""
METHODS = frozenset(("GET", "POST", "PUT", "DELETE", "PATCH"))
"""Methods that `RequestHeads` accepts; HEAD needs an answer without its body."""
HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.~!$&'()*+,;=%-]+)(:\d*)?", re.ASCII)
"""A valid Host (RFC 9112 section 3.2): a name or address, which is required, and perhaps a port."""


class RequestHead(Struct, frozen=True):
    """Head of an HTTP/1.1 request for `route`, with a body of `content_length` bytes.

    `headers` has lower-case names. `closes`: the client wants no further answer on this connection.
    `plain` recognizes plain requests; None if the head shows that the request is not plain.
    """

    route: Route
    method: str
    headers: Mapping[str, str]
    content_length: int
    closes: bool = False
    plain: PlainHandler | None = None


class RequestHeads:
    """Parses heads of requests for `routes`, which have no variable parts.

    The last heads are cached.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes: dict[bytes, tuple[Route, str]] = {}
        """Routes and methods by request line."""
        for route in routes:
            for method in METHODS.intersection(route.methods):
                self._routes[f"{method} {route.path} HTTP/1.1".encode()] = (route, method)
        self._max_bytes = MAX_HEAD_BYTES
        self._max_fields = MAX_FIELDS
        self.read: Callable[[bytes], RequestHead | None] = lru_cache(maxsize=MAX_CACHED_HEADS)(
            self._parse
        )
        """Returns the head in the given bytes, which include the empty line.

        Returns None for a request that is left to gunicorn's parser.
        """

    def apply_limits(self, max_bytes: int, max_fields: int) -> None:
        """Leaves heads that exceed gunicorn's limits to its parser; 0: no limit."""
        self._max_bytes = min(MAX_HEAD_BYTES, max_bytes or MAX_HEAD_BYTES)
        self._max_fields = min(MAX_FIELDS, max_fields or MAX_FIELDS)

    def _parse(self, data: bytes) -> RequestHead | None:
        line, _, lines = data.partition(b"\r\n")
        if line not in self._routes:
            return None
        route, method = self._routes[line]
        if len(data) > self._max_bytes or FIELDS.fullmatch(lines) is None:
            return None
        headers = _parse_fields(lines)
        if headers is None or len(headers) > self._max_fields:
            return None
        if not HOST.fullmatch(headers.get("host", "")):
            return None
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > MAX_LENGTH_DIGITS:
            return None
        content_length = int(length)
        closes = CLOSES_CONNECTION[headers.get("connection", "keep-alive").lower()]
        if content_length and (closes or not _is_json(headers)):
            return None
        plain = None
        if _may_be_plain(route, method, headers):
            plain = route.plain
        return RequestHead(route, method, headers, content_length, closes, plain)


def _is_json(headers: Mapping[str, str]) -> bool:
    """Returns whether the body is declared as JSON, perhaps with a charset."""
    return headers.get("content-type", "").partition(";")[0] == JSON


def _may_be_plain(route: Route, method: str, headers: Mapping[str, str]) -> bool:
    """Returns whether the body alone decides if the request is plain."""
    if route.plain is None or method != route.methods[0]:
        return False
    if not route.plain.special_headers.isdisjoint(headers):
        return False
    return method == "GET" or headers.get("content-type") == JSON


def _parse_fields(lines: bytes) -> dict[str, str] | None:
    """Returns the headers by name; None for a repeated header, and for one of GENERAL_HEADERS."""
    headers: dict[str, str] = {}
    for field in lines.decode("latin-1").split("\r\n")[:-2]:
        name, _, value = field.partition(":")
        name = name.lower()
        value = value.strip(" \t")
        if name in headers:
            return None
        if name == "connection":
            if value.lower() not in CLOSES_CONNECTION:
                return None
        elif name in GENERAL_HEADERS:
            return None
        headers[name] = value
    return headers


def response_head(response: Response, closes: bool) -> bytes:
    """Returns status line and headers as gunicorn sends them, without `Connection: keep-alive`.

    `closes`: no further answer follows on the connection.

    Raises:
        ValueError: A header has a line break, or a character beyond Latin-1.
    """
    status = STATUS_LINES.get(response.status) or response.status_line
    headers = response.headers
    is_chunked = response.streamed
    if not isinstance(response.body, bytes):
        is_chunked = "Content-Length" not in headers
    head = _default_head(status, int(time.time()), closes, is_chunked)
    return head + _header_lines(tuple(headers.items()))


@lru_cache(maxsize=MAX_CACHED_HEADER_LINES)
def _header_lines(headers: tuple[tuple[str, str], ...]) -> bytes:
    """Returns the lines of an application's headers, and the empty line.

    They are cached: most answers have the headers of an earlier one. Leaves out headers for a
    single connection, which are gunicorn's.
    """
    lines = ""
    line_count = 0
    for name, value in headers:
        if not is_hoppish(name):
            lines += f"{name}: {value}\r\n"
            line_count += 1
    if not lines.count("\n") == lines.count("\r") == line_count:
        raise ValueError("a response header contains a line break")
    return f"{lines}\r\n".encode("latin-1")


@lru_cache(maxsize=16)
def _default_head(status: str, second: int, closes: bool, is_chunked: bool) -> bytes:
    """Returns gunicorn's status line and headers, without the application's, at a Unix second."""
    date = formatdate(second, usegmt=True)
    head = f"HTTP/1.1 {status}\r\nServer: {SERVER}\r\nDate: {date}\r\n"
    if closes:  # vLLM's server names no kept connection
        head += "Connection: close\r\n"
    if is_chunked:
        head += "Transfer-Encoding: chunked\r\n"
    return head.encode("latin-1")


def has_bare_line_feed(data: bytes) -> bool:
    """True if a line of a head, complete or not, ends without a carriage return.

    See RFC 9112 section 2.2.
    """
    return data.count(b"\n") != data.count(b"\r\n")
