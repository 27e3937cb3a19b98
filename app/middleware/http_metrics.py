"""HTTP metrics: vLLM's families, observed when a response has ended (last byte sent, or client gone).

prometheus-flask-exporter's own defaults stop at the headers and look their labels up at every request. Its
decorators are there for whoever embeds the application.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_flask_exporter import PrometheusMetrics

from app.http.context import RequestContext
from app.http.response import CountedBody, Response, StreamingBody
from app.metrics.http_families import Exchange, HttpFamilies
from app.middleware.stack import Middleware

UNMATCHED = "none"
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"))
# Searched for anywhere in the route, as in vLLM: "/load" also hides "/v1/load_lora_adapter".
_EXCLUDED = re.compile("/metrics|/health|/load|/ping|/version|/server_info|^/ready$")


Row = tuple[Exchange, float, str | None, int]
"""An exchange's series, its seconds, its declared Content-Length, and the bytes of its response."""
BLOCK = 512
"""Rows that are noted before they are counted, in a millisecond or two."""


class HttpMetrics(Middleware):
    """Counts every exchange; `registry` holds process metrics and whatever is added to it.

    `clock` gives monotonic seconds, `now` Unix seconds. It comes first in the list of middleware, and so sees
    the response that really leaves.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time
    ) -> None:
        self.registry = CollectorRegistry()
        for collector in (GCCollector, PlatformCollector, ProcessCollector):
            collector(registry=self.registry)
        self.exporter = PrometheusMetrics(None, path=None, export_defaults=False, registry=self.registry)
        """What its decorators count is in `registry`, and so served."""
        self.families = HttpFamilies(now)
        self._clock = clock
        self._served = self.families.by_way
        self._rows: list[Row] = []
        self._exchanges: dict[tuple[str, str, int], Exchange | None] = {}
        """(method, label of the route, status) to series, or None for routes that are not counted."""

    def process_text(self) -> str:
        """Python and process families, and whatever else was added to the registry.

        The exporter's text would be that of PROMETHEUS_MULTIPROC_DIR, which may be set for others.
        """
        return generate_latest(self.registry).decode()

    def end(self, context: RequestContext, response: Response) -> None:
        self._served[context.fast].value += 1
        label = context.label or (None if _EXCLUDED.search(context.path) else UNMATCHED)
        exchange = self._exchange(context.method, label, response.status) if label else None
        if exchange is None:
            return
        body = response.body
        if isinstance(body, bytes):  # it is all there, and leaves in the next moment
            self._note(exchange, context, len(body))
            return
        if not isinstance(body, StreamingBody):
            response.body = body = CountedBody(body)
        response.on_close(lambda: self._note(exchange, context, body.bytes_sent))

    def _note(self, exchange: Exchange, context: RequestContext, response_bytes: int) -> None:
        seconds = self._clock() - context.arrival_s
        self._rows.append((exchange, seconds, context.headers.get("content-length"), response_bytes))
        if len(self._rows) >= BLOCK:
            self.fold()

    def fold(self) -> None:
        """Count what was noted: a row of numbers costs a tenth of counting them one by one."""
        rows, self._rows = self._rows, []
        for exchange, seconds, declared, response_bytes in rows:
            exchange.observe(seconds, _size(declared), response_bytes)

    def text(self) -> str:
        """The text of the `http_` families."""
        self.fold()
        return self.families.render()

    def _exchange(self, method: str, label: str, status: int) -> Exchange | None:
        # A client must not be able to create series with methods of its own making.
        key = (method if method in METHODS else "other", label, status)
        try:
            return self._exchanges[key]
        except KeyError:
            found = None if _EXCLUDED.search(label) else self.families.exchange(key[0], label, status)
            self._exchanges[key] = found
            return found


def _size(declared: str | None) -> int:
    return int(declared) if declared and declared.isdecimal() and len(declared) < 19 else 0
