"""The middleware around every request, in one list for Flask and the fast path."""

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from app.core.base import Bounded
from app.core.server.http.context import Ending, RequestContext
from app.core.server.http.response import Response

if TYPE_CHECKING:
    from app.core.base.request_memory import RequestMemory

Begin = tuple[str, re.Pattern[str] | None, Callable[[RequestContext], Response | None]]
"""`header` and `route_paths` of a middleware, and its `begin`."""
MAX_PLAIN_BYTES = 1 << 16
MAX_UNCOUNTED_BYTES = 1 << 16
"""Bodies of answers up to this size are not counted: the kernel takes as much."""


class Middleware:
    """Hooks around a route. Requests that begin while `active` is false skip both hooks."""

    active = True
    concerns_plain = True
    """True if `begin` concerns requests on the fast path."""
    header = ""
    """Lower-case name of a header, if `begin` concerns only requests with this header."""
    route_paths: re.Pattern[str] | None = None
    """Matches the paths of the routes that `begin` concerns; None for all requests."""
    most_plain_bytes = MAX_PLAIN_BYTES
    """Longest body of a request on the fast path, in bytes."""
    caches: Mapping[str, Bounded] = MappingProxyType({})
    """Caches in the answer to GET /admin/memory."""

    def begin(self, context: RequestContext) -> Response | None:
        """Returns a response instead of the route's; None to continue."""

    def end(self, context: RequestContext, response: Response) -> None:
        """Changes the response before it is sent.

        Called also when an earlier middleware answered or refused.
        """


class MiddlewareStack:
    """Runs `begin` in the order of the list, and `end` in reverse.

    `end` is called for middleware that was active when the request began.
    """

    def __init__(self, middleware: Sequence[Middleware]) -> None:
        self.members = tuple(middleware)
        """The outermost first."""
        self._begin: tuple[Begin, ...] = ()
        self._begin_general: tuple[Begin, ...] = ()
        self._end: tuple[Ending, ...] = ()
        self.max_plain_bytes = MAX_PLAIN_BYTES
        self.memory: Callable[[], RequestMemory] | None = None
        """The memory of all requests; None where it is not counted."""
        self.refresh()

    @property
    def caches(self) -> Mapping[str, Bounded]:
        """Caches of all middleware by name."""
        caches: dict[str, Bounded] = {}
        for middleware in self.members:
            caches.update(middleware.caches)
        return caches

    def refresh(self) -> None:
        """Follows changes of `active`: call it after the middleware has changed."""
        active = [middleware for middleware in self.members if middleware.active]
        plain_begins: list[Begin] = []
        general_begins: list[Begin] = []
        ends: list[Ending] = []
        for middleware in active:
            if type(middleware).begin is not Middleware.begin:
                begins = plain_begins if middleware.concerns_plain else general_begins
                begins.append((middleware.header, middleware.route_paths, middleware.begin))
            if type(middleware).end is not Middleware.end:
                ends.append(middleware.end)
        self._begin = tuple(plain_begins)
        self._begin_general = (*plain_begins, *general_begins)
        self._end = tuple(reversed(ends))
        self.max_plain_bytes = min(
            [MAX_PLAIN_BYTES, *(middleware.most_plain_bytes for middleware in active)]
        )

    def begin(self, context: RequestContext, is_general: bool = False) -> Response | None:
        """Begins each part of the middleware; returns the first response, if any.

        Flask's requests (`is_general`) pass more middleware than plain ones.
        """
        context.endings = self._end
        context.memory = self.memory
        route = context.route
        for header, paths, begin in self._begin_general if is_general else self._begin:
            if header and header not in context.headers:
                continue
            if paths is not None and (route is None or not paths.match(route.path)):
                continue
            response = begin(context)
            if response is not None:
                return response
        return None

    def end(self, context: RequestContext, response: Response) -> None:
        """Calls each ending of the request with the response.

        A long body is memory of the request, until the client has taken it.

        Raises:
            MemoryFullError, MemoryExceededError: as `RequestMemory.reserve`.
        """
        for end in context.endings:
            end(context, response)
        body = response.body
        if type(body) is bytes and len(body) > MAX_UNCOUNTED_BYTES and context.claim is not None:
            context.claim.cover(len(body))


class RequestIds(Middleware):
    """Adds an X-Request-Id header with the id of each request, if ids are `answered`."""

    def __init__(self, answered: bool) -> None:
        self.active = answered

    def end(self, context: RequestContext, response: Response) -> None:
        """Adds the header; it is empty if the request's header is."""
        request_id = ""
        if context.headers.get("x-request-id") != "":
            request_id = context.request_id
        response.headers["X-Request-Id"] = request_id
