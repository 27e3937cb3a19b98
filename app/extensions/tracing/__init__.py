"""Spans of requests for an OpenTelemetry collector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.extensions import Extension, Position
from app.extensions.explanation import Explanations
from app.extensions.tracing.settings import TracingSettings

if TYPE_CHECKING:
    from app.core.server.middleware.stack import Middleware
    from config import Settings as AllSettings


class Tracing(Extension):
    """Sends a span for each request, with child spans for the phases of its sequences."""

    name = "tracing"
    Settings = TracingSettings
    requires = ("explanation",)

    @classmethod
    def is_enabled(cls, settings: AllSettings) -> bool:
        """Returns whether a collector is set."""
        return settings.section(TracingSettings).otlp_traces_endpoint is not None

    def middleware(self) -> Mapping[Position, Sequence[Middleware]]:
        """Returns the tracing of requests, which also covers those that are refused."""
        from app.extensions.tracing.export import create_tracing
        from app.extensions.tracing.traces import Traces

        parts = self.parts
        sender, make_tracer = create_tracing(parts.settings.section(TracingSettings))
        caches = {"spans": sender}
        delays = parts.get(Explanations).delays
        return {Position.OUTSIDE: [Traces(make_tracer, parts.clock, delays, caches=caches)]}
