"""Settings of metrics and logs."""

from typing import Annotated, Literal

from config.declaration import LIVE, About, Section

TRACE = 5
"""Number of the level `trace` in `logging`, below DEBUG (10)."""


class MetricsSettings(Section, frozen=True, kw_only=True):
    """Content of the metrics."""

    disable_log_stats: bool = False
    """Omit vLLM's metric families; HTTP and process families remain."""
    simulator_metrics: bool = False
    """Also report three families under their older names, which vLLM has removed; see
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
