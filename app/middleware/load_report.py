"""The load of the server in a response header (ORCA), by which proxies such as Envoy weigh backends."""

from __future__ import annotations

import json
from collections.abc import Callable

from app.http.context import RequestContext
from app.http.response import JSON, Response
from app.metrics.figures import Figures
from app.middleware.stack import Middleware

FORMAT, REPORT = "endpoint-load-metrics-format", "endpoint-load-metrics"
"""Header of a request that asks for a report, and header of the report."""
PATHS = ("/v1/chat/completions", "/v1/completions")


class LoadReports(Middleware):
    """Adds a report to whole answers of chats and completions, in the format that the request names."""

    concerns_plain = False  # whose headers do not ask for one

    def __init__(self, figures: Callable[[], Figures]) -> None:
        self._figures = figures

    def begin(self, context: RequestContext) -> None:
        """Adds a report at the end, where the request asks for one."""
        if FORMAT in context.headers and context.label in PATHS:
            context.endings = (self._report, *context.endings)

    def _report(self, context: RequestContext, response: Response) -> None:
        format_ = context.headers[FORMAT]
        if response.status != 200:
            return
        if response.headers.get("Content-Type") == JSON and (write := WRITERS.get(format_.lower())):
            figures = self._figures()
            load = {"num_requests_waiting": figures.waiting, "kv_cache_usage_perc": figures.cache_usage}
            response.headers[REPORT] = write({name: float(value) for name, value in load.items()})


def _as_text(load: dict[str, float]) -> str:
    return "TEXT " + ", ".join(f"named_metrics.{name}={value}" for name, value in load.items())


def _as_json(load: dict[str, float]) -> str:
    return "JSON " + json.dumps({"named_metrics": load})


WRITERS = {"text": _as_text, "json": _as_json}
