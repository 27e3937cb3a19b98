"""Builds the middleware around every request, the outermost first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from app.core.extensions import Position
from app.core.server.middleware.cors import Cors
from app.core.server.middleware.foreign_pages import ForeignPages
from app.core.server.middleware.http_log import HttpLog
from app.core.server.middleware.stack import Middleware, MiddlewareStack, RequestIds
from app.core.versions.chain import simulated_version
from config.settings import AccessSettings, LogSettings

if TYPE_CHECKING:
    from app.core.extensions import ServerParts
    from app.core.server.middleware.http_metrics import HttpMetrics


def build_middleware(parts: ServerParts, http_metrics: HttpMetrics) -> MiddlewareStack:
    """Returns the middleware of the core, with that of the extensions at their positions."""
    settings = parts.settings
    http_log = HttpLog()
    names = (parts.server.host, parts.server.pod_name)
    foreign_pages = ForeignPages(settings.access, parts.keys.needs_key, names)
    parts.live.follow(LogSettings, http_log.on_log)
    parts.live.follow(AccessSettings, parts.keys.on_access)
    added = _by_position(parts)
    stack = MiddlewareStack(
        [
            http_metrics,
            http_log,
            *added[Position.OUTSIDE],
            *_of_played_version(parts),
            RequestIds(settings.api.enable_request_id_headers),
            Cors(settings.access),
            parts.keys,
            *added[Position.AUTHENTICATED],
            foreign_pages,
            *added[Position.INNERMOST],
        ]
    )
    parts.live.watch(stack.refresh)
    return stack


def _of_played_version(parts: ServerParts) -> Iterator[Middleware]:
    """Yields what takes headers from errors, for versions that any browser may call."""
    played = simulated_version(parts.settings.api)
    if not played.is_of_code:
        from app.core.versions.origins import OriginRules, UnopenedErrors

        rules = played.rules(OriginRules)
        if rules != OriginRules():
            yield UnopenedErrors(rules)


def _by_position(parts: ServerParts) -> dict[Position, list[Middleware]]:
    added: dict[Position, list[Middleware]] = {position: [] for position in Position}
    for extension in parts.extensions:
        for position, middleware in extension.middleware().items():
            added[position] += middleware
    return added
