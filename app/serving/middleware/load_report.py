"""Server load in a response header (ORCA), for load balancing in proxies such as Envoy."""

from __future__ import annotations

import json
from collections.abc import Callable

from app.base.metrics.recorder import Figures
from app.serving.http.context import RequestContext
from app.serving.http.response import JSON, Response
from app.serving.middleware.stack import Middleware

FORMAT, REPORT = "endpoint-load-metrics-format", "endpoint-load-metrics"
"""Request header that names the report's format, and response header with the report."""
PATHS = ("/v1/chat/completions", "/v1/completions")


class LoadReports(Middleware):
    """Adds a load report to unstreamed answers of chats and completions, in the requested format."""

    concerns_plain = False  # plain requests have no such header

    def __init__(self, figures: Callable[[], Figures]) -> None:
        self._figures = figures

    def begin(self, context: RequestContext) -> None:
        """Registers the report, if the request names a format."""
        if FORMAT in context.headers and context.label in PATHS:
            context.endings = (self._report, *context.endings)

    def _report(self, context: RequestContext, response: Response) -> None:
        if response.status != 200 or response.headers.get("Content-Type") != JSON:
            return
        figures, wanted = self._figures(), context.headers[FORMAT].lower()
        load = {
            "num_requests_waiting": float(figures.waiting),
            "kv_cache_usage_perc": float(figures.cache_usage),
        }
        if wanted == "json":
            response.headers[REPORT] = "JSON " + json.dumps({"named_metrics": load})
        elif wanted == "text":
            values = ", ".join(f"named_metrics.{name}={value}" for name, value in load.items())
            response.headers[REPORT] = f"TEXT {values}"
