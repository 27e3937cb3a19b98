"""HTTP metrics: vLLM's families (vllm-api.md 11.4), observed when a response ends; the load in a
header.

A response ends when its last byte is sent, or the client leaves. The defaults of
prometheus-flask-exporter are unused: they stop at the headers and look up labels at every request.
Its decorators serve embedders.
"""

import json
import re
import time
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from app.base.metrics.instruments import Counter, Family, Histogram, Summary
from app.base.metrics.recorder import Figures
from app.serving.http.context import RequestContext
from app.serving.http.response import JSON, Response, StreamingBody
from app.serving.middleware.access import PREFLIGHT_VARY
from app.serving.middleware.stack import Middleware

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_flask_exporter import PrometheusMetrics

HIGH_RESOLUTION = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75),
    *(1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60),
)
LOW_RESOLUTION = (0.1, 0.5, 1)


UNMATCHED = "none"
METHODS = frozenset(
    ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT")
)
# The pattern matches anywhere in the route, as in vLLM: "/load" also excludes
# "/v1/load_lora_adapter".
_EXCLUDED = re.compile("/metrics|/health|/load|/ping|/version|/server_info|^/ready$")


Rows = list[tuple[float, str | None, int]]
"""Duration in seconds, declared Content-Length and response bytes of exchanges."""
BLOCK = 512
"""Rows counted together; a block takes a millisecond or two."""
REQUESTS, BY_WAY = "http_requests_total", "understudy_requests_total"
REQUEST_BYTES, RESPONSE_BYTES = "http_request_size_bytes", "http_response_size_bytes"
SECONDS, SECONDS_HIGH = "http_request_duration_seconds", "http_request_duration_highr_seconds"
WHOLE = "From arrival to the end of the response"
LOW, HIGH = partial(Histogram, LOW_RESOLUTION), partial(Histogram, HIGH_RESOLUTION)
FAMILIES: Mapping[str, tuple[str, Callable[[], Any], str]] = {
    REQUESTS: ("Requests by method, class of status and route.", Counter, "counter"),
    REQUEST_BYTES: ("Declared size of request bodies by route.", Summary, "summary"),
    RESPONSE_BYTES: ("Size of response bodies by route.", Summary, "summary"),
    SECONDS_HIGH: (f"{WHOLE}, all routes, in fine buckets.", HIGH, "histogram"),
    SECONDS: (f"{WHOLE} by method and route, in coarse buckets.", LOW, "histogram"),
    BY_WAY: ("Requests by the way that served them.", Counter, "counter"),
}
"""Texts of help, series and types of families, in the order of /metrics."""


class HttpMetrics(Middleware):
    """Counts the requests that vLLM counts.

    As the first middleware it observes the final response.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._families: dict[str, Family[Any]] = {
            name: Family(name, about, series, kind=kind, now=now)
            for name, (about, series, kind) in FAMILIES.items()
        }
        ways = ("flask", "fast", "probe", "grpc")
        self._served = {way: self._families[BY_WAY].labels(way=way) for way in ways}
        self._families[
            SECONDS_HIGH
        ].labels()  # a series without labels exists before the first request
        self._noted = 0
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
        """Returns the registry's text; the exporter's reads PROMETHEUS_MULTIPROC_DIR of whichever
        program.
        """
        from prometheus_client import generate_latest

        return generate_latest(self.registry).decode()

    def end(self, context: RequestContext, response: Response) -> None:
        self._served[context.way].value += 1
        if response.status == 401 or response.headers.get("Vary") == PREFLIGHT_VARY:
            return  # vLLM counts neither a want of a key nor a preflight
        label = context.label or (None if _EXCLUDED.search(context.path) else UNMATCHED)
        if label is None:
            return
        # Clients must not create series with invented methods.
        key = (context.method if context.method in METHODS else "other", label, response.status)
        try:
            rows = self._rows[key]
        except KeyError:
            rows = self._rows[key] = None if _EXCLUDED.search(label) else []
        if rows is None:
            return
        body = response.body
        if isinstance(body, bytes):  # complete, and sent next
            self._note(rows, context, len(body))
            return
        sender = body if isinstance(body, StreamingBody) else response
        response.on_close(lambda: self._note(rows, context, sender.bytes_sent))

    def _note(self, rows: Rows, context: RequestContext, response_bytes: int) -> None:
        seconds = self._clock() - context.arrival_s
        rows.append((seconds, context.headers.get("content-length"), response_bytes))
        self._noted += 1
        if self._noted >= BLOCK:
            self.fold()

    def fold(self) -> None:
        """Counts all noted rows, grouped by series: a fifth of the cost of counting each row."""
        self._noted, families = 0, self._families
        for (method, handler, status), rows in self._rows.items():
            if rows is None:
                continue
            seconds, declared, sent = zip(*rows, strict=True) if rows else ((), (), ())
            rows.clear()
            valid = (
                text if text and text.isdecimal() and len(text) < 19 else 0 for text in declared
            )
            served = families[REQUESTS].labels(
                method=method, status=f"{status // 100}xx", handler=handler
            )
            served.inc(len(sent))
            families[REQUEST_BYTES].labels(handler=handler).observe_all(list(map(int, valid)))
            families[RESPONSE_BYTES].labels(handler=handler).observe_all(sent)
            families[SECONDS_HIGH].labels().observe_all(seconds)
            families[SECONDS].labels(method=method, handler=handler).observe_all(seconds)

    def text(self) -> str:
        self.fold()
        return "".join(family.render() for family in self._families.values())


FORMAT, REPORT = "endpoint-load-metrics-format", "endpoint-load-metrics"
"""Request header that names the report's format, and response header with the report."""
PATHS = ("/v1/chat/completions", "/v1/completions")


class LoadReports(Middleware):
    """Adds the server's load to unstreamed answers, for proxies such as Envoy (ORCA)."""

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
