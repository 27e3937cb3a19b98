"""OpenTelemetry traces."""

from dataclasses import dataclass

from config.fields import setting
from config.rules import Rule, not_empty

URL = Rule(
    "must begin with http:// or https://: spans are sent as OTLP over HTTP",
    lambda value, room: value.startswith(("http://", "https://")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingSettings:
    """OpenTelemetry traces."""

    otlp_traces_endpoint: str | None = setting(
        None,
        env=("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",),
        help="Where spans are sent (OTLP over HTTP), as http://collector:4318/v1/traces; off when empty.",
        rule=URL,
    )
    otlp_service_name: str = setting(
        "understudy", env=("OTEL_SERVICE_NAME",), help="service.name of the spans.", rule=not_empty()
    )
