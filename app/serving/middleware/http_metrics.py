"""HTTP metrics: vLLM's families (vllm-api.md 11.4), observed when a response ends.

A response ends when its last byte is sent, or the client leaves. The defaults of prometheus-flask-exporter
are unused: they stop at the headers and look up labels at every request. Its decorators serve embedders.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

from app.base.metrics.instruments import Counter, Family, Histogram, Summary
from app.serving.http.context import RequestContext
from app.serving.http.response import CountedBody, Response, StreamingBody
from app.serving.middleware.cors import is_outside
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

    def observe_all(self, rows: Sequence[Row]) -> None:
        seconds = [row[1] for row in rows]
        self.requests.inc(len(rows))
        self.request_bytes.observe_all([_size(row[2]) for row in rows])
        self.response_bytes.observe_all([row[3] for row in rows])
        self.seconds_high.observe_all(seconds)
        self.seconds.observe_all(seconds)


class HttpFamilies:
    """The `http_*` families. A series appears with its first exchange. `now` returns Unix seconds."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        low, high = partial(Histogram, LOW_RESOLUTION), partial(Histogram, HIGH_RESOLUTION)
        whole, of_body = "From arrival to the end of the response", "http_{}_size_bytes"
        self._requests = Family(
            "http_requests_total", "Requests by method, class of status and route.", Counter, "counter", now
        )
        self._request_bytes = Family(
            of_body.format("request"), "Declared size of request bodies by route.", Summary, "summary", now
        )
        self._response_bytes = Family(
            of_body.format("response"), "Size of response bodies by route.", Summary, "summary", now
        )
        name = "http_request_duration_{}seconds"
        self._seconds_high = Family(
            name.format("highr_"), f"{whole}, all routes, in fine buckets.", high, "histogram", now
        )
        self._seconds = Family(
            name.format(""), f"{whole} by method and route, in coarse buckets.", low, "histogram", now
        )
        self._served = Family(
            "understudy_requests_total", "Requests by the way that served them.", Counter, "counter", now
        )
        self.by_way = {way: self._served.labels(way=way) for way in ("flask", "fast", "probe", "grpc")}
        self._seconds_high.labels()  # a series without labels exists before the first request

    def exchange(self, method: str, handler: str, status: int) -> HttpSeries:
        return HttpSeries(
            self._requests.labels(method=method, status=f"{status // 100}xx", handler=handler),
            self._request_bytes.labels(handler=handler),
            self._response_bytes.labels(handler=handler),
            self._seconds_high.labels(),
            self._seconds.labels(method=method, handler=handler),
        )

    def render(self) -> str:
        sizes = self._request_bytes, self._response_bytes
        families = self._requests, *sizes, self._seconds_high, self._seconds, self._served
        return "".join(family.render() for family in families)


UNMATCHED = "none"
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"))
# The pattern matches anywhere in the route, as in vLLM: "/load" also excludes "/v1/load_lora_adapter".
_EXCLUDED = re.compile("/metrics|/health|/load|/ping|/version|/server_info|^/ready$")


Row = tuple[HttpSeries, float, str | None, int]
"""Series, duration in seconds, declared Content-Length and response bytes of an exchange."""
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
        self.families = HttpFamilies(now)
        self._clock = clock
        self._served = self.families.by_way
        self._rows: list[Row] = []
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
        if is_outside(response):
            return
        label = context.label or (None if _EXCLUDED.search(context.path) else UNMATCHED)
        exchange = self._exchange(context.method, label, response.status) if label else None
        if exchange is None:
            return
        body = response.body
        if isinstance(body, bytes):  # complete, and sent next
            self._note(exchange, context, len(body))
            return
        if not isinstance(body, StreamingBody):
            response.body = body = CountedBody(body)
        response.on_close(lambda: self._note(exchange, context, body.bytes_sent))

    def _note(self, exchange: HttpSeries, context: RequestContext, response_bytes: int) -> None:
        seconds = self._clock() - context.arrival_s
        self._rows.append((exchange, seconds, context.headers.get("content-length"), response_bytes))
        if len(self._rows) >= BLOCK:
            self.fold()

    def fold(self) -> None:
        """Counts all noted rows, grouped by series: a fifth of the cost of counting each row."""
        rows, self._rows = self._rows, []
        kinds: dict[HttpSeries, list[Row]] = {}
        for row in rows:
            kinds.setdefault(row[0], []).append(row)
        for series, of_one in kinds.items():
            series.observe_all(of_one)

    def text(self) -> str:
        self.fold()
        return self.families.render()

    def _exchange(self, method: str, label: str, status: int) -> HttpSeries | None:
        # Clients must not create series with invented methods.
        key = (method if method in METHODS else "other", label, status)
        try:
            return self._exchanges[key]
        except KeyError:
            found = None if _EXCLUDED.search(label) else self.families.exchange(key[0], label, status)
            self._exchanges[key] = found
            return found


def _size(declared: str | None) -> int:
    return int(declared) if declared and declared.isdecimal() and len(declared) < 19 else 0
