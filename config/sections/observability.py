"""Settings of metrics, logs and traces."""

from typing import Annotated, Literal

from msgspec import Meta

from config.declaration import LIVE, About, Json, PositiveDuration, Section, understood_by
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
    """Content of the metrics."""

    disable_log_stats: bool = False
    """Report no family of vLLM's; those of HTTP and of the process are there."""
    fake_metrics: Annotated[
        Json | None,
        LIVE,
        understood_by(parse, "must have only keys and values that are described there"),
    ] = None
    """JSON object of metrics that are reported instead of the true ones; see docs/metrics.md."""
    fake_metrics_refresh_interval: PositiveDuration = 0.1
    """Time for which fake metrics that are functions of time keep a value."""
    simulator_metrics: bool = False
    """Three families have their older names, too, which vLLM has no more; see docs/metrics.md."""


class LogSettings(Section, frozen=True, kw_only=True):
    """Logs, and their form."""

    log_level: Annotated[
        Literal["trace", "debug", "info", "warning", "error", "critical"],
        About(env=("VLLM_LOGGING_LEVEL",)),
    ] = "info"
    """Least severe level that is logged; trace shows the tokens, keys and scores of each lookup of
    an index."""
    log_format: Literal["text", "json"] = "text"
    """Lines for people or JSON objects."""
    access_log: bool = False
    """Log a line for each request when its answer has been sent."""
    log_http: Annotated[bool, LIVE] = False
    """Log method, path, headers and body of every request and of every whole answer; secrets
    masked.
    """


class TracingSettings(Section, frozen=True, kw_only=True):
    """OpenTelemetry traces."""

    otlp_traces_endpoint: Annotated[
        CollectorUrl | None, About(env=("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",))
    ] = None
    """Address for spans (OTLP over HTTP), as http://collector:4318/v1/traces; off when empty."""
