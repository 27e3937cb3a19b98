"""Reports the server's load in a response header, for proxies such as Envoy (ORCA)."""

import json
from collections.abc import Callable

from app.core.base.metrics.recorder import Figures
from app.core.server.http.context import RequestContext
from app.core.server.http.response import JSON, Response
from app.core.server.middleware.stack import Middleware

FORMAT = "endpoint-load-metrics-format"
"""Request header that names the report's format."""
REPORT = "endpoint-load-metrics"
"""Response header with the report."""
PATHS = ("/v1/chat/completions", "/v1/completions")


class LoadReports(Middleware):
    """Adds the server's load to unstreamed answers, if the request names a format."""

    concerns_plain = False  # plain requests have no such header
    header = FORMAT

    def __init__(self, figures: Callable[[], Figures]) -> None:
        self._figures = figures

    def begin(self, context: RequestContext) -> None:
        """Registers the report that the request asks for."""
        if context.label in PATHS:
            context.endings = (self._report, *context.endings)

    def _report(self, context: RequestContext, response: Response) -> None:
        if response.status != 200 or response.headers.get("Content-Type") != JSON:
            return
        figures = self._figures()
        load = {
            "num_requests_waiting": float(figures.waiting),
            "kv_cache_usage_perc": float(figures.cache_usage),
        }
        report_format = context.headers[FORMAT].lower()
        if report_format == "json":
            response.headers[REPORT] = "JSON " + json.dumps({"named_metrics": load})
        elif report_format == "text":
            values = ", ".join(f"named_metrics.{name}={value}" for name, value in load.items())
            response.headers[REPORT] = f"TEXT {values}"
