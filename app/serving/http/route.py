"""Routes: methods, path, handler and error format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from app.serving.http.context import MatchedRoute, RequestContext
from app.serving.http.response import PendingResponse, Response

Handler = Callable[[RequestContext], Response]
ErrorHandler = Callable[[Exception], Response]


class PlainHandler(Protocol):
    """Answers plain requests without ever waiting."""

    special_headers: frozenset[str]
    """Names, in lower case, of headers that no plain request has."""

    def recognise(self, body: bytes) -> object | None:
        """Returns the input of `answer` for a plain request; None, with nothing drawn, for any other."""

    def answer(self, context: RequestContext, request: Any) -> Response | PendingResponse:
        """Answers a recognised request. Raises errors that `Route.on_error` handles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route(MatchedRoute):
    """A handler for `methods` of `path`, whose variable parts are in braces, as in vLLM.

    `handle` may wait, and raises errors that `on_error` turns into a response. `plain` answers the first of
    `methods` without ever waiting. Its `recognise` gets the whole body, and returns None, with nothing drawn
    or counted, when `handle` has to answer.
    """

    methods: tuple[str, ...]
    handle: Handler
    plain: PlainHandler | None = None


class Probe:
    """Answers a GET request by `handle`, which never waits: without a greenlet and without Flask."""

    special_headers = frozenset(("content-length", "content-type"))
    """Headers of requests with a body: a probe reads none."""

    def __init__(self, handle: Handler) -> None:
        self._handle = handle

    def recognise(self, body: bytes) -> object:
        return self

    def answer(self, context: RequestContext, request: object) -> Response:
        return self._handle(context)


def get(path: str, handle: Handler) -> Route:
    return Route(methods=("GET",), path=path, handle=handle)


def probe(path: str, handle: Handler, *more_methods: str) -> Route:
    """Returns a route for GET and `more_methods`; `handle` never waits, and plain GET requests skip Flask."""
    return Route(methods=("GET", *more_methods), path=path, handle=handle, plain=Probe(handle))


def post(
    path: str, handle: Handler, on_error: ErrorHandler | None = None, plain: PlainHandler | None = None
) -> Route:
    return Route(methods=("POST",), path=path, handle=handle, on_error=on_error, plain=plain)
