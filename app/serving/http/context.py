"""One HTTP request, as middleware, routes and error handlers see it, and its body.

A `RequestContext` is made once per request, by the fast path or from a WSGI environ. Modules attach
state to it by type (`keep`, `kept`) instead of string keys.
"""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qs, quote

import gevent
from gunicorn.http.errors import ParseException
from msgspec import Struct

from app.base.clock.pause import pause
from app.serving.http.chunks import BodyTooLarge, BoundedChunks
from app.serving.http.client_connection import ClientConnection
from app.serving.http.errors import ApiError, malformed, too_large
from config.settings import ServerSettings

if TYPE_CHECKING:
    from _typeshed import SupportsRead

    from app.serving.http.response import Response

T = TypeVar("T")
SequenceObserver = Callable[..., Callable[..., None] | None]
Ending = Callable[["RequestContext", "Response"], None]


SCOPE = "x-understudy-scope"
"""Header that names the test of a request, where tests share a server."""


@dataclass(frozen=True, slots=True)
class MatchedRoute:
    """The part of a route that its requests' contexts show; variable parts of `path` are in braces.

    `on_error` builds the response for an error; None where the general error format applies.
    """

    path: str
    on_error: "Callable[[Exception], Response] | None" = field(default=None, kw_only=True)


class RequestContext(Struct, kw_only=True, eq=False, dict=True):
    """Method, path, headers, client, body and connection of one request.

    `headers` has lower-case names. `target` is the path and query as sent; `path` is decoded.
    `arrival_s` is in monotonic seconds.
    """

    method: str
    path: str
    target: str
    headers: Mapping[str, str]
    client: str
    arrival_s: float
    body: bytes | None = None
    """The whole body, once it is read."""
    part: bytes = b""
    """The part of a body that has arrived, where it is not read to its end."""
    source: "SupportsRead[bytes] | None" = None
    """Returns as many bytes as asked, fewer only at the body's end. OSError: the body broke off."""
    connection: ClientConnection | None = None
    http_version: str = "HTTP/1.1"
    scheme: str = "http"
    host: str = ""
    new_id: Callable[[], str] = lambda: "-"
    """Draws an id for a request without one."""
    route: MatchedRoute | None = None
    """None when no route serves the request."""
    label: str = ""
    """Path of the route in metrics; empty when no route takes the path and method."""
    params: Mapping[str, str] = {}
    """The variable parts of the path."""
    way: str = "flask"
    """Serving path: flask, fast or probe."""
    is_generation: bool = False
    """The request asks for generation, and was decoded."""
    rule: str = ""
    """The rule of a script that decided the reply, with its file; empty without one."""
    observers: Sequence[SequenceObserver] = ()
    """Called for each sequence that the engine makes for the request (`app.engine.core.request`).
    """
    endings: Sequence[Ending] = ()
    """Called with the response by the middleware; set when the request begins."""
    _request_id: str = ""
    _kept: dict[type, object] | None = None

    def keep(self, item: object) -> None:
        if self._kept is None:
            self._kept = {}
        self._kept[type(item)] = item

    def kept(self, kind: type[T]) -> T | None:
        found = None if self._kept is None else self._kept.get(kind)
        return found if isinstance(found, kind) else None

    @property
    def request_id(self) -> str:
        """The client's X-Request-Id, or a new id that the first access draws."""
        if not self._request_id:
            self._request_id = self.headers.get("x-request-id") or self.new_id()
        return self._request_id

    @property
    def content_type(self) -> str | None:
        return self.headers.get("content-type")

    @property
    def content_length(self) -> int | None:
        """Declared size of the body in bytes; None without a valid declaration."""
        declared = self.headers.get("content-length", "")
        return int(declared) if declared.isdecimal() and len(declared) < 19 else None

    @cached_property
    def _query(self) -> Mapping[str, Sequence[str]]:
        query = self.target.partition("?")[2].partition("#")[0]
        return parse_qs(query, keep_blank_values=True)

    def arguments(self, name: str) -> Sequence[str]:
        return self._query.get(name, ())

    def query(self) -> dict[str, str]:
        """Returns the last value of each name in the query."""
        return {name: values[-1] for name, values in self._query.items()}


current_request: ContextVar[RequestContext | None] = ContextVar("current_request", default=None)
"""The request that this greenlet serves."""


def bearer(headers: Mapping[str, str]) -> bytes | None:
    """Returns the key of a Bearer Authorization header, as sent; None without one."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.encode("latin-1", "replace") if scheme.lower() == "bearer" else None


def client_name(context: RequestContext) -> str:
    """Returns a short hash of the API key, or else the client's address."""
    headers = context.headers
    key = bearer(headers) or headers.get("x-api-key", "").encode("latin-1", "replace")
    if key:
        return "key:" + hashlib.sha256(key).hexdigest()[:12]
    return f"address:{context.client or 'unknown'}"


# The body, within a size and a time.

