"""Failure injection, and the audit of how clients behave then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.extensions import Extension, Position, late_routes
from app.extensions.faults.settings import FailureSettings

if TYPE_CHECKING:
    from app.core.base import Bounded
    from app.core.extensions import ServerParts
    from app.core.server.http.route import Route
    from app.core.server.middleware.stack import Middleware
    from app.extensions.faults.injector import FaultInjector
    from config import Settings as AllSettings


class Faults(Extension):
    """Makes requests fail: by a header, a plugin, a rule or by chance."""

    name = "faults"
    Settings = FailureSettings
    injector: FaultInjector

    def __init__(self, parts: ServerParts) -> None:
        from app.extensions.faults.audit import FaultAudit
        from app.extensions.faults.injector import FaultInjector

        super().__init__(parts)
        self.injector = FaultInjector(parts.streams("faults"), parts.clock.now)
        self._audit = FaultAudit(self.injector, parts.clock.now)
        parts.live.subscribe(self.injector.on_settings)

    def fault_injection(self) -> FaultInjector:
        """Returns the injector, which also asks other extensions."""
        sources = [extension.fault() for extension in self.parts.extensions]
        self.injector.use_sources([source for source in sources if source is not None])
        return self.injector

    def keeps_fast_path(self, settings: AllSettings) -> bool:
        """Returns whether only faults that a header asks for can occur."""
        return self.injector.is_quiet

    def middleware(self) -> Mapping[Position, Sequence[Middleware]]:
        """Returns the audit of clients."""
        return {Position.INNERMOST: [self._audit]}

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the routes of the audit's verdict."""
        return {"verdict": late_routes(self._load, "GET /admin/verdict", "DELETE /admin/verdict")}

    def _load(self) -> list[Route]:
        from app.extensions.faults.routes import routes

        return routes(self._audit)

    def caches(self) -> Mapping[str, Bounded]:
        """Returns the rules of headers, and the clients of the audit."""
        return {"fault scripts": self.injector, "client audit": self._audit}
