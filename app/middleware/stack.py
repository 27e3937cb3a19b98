"""The middleware around every request, in one list that Flask and the fast path both run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from app.http.context import Ending, RequestContext
from app.http.response import Response
from app.kvcache.memo import Bounded
from config.settings import Settings

Begin = Callable[[RequestContext], Response | None]
MOST_PLAIN_BYTES = 1 << 16
"""Of a body on the fast path."""


class Middleware:
    """What is done before a request is routed, and to its response.

    A subclass overrides `begin` or `end` or both. A request that begins while `active` is false passes it by.
    """

    active = True
    concerns_plain = True
    """True if `begin` concerns requests that the fast path answers."""
    most_plain_bytes = MOST_PLAIN_BYTES
    """Longer bodies go the general way, where what takes long can be done in slices."""
    caches: Mapping[str, Bounded] = MappingProxyType({})
    """Memory of the middleware, by name."""

    def begin(self, context: RequestContext) -> Response | None:
        """Returns the response that a middleware gives in the route's place, if one does."""

    def end(self, context: RequestContext, response: Response) -> None:
        """Before the response leaves, whoever made it; also when one before this answered or refused."""


class MiddlewareStack:
    """`begin` runs down the list, `end` up. What is active is found out when settings change.

    A request ends with the middleware that were active when it began.
    """

    def __init__(self, middleware: Sequence[Middleware]) -> None:
        self._middleware = tuple(middleware)
        self._begin: tuple[Begin, ...] = ()
        self._begin_general: tuple[Begin, ...] = ()
        self._end: tuple[Ending, ...] = ()
        self.most_plain_bytes = MOST_PLAIN_BYTES
        self.refresh()

    @property
    def caches(self) -> Mapping[str, Bounded]:
        return {name: cache for one in self._middleware for name, cache in one.caches.items()}

    def on_settings(self, settings: Settings) -> None:
        """Subscribe this after the middleware have subscribed themselves."""
        self.refresh()

    def refresh(self) -> None:
        active = [one for one in self._middleware if one.active]
        begins = [one for one in active if type(one).begin is not Middleware.begin]
        self._begin = tuple(one.begin for one in begins if one.concerns_plain)
        self._begin_general = tuple(one.begin for one in begins if not one.concerns_plain)
        self._end = tuple(one.end for one in reversed(active) if type(one).end is not Middleware.end)
        self.most_plain_bytes = min([MOST_PLAIN_BYTES, *(one.most_plain_bytes for one in active)])

    def begin(self, context: RequestContext) -> Response | None:
        """Returns the response that a middleware gives in the route's place, if one does."""
        context.endings = self._end
        for begin in self._begin:
            if (response := begin(context)) is not None:
                return response
        return None

    def begin_general(self, context: RequestContext) -> Response | None:
        """As `begin`, for a request that Flask serves: those that concern no plain ones come last."""
        response = self.begin(context)
        for begin in self._begin_general:
            if response is None:
                response = begin(context)
        return response

    def end(self, context: RequestContext, response: Response) -> None:
        for end in context.endings:
            end(context, response)


class RequestIds(Middleware):
    """Adds an X-Request-Id header with the id of each request, if ids are `answered`."""

    def __init__(self, answered: bool) -> None:
        self.active = answered

    def end(self, context: RequestContext, response: Response) -> None:
        response.headers["X-Request-Id"] = (
            "" if context.headers.get("x-request-id") == "" else context.request_id
        )
