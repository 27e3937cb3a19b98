"""OpenTelemetry traces: a span per request, and below it what each sequence went through (docs/tracing.md).

Off unless `otlp-traces-endpoint` is set; then nothing of OpenTelemetry is imported.
"""

from __future__ import annotations

from functools import partial

from app.clock.clock import Clock
from app.engine.client import EngineClient
from app.web.application import Understudy
from config import ConfigError
from config.settings import TracingSettings

REQUIREMENTS = "requirements-tracing.txt"


def check_tracing(settings: TracingSettings) -> None:
    """ConfigError when traces are asked for and the packages that make them are missing."""
    if settings.otlp_traces_endpoint is None:
        return
    try:
        import app.tracing.export  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"setting otlp-traces-endpoint: needs the packages of {REQUIREMENTS} ({error})"
        ) from error


def init_tracing(app: Understudy, settings: TracingSettings, service: EngineClient, clock: Clock) -> None:
    """Trace the requests of `app` and the sequences of `service`, if the settings say where to.

    ImportError when `check_tracing` would have complained.
    """
    if settings.otlp_traces_endpoint is None:
        return
    from app.middleware.traces import RequestTracing
    from app.tracing.export import exporter_to, tracer_to

    make_tracer = partial(tracer_to, exporter_to(settings), settings.otlp_service_name)
    RequestTracing(make_tracer, clock).init_app(app, service)
