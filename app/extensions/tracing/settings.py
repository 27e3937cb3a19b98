"""Settings of traces."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

from config.declaration import About, Extra, Section

CollectorUrl = Annotated[
    str,
    Meta(
        pattern="^https?://",
        description="must begin with http:// or https://: spans are sent as OTLP over HTTP",
    ),
]


class TracingSettings(Section, frozen=True, kw_only=True):
    """OpenTelemetry traces."""

    otlp_traces_endpoint: Annotated[
        CollectorUrl | None, About(env=("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",))
    ] = None
    """URL that receives spans as OTLP over HTTP, such as http://collector:4318/v1/traces. If this
    setting is empty, tracing is off."""

    def extras(self) -> Mapping[Extra, str]:
        """Returns the OpenTelemetry SDK, if spans are sent."""
        if self.otlp_traces_endpoint is None:
            return {}
        return {"tracing": "otlp-traces-endpoint"}
