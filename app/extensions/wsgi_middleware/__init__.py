"""WSGI middleware of users around the whole application, as vLLM has ASGI middleware."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.core.extensions import Extension
from app.extensions.wsgi_middleware.settings import WsgiMiddlewareSettings

if TYPE_CHECKING:
    from app.core.extensions import WsgiWrapper
    from config import Settings as AllSettings


class WsgiMiddleware(Extension):
    """Wraps the application with the callables of the setting `middleware`."""

    name = "wsgi_middleware"
    Settings = WsgiMiddlewareSettings

    @classmethod
    def is_enabled(cls, settings: AllSettings) -> bool:
        """Returns whether the settings name any."""
        return bool(settings.section(WsgiMiddlewareSettings).middleware)

    @classmethod
    def prepare(cls, settings: AllSettings) -> None:
        """Imports the middleware. Raises ConfigError where that fails."""
        from app.extensions.wsgi_middleware.loading import load_middleware

        for name in settings.section(WsgiMiddlewareSettings).middleware:
            load_middleware(name)

    def wrappers(self) -> Sequence[WsgiWrapper]:
        """Returns the middleware that can run in a WSGI application."""
        from app.extensions.wsgi_middleware.loading import usable_middleware

        names = self.parts.settings.section(WsgiMiddlewareSettings).middleware
        return usable_middleware(names)
