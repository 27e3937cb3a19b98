"""Settings of metrics and logs."""

from typing import Annotated, Literal

from config.declaration import LIVE, About, Json, PositiveDuration, Section, understood_by
from config.fake_metrics import parse

TRACE = 5
"""Number of the level `trace` in `logging`, below DEBUG (10)."""


class MetricsSettings(Section, frozen=True, kw_only=True):
    """Content of the metrics."""

    disable_log_stats: bool = False
    """Omit vLLM's metric families; those of HTTP and of the process remain."""
    fake_metrics: Annotated[
        Json | None,
        LIVE,
        understood_by(parse, "must have only keys and values that docs/metrics.md describes"),
    ] = None
    """JSON object of metrics that replace the real ones; see docs/metrics.md."""
    fake_metrics_refresh_interval: PositiveDuration = 0.1
    """Time between updates of fake metrics that are functions of time."""
    simulator_metrics: bool = False
    """Report three families under their older names, too, which vLLM has removed; see
    docs/metrics.md."""


class LogSettings(Section, frozen=True, kw_only=True):
    """Content and format of logs."""

    log_level: Annotated[
        Literal["trace", "debug", "info", "warning", "error", "critical"],
        About(env=("VLLM_LOGGING_LEVEL",)),
    ] = "info"
    """Lowest severity that is logged; trace logs the tokens, keys and scores of each index
    lookup."""
    log_format: Literal["text", "json"] = "text"
    """Format of a log line: plain text, or a JSON object."""
    access_log: bool = False
    """Log a line for each request when its response has been sent."""
    log_http: Annotated[bool, LIVE] = False
    """Log method, path, headers and body of every request and of every complete response, with
    secrets masked."""
