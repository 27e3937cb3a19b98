"""The console: a page that shows the inside of the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.extensions import Extension, Position
from app.extensions.console.settings import ConsoleSettings

if TYPE_CHECKING:
    from app.core.base import Bounded
    from app.core.server.http.route import Route
    from app.core.server.middleware.stack import Middleware
    from app.extensions.console.application import Console
    from config import Settings as AllSettings


class ServerConsole(Extension):
    """GET /console, and the routes that it reads."""

    name = "console"
    order = 1  # records what all other middleware lets through
    Settings = ConsoleSettings
    requires = ("devmode", "explanation")
    _console: Console

    @classmethod
    def is_enabled(cls, settings: AllSettings) -> bool:
        """Returns whether the console is on."""
        return settings.section(ConsoleSettings).console

    def middleware(self) -> Mapping[Position, Sequence[Middleware]]:
        """Returns the observer of requests."""
        from app.extensions.console.application import Console

        self._console = Console(self.parts)
        return {Position.INNERMOST: [self._console]}

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the page and its routes."""
        return self._console.routes()

    def caches(self) -> Mapping[str, Bounded]:
        """Returns the requests that the page shows."""
        bars = self._console.observer.bars
        return {"console requests": bars, "console history": bars.recent_ends}
