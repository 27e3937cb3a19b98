"""One HTTP request and its body, as middleware, routes and error handlers see it.

A `RequestContext` is created once per request, by the fast path or from a WSGI environ. Modules
attach state to it by type (`keep`, `kept`) instead of string keys. See `body_limits` for the body.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import parse_qs, quote

from msgspec import Struct

from app.core.base.callers import current_caller
from app.core.server.http.client_connection import ClientConnection
from app.core.server.http.numbers import header_number

if TYPE_CHECKING:
    from _typeshed import SupportsRead

    from app.core.base.request_memory import Claim, RequestMemory
    from app.core.server.http.fault import Fault
    from app.core.server.http.response import Response

T = TypeVar("T")
SequenceObserver = Callable[..., Callable[..., None] | None]
Ending = Callable[["RequestContext", "Response"], None]

SCOPE = "x-understudy-scope"
"""Header that names the test of a request, where tests share a server."""
CONTEXT = "understudy.context"
"""Key of the context in a WSGI environ; set by this server's worker, or else by the application."""
SMALL_BODY_BYTES = 1 << 12
"""Bodies up to this size are not counted: the memory of a connection is of the same order."""
PATH_CHARACTERS = "/:@!$&'()*+,;=~"
"""Characters of a path that need no percent-encoding, besides letters, digits and `-._`.

See RFC 3986, section 3.3.
"""
HEADERS_WITHOUT_PREFIX = {"CONTENT_TYPE": "content-type", "CONTENT_LENGTH": "content-length"}
"""Keys of headers in a WSGI environ that do not begin with `HTTP_`."""


class MatchedRoute(Struct, frozen=True):
    """The part of a route that its requests' contexts show; variable parts of `path` are in braces.

    `on_error` builds the response for an error; None where the general error format applies.
    """

    path: str
    on_error: "Callable[[Exception], Response] | None" = None


def _no_id() -> str:
    return "-"


class RequestContext(Struct, kw_only=True, eq=False, dict=True):
    """Method, path, headers, client, body and connection of one request.

    `headers` has lower-case names. `target` is the path and query as sent; `path` is decoded.
    `arrival_s` is in monotonic seconds.
    """

    # `dict` lets msgspec's struct have cached properties.

    method: str
    path: str
    target: str
    headers: Mapping[str, str]
    client: str
    arrival_s: float
    body: bytes | None = None
    """The whole body, once it is read."""
    part: bytes = b""
    """The part of a body that has arrived; the whole body if there is no `source`."""
    source: "SupportsRead[bytes] | None" = None
    """Returns the requested number of bytes, fewer only at the body's end.

    Raises:
        OSError: The body breaks off.
    """
    connection: ClientConnection | None = None
    http_version: str = "HTTP/1.1"
    scheme: str = "http"
    host: str = ""
    new_id: Callable[[], str] = _no_id
    """Draws an id for a request without one."""
    route: MatchedRoute | None = None
    """None when no route serves the request."""
    label: str = ""
    """Path of the route in metrics; empty when no route serves the path and method."""
    params: Mapping[str, str] = {}
    """The variable parts of the path."""
    way: str = "flask"
    """Serving path: flask, direct, fast, probe or grpc."""
    is_generation: bool = False
    """The request asks for generation, and was decoded."""
    fault: "Fault | None" = None
    """The fault of the request; None without one."""
    delays: tuple[tuple[int, float], ...] = ()
    """Deliberate waits of a fault: (before token n of the reply, seconds)."""
    rule: str = ""
    """The rule of a script that decided the reply, with its file; empty without one."""
    observers: Sequence[SequenceObserver] = ()
    """Called for each sequence that the engine creates for the request.

    See `app.core.engine.request`.
    """
    endings: Sequence[Ending] = ()
    """Called with the response by the middleware; set when the request begins."""
    memory: "Callable[[], RequestMemory] | None" = None
    """The memory of all requests; None where it is not counted."""
    _request_id: str = ""
    _state_by_type: dict[type, object] | None = None

    def keep(self, state: object) -> None:
        """Attaches `state` to the request; it replaces state of the same type."""
        if self._state_by_type is None:
            self._state_by_type = {}
        self._state_by_type[type(state)] = state

    def kept(self, kind: type[T]) -> T | None:
        """Returns the attached state of type `kind`; None without any."""
        if self._state_by_type is None:
            return None
        state = self._state_by_type.get(kind)
        assert state is None or isinstance(state, kind)
        return state

    @cached_property
    def claim(self) -> "Claim | None":
        """See `Caller`. The claim ends when this object is dropped."""
        return None if self.memory is None else self.memory().claim()

    @property
    def request_id(self) -> str:
        """The client's X-Request-Id, or a new id that the first access draws."""
        if not self._request_id:
            self._request_id = self.headers.get("x-request-id") or self.new_id()
        return self._request_id

    @property
    def content_type(self) -> str | None:
        """Declared media type of the body; None without a declaration."""
        return self.headers.get("content-type")

    @property
    def content_length(self) -> int | None:
        """Declared size of the body in bytes; None without a valid declaration."""
        return header_number(self.headers.get("content-length", ""))

    @cached_property
    def _query(self) -> Mapping[str, Sequence[str]]:
        query = self.target.partition("?")[2].partition("#")[0]
        return parse_qs(query, keep_blank_values=True)

    def arguments(self, name: str) -> Sequence[str]:
        """Returns the values of `name` in the query, in order."""
        return self._query.get(name, ())

    def query(self) -> dict[str, str]:
        """Returns the last value of each name in the query."""
        return {name: values[-1] for name, values in self._query.items()}


current_request = cast("ContextVar[RequestContext | None]", current_caller)
"""The request that this greenlet serves."""


def bearer(headers: Mapping[str, str]) -> bytes | None:
    """Returns the key of a Bearer Authorization header, as sent; None without one."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        return None
    return key.encode("latin-1", "replace")


def context_of(environ: Mapping[str, Any], arrival_s: float | None = None) -> RequestContext:
    """Builds the context of a request that arrived at `arrival_s` (monotonic seconds, default now).

    Without a gevent socket (test clients), the context has no connection. Headers are copied: an
    environ that holds a context that holds the environ would be cyclic garbage.
    """
    headers = {}
    for key, value in environ.items():
        if key.startswith("HTTP_"):
            headers[key[5:].replace("_", "-").lower()] = value
        elif key in HEADERS_WITHOUT_PREFIX and value:
            headers[HEADERS_WITHOUT_PREFIX[key]] = value
    version = environ.get("SERVER_PROTOCOL", "HTTP/1.1")
    path_bytes = environ["PATH_INFO"].encode("latin-1")
    target = environ.get("RAW_URI") or environ.get("REQUEST_URI")
    if not target:  # the server has kept only the decoded path
        target = quote(path_bytes, safe=PATH_CHARACTERS)
        query = environ.get("QUERY_STRING", "")
        if query:
            target = f"{target}?{query}"
    connection = None
    sock: Any = environ.get("gunicorn.socket")
    if hasattr(sock, "_sock"):
        connection = ClientConnection(sock, resets=version == "HTTP/1.0")
    return RequestContext(
        method=environ["REQUEST_METHOD"],
        path=path_bytes.decode(errors="replace"),
        target=target,
        headers=headers,
        client=environ.get("REMOTE_ADDR") or "",
        arrival_s=time.monotonic() if arrival_s is None else arrival_s,
        source=environ["wsgi.input"],
        connection=connection,
        http_version=version,
        scheme=environ["wsgi.url_scheme"],
        host=environ.get("HTTP_HOST", ""),
    )
