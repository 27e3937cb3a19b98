"""Traces the requests of an application, from their arrival to the end of their answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any

from flask import Flask, has_request_context, request
from opentelemetry.context import Context
from opentelemetry.trace import Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from app.clock.clock import Clock
from app.engine.client import EngineClient
from app.engine.observer import Watch
from app.engine.request import EngineRequest
from app.http.environ import ARRIVAL
from app.http.response import Reply
from app.middleware.http_metrics import METHODS
from app.middleware.request_trace import NANOSECONDS, RequestTrace
from app.tracing import attributes as names

UNTRACED = frozenset(("/health", "/health/ready", "/load", "/metrics", "/ping", "/ready", "/version"))
"""What probes and scrapers ask many times a minute."""
TRACE = "understudy.trace"
"""Key of the WSGI environ: the trace of the request."""
OTHER = "_OTHER"
"""What OpenTelemetry's conventions call a method that nobody knows."""


class RequestTracing:
    """Flask extension. `make_tracer` is called by the first traced request, so in the worker.

    `clock` is the one that stamps arrivals, `unix_ns` the Unix time in nanoseconds.
    """

    def __init__(
        self, make_tracer: Callable[[], Tracer], clock: Clock, unix_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._make_tracer = make_tracer
        self._clock = clock
        self._unix_ns = unix_ns
        self._propagator = TraceContextTextMapPropagator()

    def init_app(self, app: Flask, service: EngineClient) -> None:
        """Trace the requests of `app`, and what `service` does for them."""
        app.before_request(self.begin)
        app.after_request(self.follow)
        service.observers.append(self.observe)

    @cached_property
    def _tracer(self) -> Tracer:
        return self._make_tracer()

    def begin(self) -> None:
        """Before the request: its span."""
        environ = request.environ
        if environ["PATH_INFO"] in UNTRACED:
            return
        method = request.method if request.method in METHODS else OTHER
        name = f"{method} {request.url_rule.rule}" if request.url_rule else method
        zero_ns = self._unix_ns() - int(self._clock.now() * NANOSECONDS)
        told = {names.HTTP_METHOD: method, names.URL_PATH: request.path}
        if request.url_rule:
            told[names.HTTP_ROUTE] = request.url_rule.rule
        trace = RequestTrace(self._tracer, name, told, self._parent(environ), environ[ARRIVAL], zero_ns)
        if trace.span.is_recording():
            environ[TRACE] = trace

    def observe(self, generation: EngineRequest) -> Watch | None:
        """What a sequence of the current request, if that is traced, tells its outcome to."""
        trace = request.environ.get(TRACE) if has_request_context() else None
        return trace.watch(generation) if trace is not None else None

    def follow(self, reply: Reply) -> Reply:
        """After the request: its span ends when the response does."""
        trace = request.environ.get(TRACE)
        if trace is not None:
            trace.span.set_attribute(names.HTTP_STATUS, reply.status_code)
            if reply.status_code >= 500:
                trace.span.set_status(Status(StatusCode.ERROR))
            reply.call_on_close(partial(self._end, trace))
        return reply

    def _end(self, trace: RequestTrace) -> None:
        trace.end(self._clock.now())

    def _parent(self, environ: Mapping[str, Any]) -> Context:
        """The client's span (W3C trace context), or nothing."""
        if "HTTP_TRACEPARENT" not in environ:
            return Context()
        told = {name: environ.get(f"HTTP_{name.upper()}", "") for name in ("traceparent", "tracestate")}
        return self._propagator.extract(told, Context())
