"""HTTP metrics of a Flask app: prometheus-flask-exporter's extension with vLLM's families as its defaults.

The exporter's own defaults stop at the headers and look their labels up at every request; these are observed
when the response has ended (last byte sent or client gone), on series found once per route and status.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from flask import Flask, Request, Response
from flask.globals import request_ctx
from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_flask_exporter import PrometheusMetrics
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from app.http.environ import ARRIVAL
from app.metrics.http_families import Exchange, HttpFamilies

UNMATCHED = "none"
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"))
# Searched for anywhere in the route, as in vLLM: "/load" also hides "/v1/load_lora_adapter".
_EXCLUDED = re.compile("/metrics|/health|/load|/ping|/version|/server_info|^/ready$")
_CONVERTER = re.compile(r"<(?:[^<>:]+:)?([^<>]+)>")


def _size(chunk: bytes | str) -> int:
    return len(chunk) if isinstance(chunk, bytes) else len(chunk.encode())


class _Counted:
    """A streamed body that counts its bytes; closing it closes the body."""

    __slots__ = ("_body", "_next", "bytes_sent")

    def __init__(self, body: Iterable[bytes] | Iterable[str]) -> None:
        self._body = body
        self._next = iter(body).__next__
        self.bytes_sent = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        chunk: Any = self._next()
        self.bytes_sent += _size(chunk)
        return chunk

    def close(self) -> None:
        close = getattr(self._body, "close", None)
        if close:
            close()


class HttpMetrics(PrometheusMetrics):  # type: ignore[misc]  # the exporter ships no types
    """Flask extension; `init_app` attaches it, `registry` holds process metrics and whatever is added to it.

    `clock` gives monotonic seconds, `now` Unix seconds. Call `init_app` before other `after_request` hooks
    are registered: Flask runs them in reverse, so this one then sees the response that really leaves.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time
    ) -> None:
        registry = CollectorRegistry()
        super().__init__(None, path=None, export_defaults=False, registry=registry)
        for collector in (GCCollector, PlatformCollector, ProcessCollector):
            collector(registry=registry)
        self.families = HttpFamilies(now)
        self._clock = clock
        # (method, rule, status) -> series, or None for routes that are not counted
        self._exchanges: dict[tuple[str, str, int], Exchange | None] = {}

    def init_app(self, app: Flask) -> None:
        """Count every exchange of `app` from its arrival to the end of its response."""
        wsgi_app, clock = app.wsgi_app, self._clock

        def stamped(environ: dict[str, Any], start_response: Any) -> Any:
            if ARRIVAL not in environ:  # a server that does not stamp requests itself
                environ[ARRIVAL] = clock()
            return wsgi_app(environ, start_response)

        app.wsgi_app = stamped  # type: ignore[method-assign]
        app.after_request(self._follow)

    def observe(
        self, method: str, handler: str, status: int, seconds: float, request_bytes: int, response_bytes: int
    ) -> None:
        """Count an exchange that did not pass through Flask; `handler` is the route as vLLM writes it."""
        if exchange := self._exchange(method, handler, status):
            exchange.observe(seconds, request_bytes, response_bytes)

    def process_text(self) -> str:
        """Python and process families, and whatever else was added to the registry."""
        return generate_latest(self.registry).decode()

    def generate_metrics(
        self, accept_header: str | None = None, names: list[str] | None = None
    ) -> tuple[str, str]:
        """The text that the exporter's own endpoint would give; `names` picks from the registry."""
        text, content_type = super().generate_metrics(accept_header, names)
        return (text if names else text + self.families.render()), content_type

    def _exchange(self, method: str, rule: str, status: int) -> Exchange | None:
        # A client must not be able to create series with methods of its own making.
        key = (method if method in METHODS else "other", rule, status)
        try:
            return self._exchanges[key]
        except KeyError:
            handler = _CONVERTER.sub(r"{\1}", rule)
            found = None if _EXCLUDED.search(handler) else self.families.exchange(key[0], handler, status)
            self._exchanges[key] = found
            return found

    def _follow(self, response: Response) -> Response:
        """After-request hook: observe the exchange when its response has ended."""
        current = request_ctx.request
        rule = current.url_rule
        route = rule.rule if rule else _unmatched(current)
        exchange = self._exchange(current.method, route, response.status_code) if route else None
        if exchange and ARRIVAL in current.environ:
            self._observe_at_end(exchange, current.environ, response)
        return response

    def _observe_at_end(self, exchange: Exchange, environ: dict[str, Any], response: Response) -> None:
        if type(response.response) is list:  # it is all there, and leaves in the next moment
            self._ended(exchange, environ, sum(map(_size, response.response)))
        elif response.direct_passthrough:  # a file in the server's hands: its end is not seen here
            self._ended(exchange, environ, response.content_length or 0)
        else:
            if not hasattr(response.response, "bytes_sent"):
                response.response = _Counted(response.response)
            response.call_on_close(partial(self._stream_ended, exchange, environ, response.response))

    def _stream_ended(self, exchange: Exchange, environ: dict[str, Any], body: Any) -> None:
        self._ended(exchange, environ, body.bytes_sent)

    def _ended(self, exchange: Exchange, environ: dict[str, Any], response_bytes: int) -> None:
        declared = environ.get("CONTENT_LENGTH") or "0"
        request_bytes = int(declared) if declared.isdecimal() and len(declared) < 19 else 0
        exchange.observe(self._clock() - environ[ARRIVAL], request_bytes, response_bytes)


def _unmatched(current: Request) -> str | None:
    """The handler label of a request without a rule: its route when only the method is wrong, else `none`.

    None when the path looks like one that is not counted.
    """
    error = current.routing_exception
    adapter = request_ctx.url_adapter
    if isinstance(error, MethodNotAllowed) and error.valid_methods and adapter:
        with suppress(HTTPException):
            rule, _ = adapter.match(method=next(iter(error.valid_methods)), return_rule=True)
            return rule.rule
    return None if _EXCLUDED.search(current.path) else UNMATCHED
