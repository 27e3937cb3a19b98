"""Routes of HTTP: path, handler, error format and documentation."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct

from app.core.server.http.context import MatchedRoute, RequestContext
from app.core.server.http.response import PendingResponse, Response, json_response

Handler = Callable[[RequestContext], Response]
ErrorHandler = Callable[[Exception], Response]
Work = Callable[[RequestContext], object]

JSON_MEDIA = "application/json"
STREAM_MEDIA = (JSON_MEDIA, "text/event-stream")
"""Media types of a route that streams on demand."""
BINARY_MEDIA = (JSON_MEDIA, "application/octet-stream")
"""Media types of a route that sends vectors as bytes on demand."""
NO_MEDIA: tuple[str, ...] = ()
"""Media types of a route that answers without a body."""


class PlainHandler(Protocol):
    """Answers plain requests without ever waiting."""

    special_headers: frozenset[str]
    """Names, in lower case, of headers that no plain request has."""

    def recognise(self, body: bytes) -> object | None:
        """Returns the input of `answer` for a plain request; None, with nothing drawn, for others.

        Draws no random numbers for requests that are not plain.
        """

    def answer(self, context: RequestContext, request: Any) -> Response | PendingResponse:
        """Answers a recognized request. Raises errors that `Route.on_error` handles."""


class RouteDocs(Struct, frozen=True, kw_only=True):
    """Types of a route's requests and responses, from which /openapi.json is generated.

    Each attribute has a default, so a route without docs takes no body and answers any JSON or
    text.
    """

    body: tuple[Any, ...] = ()
    """Types of the body; a body must match at least one type."""
    example: Mapping[str, object] = {}
    """A body that succeeds; a `model` in it stands for the served one."""
    body_is_optional: bool = False
    query: type[Struct] | None = None
    """Struct with the parameters of the query."""
    answer: Any = None
    """Type of the JSON of a success."""
    media: tuple[str, ...] | None = None
    """Media types of a success; None for JSON, or for any text where `answer` is not set."""
    errors: tuple[type[Struct], ...] = ()
    """Types of errors besides the usual ones."""
    status: int = 200
    """Status of a success."""


NO_DOCS = RouteDocs()
EMPTY_ANSWER = RouteDocs(media=NO_MEDIA)
ANY_OBJECT = dict[str, object]
"""Type of a body that may be any JSON object."""


class Route(MatchedRoute, frozen=True, kw_only=True):
    """A handler for `methods` of `path`, whose variable parts are in braces, as in vLLM.

    `handle` may wait, and raises errors that `on_error` turns into a response. `plain` answers the
    first of `methods`.
    """

    methods: tuple[str, ...]
    handle: Handler
    plain: PlainHandler | None = None
    docs: RouteDocs = NO_DOCS

    def loaded(self) -> "Route":
        """Returns the route with its own handler and docs, which `late_routes` imports late."""
        return self


class Probe:
    """Answers a GET request by `handle`, which never waits, without a greenlet or Flask."""

    special_headers = frozenset(("content-length", "content-type"))
    """Headers of requests with a body: a probe reads none."""

    def __init__(self, handle: Handler) -> None:
        self._handle = handle

    def recognise(self, body: bytes) -> object:
        """Accepts every request."""
        return self

    def answer(self, context: RequestContext, request: object) -> Response:
        """Answers the request."""
        return self._handle(context)


def get(path: str, handle: Handler, docs: RouteDocs = NO_DOCS) -> Route:
    """Returns a route for GET."""
    return Route(methods=("GET",), path=path, handle=handle, docs=docs)


def probe(path: str, handle: Handler, *more_methods: str, docs: RouteDocs = NO_DOCS) -> Route:
    """Returns a route for GET and `more_methods`.

    `handle` never waits, and plain GET requests skip Flask.
    """
    return Route(
        methods=("GET", *more_methods),
        path=path,
        handle=handle,
        plain=Probe(handle),
        docs=docs,
    )


def post(
    path: str,
    handle: Handler,
    on_error: ErrorHandler | None = None,
    plain: PlainHandler | None = None,
    docs: RouteDocs = NO_DOCS,
) -> Route:
    """Returns a route for POST."""
    return Route(
        methods=("POST",),
        path=path,
        handle=handle,
        on_error=on_error,
        plain=plain,
        docs=docs,
    )


def action(operation: str, work: Work, docs: RouteDocs = NO_DOCS) -> Route:
    """Returns a route, for "METHOD /path", that answers the value of `work` as JSON.

    For None the answer is an empty 200.
    """

    def handle(context: RequestContext) -> Response:
        answer = work(context)
        if answer is None:
            return Response()
        return json_response(answer)

    handle.__doc__ = work.__doc__
    method, _, path = operation.partition(" ")
    return Route(methods=(method,), path=path, handle=handle, docs=docs)
