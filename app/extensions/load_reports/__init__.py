"""The server's load in the headers of answers, for proxies that request it (ORCA)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.extensions import Extension, Position

if TYPE_CHECKING:
    from app.core.server.middleware.stack import Middleware


class ServerLoadReports(Extension):
    """Reports the load next to the answer, if the request names a format."""

    name = "load_reports"
    order = -2  # its middleware reports also the answers of other middleware

    def middleware(self) -> Mapping[Position, Sequence[Middleware]]:
        """Returns the middleware that adds the header; none for versions without it."""
        from app.extensions.load_reports.rules import LoadReportRules

        if not self.parts.pipeline.version.rules(LoadReportRules).reports:
            return {}
        from app.extensions.load_reports.middleware import LoadReports

        return {Position.INNERMOST: [LoadReports(self.parts.recorder.figures)]}
