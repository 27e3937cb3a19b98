"""HTTP metrics: vLLM's families, observed when a response ends.

A response ends when its last byte is sent, or the client disconnects. The defaults of
prometheus-flask-exporter are unused: they stop at the headers and look up labels at every request.
Its decorators serve embedders.
"""

import re
import time
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from app.core.base.metrics.instruments import Counter, Family, Histogram, Summary
from app.core.server.http.context import RequestContext
from app.core.server.http.numbers import header_number
from app.core.server.http.response import Response, StreamingBody
from app.core.server.middleware.cors import PREFLIGHT_VARY
from app.core.server.middleware.stack import Middleware

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_flask_exporter import PrometheusMetrics

Rows = list[tuple[float, str, int]]
"""Duration in seconds, declared Content-Length and response bytes of exchanges."""

HIGH_RESOLUTION = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75),
    *(1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60),
)
"""Buckets in seconds."""
LOW_RESOLUTION = (0.1, 0.5, 1)
"""Buckets in seconds."""
UNMATCHED = "none"
"""Label of requests without a route."""
METHODS = frozenset(
    ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT")
)
"""Methods that labels show; clients must not create series with invented ones."""
# The pattern matches anywhere in the route, as in vLLM: "/load" also excludes
# "/v1/load_lora_adapter".
EXCLUDED = re.compile("/metrics|/health|/load|/ping|/version|/server_info|^/ready$")
MAX_ROWS = 512
"""Rows counted together; they take a millisecond or two."""
REQUESTS = "http_requests_total"
BY_WAY = "understudy_requests_total"
REQUEST_BYTES = "http_request_size_bytes"
RESPONSE_BYTES = "http_response_size_bytes"
SECONDS = "http_request_duration_seconds"
SECONDS_HIGH = "http_request_duration_highr_seconds"
WHOLE = "From arrival to the end of the response"
LOW = partial(Histogram, LOW_RESOLUTION)
HIGH = partial(Histogram, HIGH_RESOLUTION)
FAMILIES: Mapping[str, tuple[str, Callable[[], Any], str]] = {
    REQUESTS: ("Requests by method, class of status and route.", Counter, "counter"),
    REQUEST_BYTES: ("Declared size of request bodies by route.", Summary, "summary"),
    RESPONSE_BYTES: ("Size of response bodies by route.", Summary, "summary"),
    SECONDS_HIGH: (f"{WHOLE}, all routes, in fine buckets.", HIGH, "histogram"),
    SECONDS: (f"{WHOLE} by method and route, in coarse buckets.", LOW, "histogram"),
    BY_WAY: ("Requests by the way that served them.", Counter, "counter"),
}
"""Texts of help, series and types of families, in the order of /metrics."""
WAYS = ("flask", "direct", "fast", "probe", "grpc")


class HttpMetrics(Middleware):
    """Counts the requests that vLLM counts.

    As the first middleware it observes the final response.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns monotonic seconds."""
        self._clock = clock
        self._families: dict[str, Family[Any]] = {
            name: Family(name, help_text, series, kind=kind, now=time.time)
            for name, (help_text, series, kind) in FAMILIES.items()
        }
        self._served = {way: self._families[BY_WAY].labels(way=way) for way in WAYS}
        self._families[SECONDS_HIGH].labels()  # exists before the first request: it has no labels
        self._row_count = 0
        self._rows: dict[tuple[str, str, int], Rows | None] = {}
        """Exchanges by method, route label and status; None for routes that are not counted."""

    # The libraries are slow to import, and unused before the first scrape.

    @cached_property
    def registry(self) -> "CollectorRegistry":
        """Registry with process metrics; embedders may add more."""
        from prometheus_client import (
            CollectorRegistry,
            GCCollector,
            PlatformCollector,
            ProcessCollector,
        )

        registry = CollectorRegistry()
        for collector in (GCCollector, PlatformCollector, ProcessCollector):
            collector(registry=registry)
        return registry

    @cached_property
    def exporter(self) -> "PrometheusMetrics":
        """Exporter for embedders.

        Metrics of its decorators go into `registry`, so /metrics has them.
        """
        from prometheus_flask_exporter import PrometheusMetrics

        return PrometheusMetrics(None, path=None, export_defaults=False, registry=self.registry)

    def process_text(self) -> str:
        """Returns the registry's text.

        The exporter's function would read PROMETHEUS_MULTIPROC_DIR, which may belong to another
        program.
        """
        from prometheus_client import generate_latest

        return generate_latest(self.registry).decode()

    def end(self, context: RequestContext, response: Response) -> None:
        """Counts the request, and observes its response when it ends."""
        self._served[context.way].value += 1
        if response.status == 401 or response.headers.get("Vary") == PREFLIGHT_VARY:
            return  # vLLM counts neither requests without a required key nor preflights
        label = context.label
        if not label:
            if EXCLUDED.search(context.path):
                return
            label = UNMATCHED
        key = (context.method if context.method in METHODS else "other", label, response.status)
        try:
            rows = self._rows[key]
        except KeyError:
            rows = self._rows[key] = None if EXCLUDED.search(label) else []
        if rows is None:
            return
        body = response.body
        if isinstance(body, bytes):  # complete, and sent next
            self._add_row(rows, context, len(body))
            return
        sender = body if isinstance(body, StreamingBody) else response
        response.on_close(partial(self._add_sent, rows, context, sender))

    def _add_sent(
        self, rows: Rows, context: RequestContext, sender: StreamingBody | Response
    ) -> None:
        self._add_row(rows, context, sender.bytes_sent)

    def _add_row(self, rows: Rows, context: RequestContext, response_bytes: int) -> None:
        """Keeps the figures of a response, which `fold` counts together with others."""
        seconds = self._clock() - context.arrival_s
        rows.append((seconds, context.headers.get("content-length", ""), response_bytes))
        self._row_count += 1
        if self._row_count >= MAX_ROWS:
            self.fold()

    def fold(self) -> None:
        """Counts all rows, grouped by series: a fifth of the cost of counting each row."""
        self._row_count = 0
        families = self._families
        for (method, handler, status), rows in self._rows.items():
            if rows is None:
                continue
            seconds = [row[0] for row in rows]
            request_bytes = [header_number(row[1]) or 0 for row in rows]
            response_bytes = [row[2] for row in rows]
            rows.clear()
            served = families[REQUESTS].labels(
                method=method, status=f"{status // 100}xx", handler=handler
            )
            served.inc(len(seconds))
            families[REQUEST_BYTES].labels(handler=handler).observe_all(request_bytes)
            families[RESPONSE_BYTES].labels(handler=handler).observe_all(response_bytes)
            families[SECONDS_HIGH].labels().observe_all(seconds)
            families[SECONDS].labels(method=method, handler=handler).observe_all(seconds)

    def text(self) -> str:
        """Returns the families in Prometheus' text format."""
        self.fold()
        return "".join(family.render() for family in self._families.values())
