"""A route: which requests a function answers, and how its errors look."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from app.http.context import RequestContext
from app.http.response import PendingResponse, Response

Handler = Callable[[RequestContext], Response]
ErrorHandler = Callable[[Exception], Response]


class PlainHandler(Protocol):
    """Answers requests that ask for nothing special, without ever waiting."""

    special_headers: frozenset[str]
    """Names, in lower case, of headers that no plain request has."""

    def recognise(self, body: bytes) -> object | None:
        """What `answer` needs to know of a plain request; None, with nothing drawn, for any other."""

    def answer(self, context: RequestContext, request: Any) -> Response | PendingResponse:
        """The answer to a request that was recognised. It raises what `Route.on_error` answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Answers `methods` of `path`, whose variable parts are in braces, as vLLM writes them.

    `handle` may wait; it raises what `on_error` makes a response of. `plain`, where there is one, answers the
    first of `methods` without ever waiting, if nothing special is asked for: given the whole body, it returns
    None, with nothing drawn or counted, when `handle` has to answer.
    """

    methods: tuple[str, ...]
    path: str
    handle: Handler
    on_error: ErrorHandler | None = None
    plain: PlainHandler | None = None


class Probe:
    """Answers a GET request by `handle`, which never waits: without a greenlet and without Flask."""

    special_headers = frozenset(("content-length", "content-type"))
    """Of requests that have a body, which nobody would read here."""

    def __init__(self, handle: Handler) -> None:
        self._handle = handle

    def recognise(self, body: bytes) -> object:
        """Every request that comes here."""
        return self

    def answer(self, context: RequestContext, request: object) -> Response:
        return self._handle(context)


def get(path: str, handle: Handler) -> Route:
    """A route of GET requests."""
    return Route(methods=("GET",), path=path, handle=handle)


def probe(path: str, handle: Handler, *more_methods: str) -> Route:
    """A route of GET requests that `handle` answers without ever waiting."""
    return Route(methods=("GET", *more_methods), path=path, handle=handle, plain=Probe(handle))


def post(
    path: str, handle: Handler, on_error: ErrorHandler | None = None, plain: PlainHandler | None = None
) -> Route:
    """A route of POST requests."""
    return Route(methods=("POST",), path=path, handle=handle, on_error=on_error, plain=plain)
