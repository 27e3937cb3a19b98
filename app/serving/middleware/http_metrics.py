"""HTTP metrics: vLLM's families (vllm-api.md 11.4), observed when a response ends; the load in a header.

A response ends when its last byte is sent, or the client leaves. The defaults of prometheus-flask-exporter
are unused: they stop at the headers and look up labels at every request. Its decorators serve embedders.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

from app.base.metrics.instruments import Counter, Family, Histogram, Summary
from app.base.metrics.recorder import Figures
from app.serving.http.context import RequestContext
from app.serving.http.response import JSON, Response
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


@dataclass(frozen=True, slots=True, eq=False)
class HttpSeries:
    """Series of one combination of method, handler and status class."""

    requests: Counter
    request_bytes: Summary
    response_bytes: Summary
    seconds_high: Histogram
    seconds: Histogram


UNMATCHED = "none"
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"))
# The pattern matches anywhere in the route, as in vLLM: "/load" also excludes "/v1/load_lora_adapter".
_EXCLUDED = re.compile("/metrics|/health|/load|/ping|/version|/server_info|^/ready$")


Row = tuple[float, str | None, int]
"""Duration in seconds, declared Content-Length and response bytes of an exchange."""
BLOCK = 512
"""Rows counted together; a block takes a millisecond or two."""


class HttpMetrics(Middleware):
    """Counts the exchanges that vLLM counts: requests to its routes.

    `clock` returns monotonic seconds, `now` Unix seconds. As the first middleware it observes the final
    response.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        low, high = partial(Histogram, LOW_RESOLUTION), partial(Histogram, HIGH_RESOLUTION)
        of_body, took = "http_{}_size_bytes", "http_request_duration_{}seconds"
        whole = "From arrival to the end"
        self._requests = Family(
            "http_requests_total", "Requests by method, class of status and route.", Counter, "counter", now
        )
        self._request_bytes = Family(
            of_body.format("request"), "Declared size of request bodies by route.", Summary, "summary", now
        )
        self._response_bytes = Family(
            of_body.format("response"), "Size of response bodies by route.", Summary, "summary", now
        )
        about = f"{whole} of the response, all routes, in fine buckets."
        self._seconds_high = Family(took.format("highr_"), about, high, "histogram", now)
        about = f"{whole} of the response by method and route, in coarse buckets."
        self._seconds = Family(took.format(""), about, low, "histogram", now)
        about = "Requests by the way that served them."
        self._by_way = Family("understudy_requests_total", about, Counter, "counter", now)
        self._served = {way: self._by_way.labels(way=way) for way in ("flask", "fast", "probe", "grpc")}
        self._seconds_high.labels()  # a series without labels exists before the first request
        self._rows: list[tuple[HttpSeries, Row]] = []
        self._exchanges: dict[tuple[str, str, int], HttpSeries | None] = {}
        """Maps method, route label and status to series; None for routes that are not counted."""

    # The libraries are slow to import, and unused before the first scrape.

    @cached_property
    def registry(self) -> CollectorRegistry:
        """Registry with process metrics; embedders may add more."""
        from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

        registry = CollectorRegistry()
        for collector in (GCCollector, PlatformCollector, ProcessCollector):
            collector(registry=registry)
        return registry

    @cached_property
    def exporter(self) -> PrometheusMetrics:
        """Exporter for embedders. Metrics of its decorators go into `registry`, so /metrics has them."""
        from prometheus_flask_exporter import PrometheusMetrics

        return PrometheusMetrics(None, path=None, export_defaults=False, registry=self.registry)

    def process_text(self) -> str:
        """Returns the text of all metrics in the registry.

        Not the exporter's text: that reads PROMETHEUS_MULTIPROC_DIR, which may belong to another program.
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
        if key not in self._exchanges:
            self._exchanges[key] = None if _EXCLUDED.search(label) else self._series(*key)
        series = self._exchanges[key]
        if series is None:
            return
        body = response.body
        if isinstance(body, bytes):  # complete, and sent next
            self._note(series, context, len(body))
            return
        response.on_close(lambda: self._note(series, context, response.bytes_sent))

    def _series(self, method: str, handler: str, status: int) -> HttpSeries:
        return HttpSeries(
            self._requests.labels(method=method, status=f"{status // 100}xx", handler=handler),
            self._request_bytes.labels(handler=handler),
            self._response_bytes.labels(handler=handler),
            self._seconds_high.labels(),
            self._seconds.labels(method=method, handler=handler),
        )

    def _note(self, series: HttpSeries, context: RequestContext, response_bytes: int) -> None:
        seconds = self._clock() - context.arrival_s
        self._rows.append((series, (seconds, context.headers.get("content-length"), response_bytes)))
        if len(self._rows) >= BLOCK:
            self.fold()

    def fold(self) -> None:
        """Counts all noted rows, grouped by series: a fifth of the cost of counting each row."""
        rows, self._rows = self._rows, []
        grouped: dict[HttpSeries, list[Row]] = {}
        for series, row in rows:
            grouped.setdefault(series, []).append(row)
        for series, of_one in grouped.items():
            seconds, declared, sent = zip(*of_one, strict=True)
            valid = (text if text and text.isdecimal() and len(text) < 19 else 0 for text in declared)
            series.requests.inc(len(of_one))
            series.request_bytes.observe_all(list(map(int, valid)))
            series.response_bytes.observe_all(sent)
            series.seconds_high.observe_all(seconds)
            series.seconds.observe_all(seconds)

    def text(self) -> str:
        self.fold()
        sizes, seconds = (self._request_bytes, self._response_bytes), (self._seconds_high, self._seconds)
        return "".join(family.render() for family in (self._requests, *sizes, *seconds, self._by_way))


FORMAT, REPORT = "endpoint-load-metrics-format", "endpoint-load-metrics"
"""Request header that names the report's format, and response header with the report."""
PATHS = ("/v1/chat/completions", "/v1/completions")


class LoadReports(Middleware):
    """Adds the load of the server to unstreamed answers of chats and completions, in the requested format.

    Proxies such as Envoy balance by this header (ORCA).
    """

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
