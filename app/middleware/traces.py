"""Traces the requests of an application, from their arrival to the end of their answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property, partial

from opentelemetry.context import Context
from opentelemetry.trace import Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from app.clock.clock import Clock
from app.http.context import RequestContext
from app.http.response import Response
from app.middleware.http_metrics import METHODS
from app.middleware.request_trace import NANOSECONDS, RequestTrace
from app.middleware.stack import Middleware
from app.tracing import attributes as names

UNTRACED = frozenset(("/health", "/health/ready", "/load", "/metrics", "/ping", "/ready", "/version"))
"""What probes and scrapers ask many times a minute."""
OTHER = "_OTHER"
"""What OpenTelemetry's conventions call a method that nobody knows."""


class Traces(Middleware):
    """Traces requests and what the engine does for them. `make_tracer` is called by the first one, so in the
    worker.

    `clock` is the one that stamps arrivals, `unix_ns` the Unix time in nanoseconds.
    """

    def __init__(
        self, make_tracer: Callable[[], Tracer], clock: Clock, unix_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._make_tracer = make_tracer
        self._clock = clock
        self._unix_ns = unix_ns
        self._propagator = TraceContextTextMapPropagator()

    @cached_property
    def _tracer(self) -> Tracer:
        return self._make_tracer()

    def begin(self, context: RequestContext) -> None:
        """Begin the span of the request."""
        if context.path in UNTRACED:
            return
        method = context.method if context.method in METHODS else OTHER
        route = context.route
        name = f"{method} {route.path}" if route else method
        zero_ns = self._unix_ns() - int(self._clock.now() * NANOSECONDS)
        attributes = {names.HTTP_METHOD: method, names.URL_PATH: context.path}
        if route:
            attributes[names.HTTP_ROUTE] = route.path
        trace = RequestTrace(
            self._tracer, name, attributes, self._parent(context), context.arrival_s, zero_ns
        )
        if trace.span.is_recording():
            context.keep(trace)
            context.observers = (*context.observers, trace.watch)

    def end(self, context: RequestContext, response: Response) -> None:
        """The span ends when the response does."""
        trace = context.kept(RequestTrace)
        if trace is not None:
            trace.span.set_attribute(names.HTTP_STATUS, response.status)
            if response.status >= 500:
                trace.span.set_status(Status(StatusCode.ERROR))
            response.on_close(partial(self._end, trace))

    def _end(self, trace: RequestTrace) -> None:
        trace.end(self._clock.now())

    def _parent(self, context: RequestContext) -> Context:
        """The client's span (W3C trace context), or nothing."""
        headers = context.headers
        if "traceparent" not in headers:
            return Context()
        given = {name: headers.get(name, "") for name in ("traceparent", "tracestate")}
        return self._propagator.extract(given, Context())
