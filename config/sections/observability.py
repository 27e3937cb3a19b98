"""Settings of metrics, logs and traces."""

from typing import Annotated, Literal

from msgspec import Meta

from config.declaration import About, Json, NonEmpty, PositiveDuration, Section, understood_by
from config.fake_metrics import parse

TRACE = 5
"""Number of the level `trace` in `logging`, below DEBUG (10)."""
CollectorUrl = Annotated[
    str,
    Meta(
        pattern="^https?://",
        description="must begin with http:// or https://: spans are sent as OTLP over HTTP",
    ),
]


class MetricsSettings(Section, frozen=True, kw_only=True):
    """What the metrics say."""

    disable_log_stats: Annotated[
        bool, About("Report no family of vLLM's; those of HTTP and of the process are there.")
    ] = False
    fake_metrics: Annotated[
        Json | None,
        About(
            "JSON object of metrics that are told instead of the true ones; see docs/metrics.md.", live=True
        ),
        understood_by(parse, "must have only keys and values that are described there"),
    ] = None
    fake_metrics_refresh_interval: Annotated[
        PositiveDuration, About("Time for which fake metrics that are functions of time keep a value.")
    ] = 0.1
    simulator_metrics: Annotated[
        bool,
        About("Three families have their older names, too, which vLLM has no more; see docs/metrics.md."),
    ] = False


class LogSettings(Section, frozen=True, kw_only=True):
    """What is logged, and how."""

    log_level: Annotated[
        Literal["trace", "debug", "info", "warning", "error", "critical"],
        About(
            "Least severe level that is logged; trace shows the tokens, keys and scores of each lookup of an "
            "index.",
            env=("VLLM_LOGGING_LEVEL",),
        ),
    ] = "info"
    log_format: Annotated[Literal["text", "json"], About("Lines for people or JSON objects.")] = "text"
    access_log: Annotated[bool, About("Log a line for each request when its answer has been sent.")] = False
    log_http: Annotated[
        bool,
        About(
            "Log method, path, headers and body of every request and of every whole answer; secrets masked.",
            live=True,
        ),
    ] = False


class TracingSettings(Section, frozen=True, kw_only=True):
    """OpenTelemetry traces."""

    otlp_traces_endpoint: Annotated[
        CollectorUrl | None,
        About(
            "Where spans are sent (OTLP over HTTP), as http://collector:4318/v1/traces; off when empty.",
            env=("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",),
        ),
    ] = None
    otlp_service_name: Annotated[
        NonEmpty, About("service.name of the spans.", env=("OTEL_SERVICE_NAME",))
    ] = "understudy"
