"""Switches tracing on, if the settings say where spans go."""

from __future__ import annotations

from functools import partial

from flask import Flask

from app.clock.clock import Clock
from app.engine.client import Service
from config.settings import TracingSettings


def init_tracing(app: Flask, settings: TracingSettings, service: Service, clock: Clock) -> None:
    """Trace the requests of `app` and the sequences of `service`, if the settings say where to.

    ImportError when `app.tracing.check_tracing` would have complained.
    """
    if settings.otlp_traces_endpoint is None:
        return
    from app.middleware.traces import RequestTracing
    from app.tracing.export import exporter_to, tracer_to

    make_tracer = partial(tracer_to, exporter_to(settings), settings.otlp_service_name)
    RequestTracing(make_tracer, clock).init_app(app, service)
