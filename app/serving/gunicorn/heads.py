"""Request heads of the fast path, parsed once, and response heads."""

import re
import time
from collections.abc import Callable, Iterable, Mapping
from email.utils import formatdate
from functools import lru_cache

from gunicorn import SERVER
from msgspec import Struct

from app.serving.http.response import STATUS_LINES, Response
from app.serving.http.route import Route

MOST_HEAD_BYTES = 8192
MOST_FIELDS = 64
MOST_DIGITS = 9
KEPT_HEADS = 512
FIELDS = re.compile(rb"([!#$%&'*+.^`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*\r\n)*\r\n")
"""Headers (RFC 9112 section 5) and the empty line; a name with an underscore may be mistaken for
another.
"""
GENERAL = {
    "transfer-encoding",
    "expect",
    "upgrade",
    "connection",
    "content-encoding",
    "te",
    "trailer",
}
"""Headers for the general path.

Exceptions: `Connection: keep-alive`, and `close` of a GET request.
"""
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
    """Parses heads of requests for the plain `routes`. The last heads are kept parsed."""

    def __init__(self, routes: Iterable[Route]) -> None:
        plain = [route for route in routes if route.plain is not None]
        self._routes = {
            f"{route.methods[0]} {route.path} HTTP/1.1".encode(): route for route in plain
        }
        self._most_bytes, self._most_fields = MOST_HEAD_BYTES, MOST_FIELDS
        self.read: Callable[[bytes], RequestHead | None] = lru_cache(maxsize=KEPT_HEADS)(
            self._parse
        )
        """Returns the head in the given bytes, which include the empty line; None:

        for the general path.
        """

    def keep_to(self, field_bytes: int, fields: int) -> None:
        """Leaves heads that exceed gunicorn's limits to the general path; 0: no limit."""
        self._most_bytes = min(MOST_HEAD_BYTES, field_bytes or MOST_HEAD_BYTES)
        self._most_fields = min(MOST_FIELDS, fields or MOST_FIELDS)

    def _parse(self, data: bytes) -> RequestHead | None:
        line, _, lines = data.partition(b"\r\n")
        route = self._routes.get(line)
        if route is None or len(data) > self._most_bytes or FIELDS.fullmatch(lines) is None:
            return None
        headers: dict[str, str] = {}
        for field in lines.decode("latin-1").split("\r\n")[:-2]:
            name, _, value = field.partition(":")
            name, value = name.lower(), value.strip(" \t")
            is_general = name in GENERAL and not (
                name == "connection" and value.lower() in CONNECTION
            )
            if name in headers or is_general:
                return None
            headers[name] = value
        is_special = route.plain is None or not route.plain.special_headers.isdisjoint(headers)
        if (
            is_special
            or len(headers) > self._most_fields
            or not HOST.fullmatch(headers.get("host", ""))
        ):
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
    """Returns status line and headers as gunicorn sends them; `closes`:

    no further answer follows.
    """
    status = STATUS_LINES.get(response.status) or response.status_line
    chunked = response.streamed or type(response.body) is not bytes
    head = _default_head(status, int(time.time()), closes, chunked)
    for name, value in response.headers.items():
        head += f"{name}: {value}\r\n"
    return (head + "\r\n").encode("latin-1")


@lru_cache(maxsize=16)
def _default_head(status: str, second: int, closes: bool, chunked: bool) -> str:
    """Returns gunicorn's status line and headers before the application's headers, at a Unix
    second.
    """
    connection, date = "close" if closes else "keep-alive", formatdate(second, usegmt=True)
    lines = f"HTTP/1.1 {status}\r\nServer: {SERVER}\r\nDate: {date}\r\nConnection: {connection}\r\n"
    return lines + "Transfer-Encoding: chunked\r\n" if chunked else lines


def has_bare_line_feed(data: bytes) -> bool:
    """True if a line of a head, complete or not, ends without a carriage return (RFC 9112 section
    2.2).
    """
    return data.count(b"\n") != data.count(b"\r\n")
