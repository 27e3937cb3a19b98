"""A route: which requests a function answers, and how its errors look."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec import Struct

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

    `handle` may wait; it raises what `on_error` makes a response of. `plain`, where there is one, is the same
    without ever waiting, for requests that ask for nothing special: given the whole body, it returns None,
    with nothing drawn or counted, when `handle` has to answer.
    """

    methods: tuple[str, ...]
    path: str
    handle: Handler
    on_error: ErrorHandler | None = None
    plain: PlainHandler | None = None
    bodies: tuple[type[Struct], ...] = ()
    """What a body may be, for those who read about the route; `handle` decodes it."""


def get(path: str, handle: Handler) -> Route:
    """A route of GET requests."""
    return Route(methods=("GET",), path=path, handle=handle)


def post(
    path: str,
    handle: Handler,
    on_error: ErrorHandler | None = None,
    plain: PlainHandler | None = None,
    body: type[Struct] | tuple[type[Struct], ...] = (),
) -> Route:
    """A route of POST requests; their body is `body`, or one of these."""
    bodies = body if isinstance(body, tuple) else (body,)
    return Route(methods=("POST",), path=path, handle=handle, on_error=on_error, plain=plain, bodies=bodies)
