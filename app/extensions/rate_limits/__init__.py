"""Limits of requests and tokens per minute, per API key (docs/access.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.extensions import Extension, Position
from app.extensions.rate_limits.settings import RateLimitSettings

if TYPE_CHECKING:
    from app.core.server.middleware.stack import Middleware


class ClientLimits(Extension):
    """Limits clients by their use."""

    name = "rate_limits"
    Settings = RateLimitSettings

    def middleware(self) -> Mapping[Position, Sequence[Middleware]]:
        """Returns the middleware, which follows the settings."""
        from app.extensions.rate_limits.middleware import RateLimits

        limits = RateLimits(self.parts.clock)
        self.parts.live.subscribe(limits.on_settings)
        return {Position.AUTHENTICATED: [limits]}
