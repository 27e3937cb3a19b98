"""The middleware of rate limits, which is active while there are any."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from app.core.server.middleware.stack import Middleware
from app.extensions.rate_limits.settings import RateLimitSettings

if TYPE_CHECKING:
    from app.core.base import Bounded
    from app.core.base.clock.clock import Clock
    from app.core.server.http.context import RequestContext
    from app.core.server.http.response import Response
    from app.extensions.rate_limits.limits import CallerLimits
    from config import Settings


class RateLimits(Middleware):
    """Counts the requests and tokens of each client; times come from `clock`."""

    active = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    @cached_property
    def callers(self) -> CallerLimits:
        """The clients with the remainders of their limits."""
        from app.extensions.rate_limits.limits import CallerLimits  # few servers have limits

        return CallerLimits(self._clock)

    @property
    def caches(self) -> Mapping[str, Bounded]:  # type: ignore[override]
        """Returns the remembered clients, once there were limits."""
        if "callers" not in vars(self):
            return {}
        return {"rate limits": self.callers}

    def on_settings(self, settings: Settings) -> None:
        """Applies the limits."""
        section = settings.section(RateLimitSettings)
        if self.active or section.has_limit:
            self.callers.apply(section)
        self.active = section.has_limit

    def begin(self, context: RequestContext) -> None:
        """Counts the request.

        Raises:
            ApiError: 429 when its client has reached a limit.
        """
        self.callers.count(context)

    def end(self, context: RequestContext, response: Response) -> None:
        """Adds the headers of the client's limits."""
        self.callers.add_headers(context, response)