MOST_VALUES = 400_000
"""Default of `max-json-values`: decoding this many takes 50 to 150 ms and cannot be interrupted."""
STEP = 1 << 18
"""Bytes per read; other greenlets run between two reads."""
CHUNKED_STEP = 1 << 10
"""Bytes per read of a chunked body: each byte may be one chunk, which Python parses."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """`most_bytes` of body with `most_values` of JSON, delivered within `timeout_s`."""

    most_bytes: int
    timeout_s: float
    most_values: int = MOST_VALUES

    @classmethod
    def of(cls, server: ServerSettings) -> "BodyLimits":
        return cls(
            server.max_request_body_size_mb << 20, server.client_timeout, server.max_json_values
        )

    def read(self, context: RequestContext) -> bytes:
        """Returns the whole body.

        ApiError 413: too large, or too many values; 408: no whole body in time; 400: the body is
        cut short.
        """
        if context.body is not None:
            return context.body
        declared = context.headers.get("content-length") or "0"
        length = int(declared) if declared.isdecimal() else 0
        body = self._receive(context) if length <= self.most_bytes else b""
        if max(length, len(body)) > self.most_bytes:
            raise self._too_large()
        if len(body) < length:
            raise malformed(f"body: {len(body)} of {declared} bytes arrived", "body")
        # Commas and brackets within strings count, too.
        values = sum(map(body.count, (b",", b"[", b"{"))) if len(body) > self.most_values else 0
        if values > self.most_values:
            raise too_large(
                f"The request body has more than {self.most_values} values (--max-json-values)."
            )
        context.body = body
        return body

    def _too_large(self) -> ApiError:
        return too_large(f"The request body is larger than {self.most_bytes >> 20} MiB.")

    def _receive(self, context: RequestContext) -> bytes:
        """Returns at most one byte more than allowed; `context.part` keeps the bytes that arrived."""
        source = context.source
        if source is None:
            return b""
        step = STEP if "content-length" in context.headers else CHUNKED_STEP
        reader = getattr(source, "reader", None)
        if isinstance(reader, BoundedChunks):
            reader.most_bytes = self.most_bytes
        parts: list[bytes] = []
        received, ended = 0, False
        try:
            with gevent.Timeout(self.timeout_s, False):
                while not ended and received <= self.most_bytes:
                    # gunicorn copies its buffer at each read: small reads of a long chunk would
                    # take long.
                    buffer = getattr(reader, "buf", None)
                    held = 0 if buffer is None else buffer.tell()
                    wanted = min(max(step, held), self.most_bytes + 1 - received)
                    parts.append(source.read(wanted))
                    received += len(parts[-1])
                    ended = len(parts[-1]) < wanted
                    if not ended:
                        pause()
        except (OSError, ParseException) as error:
            raise malformed(f"body: it broke off: {error}", "body") from error
        except BodyTooLarge:
            raise self._too_large() from None
        finally:
            context.part = b"".join(parts)
        if not ended and received <= self.most_bytes:
            raise ApiError(
                408,
                "Request Timeout",
                f"The request body did not arrive within {self.timeout_s:g} s.",
            )
        return context.part


# From a WSGI environ.

PATH_CHARACTERS = "/:@!$&'()*+,;=~"
"""Characters of a path that need no percent-encoding (RFC 3986, 3.3), besides letters, digits and
`-._`.
"""
CONTEXT = "understudy.context"
"""Key of the context in a WSGI environ; set by this server's worker, or else by the application."""
_BARE = {"CONTENT_TYPE": "content-type", "CONTENT_LENGTH": "content-length"}


def context_of(environ: Mapping[str, Any], arrival_s: float | None = None) -> RequestContext:
    """Builds the context of a request that arrived at `arrival_s` (monotonic seconds, default now).

    Without a gevent socket (test clients), the context has no connection. Headers are copied: an
    environ that holds a context that holds the environ would be cyclic garbage.
    """
    headers = {}
    for key, value in environ.items():
        if key.startswith("HTTP_") or (key in _BARE and value):
            headers[_BARE.get(key) or key[5:].replace("_", "-").lower()] = value
    scheme, version = environ["wsgi.url_scheme"], environ.get("SERVER_PROTOCOL", "HTTP/1.1")
    path_bytes = environ["PATH_INFO"].encode("latin-1")
    sock: Any = environ.get("gunicorn.socket")
    target = environ.get("RAW_URI") or environ.get("REQUEST_URI")
    if not target:  # the server has kept only the decoded path
        query = environ.get("QUERY_STRING", "")
        target = quote(path_bytes, safe=PATH_CHARACTERS)
        if query:
            target = f"{target}?{query}"
    return RequestContext(
        method=environ["REQUEST_METHOD"],
        path=path_bytes.decode(errors="replace"),
        target=target,
        headers=headers,
        client=environ.get("REMOTE_ADDR") or "",
        arrival_s=time.monotonic() if arrival_s is None else arrival_s,
        source=environ["wsgi.input"],
        connection=ClientConnection(sock, version == "HTTP/1.0")
        if hasattr(sock, "_sock")
        else None,
        http_version=version,
        scheme=scheme,
        host=environ.get("HTTP_HOST", ""),
    )
