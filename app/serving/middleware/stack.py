"""The middleware around every request, in one list for Flask and the fast path."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from app.base import Bounded
from app.serving.http.context import Ending, RequestContext
from app.serving.http.response import Response
from config.settings import Settings

Begin = Callable[[RequestContext], Response | None]
MOST_PLAIN_BYTES = 1 << 16


class Middleware:
    """Hooks around a route. Requests that begin while `active` is false skip both."""

    active = True
    concerns_plain = True
    """True if `begin` concerns requests on the fast path."""
    most_plain_bytes = MOST_PLAIN_BYTES
    caches: Mapping[str, Bounded] = MappingProxyType({})

    def begin(self, context: RequestContext) -> Response | None:
        """Returns a response instead of the route's; None to go on."""

    def end(self, context: RequestContext, response: Response) -> None:
        """Changes the response before it is sent, also when an earlier middleware answered or
        refused.
        """


class MiddlewareStack:
    """Runs `begin` in the order of the list, and in reverse each `end` that was active at the
    beginning.
    """

    def __init__(self, middleware: Sequence[Middleware]) -> None:
        self.members = tuple(middleware)
        """The outermost first."""
        self._begin: tuple[Begin, ...] = ()
        self._begin_general: tuple[Begin, ...] = ()
        self._end: tuple[Ending, ...] = ()
        self.max_plain_bytes = MOST_PLAIN_BYTES
        self.refresh()

    @property
    def caches(self) -> Mapping[str, Bounded]:
        return {name: cache for one in self.members for name, cache in one.caches.items()}

    def on_settings(self, settings: Settings) -> None:
        """Subscribe the stack after its middleware, so that `active` is up to date."""
        self.refresh()

    def refresh(self) -> None:
        active = [one for one in self.members if one.active]
        begins = [one for one in active if type(one).begin is not Middleware.begin]
        self._begin = tuple(one.begin for one in begins if one.concerns_plain)
        self._begin_general = *self._begin, *(one.begin for one in begins if not one.concerns_plain)
        self._end = tuple(
            one.end for one in reversed(active) if type(one).end is not Middleware.end
        )
        self.max_plain_bytes = min([MOST_PLAIN_BYTES, *(one.most_plain_bytes for one in active)])

    def begin(self, context: RequestContext, is_general: bool = False) -> Response | None:
        """Returns the first response, if any.

        Flask's requests (`is_general`) pass more than plain ones.
        """
        context.endings = self._end
        for begin in self._begin_general if is_general else self._begin:
            if (response := begin(context)) is not None:
                return response
        return None

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
