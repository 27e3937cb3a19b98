"""Settings of metrics and logs."""

from typing import Annotated, Literal

from config.declaration import LIVE, About, Section

TRACE = 5
"""Number of the level `trace` in `logging`, below DEBUG (10)."""


class MetricsSettings(Section, frozen=True, kw_only=True):
    """Content of the metrics."""

    disable_log_stats: bool = False
    """Omit vLLM's metric families. HTTP and process metrics are still reported."""
    simulator_metrics: bool = False
    """Also report three metric families under old names that vLLM no longer uses. For details, see
    docs/metrics.md."""


class LogSettings(Section, frozen=True, kw_only=True):
    """Content and format of logs."""

    log_level: Annotated[
        Literal["trace", "debug", "info", "warning", "error", "critical"],
        About(env=("VLLM_LOGGING_LEVEL",)),
    ] = "info"
    """Lowest severity that is logged. If the value is trace, the tokens, keys, and scores of each
    index lookup are also logged."""
    log_format: Literal["text", "json"] = "text"
    """Format for log lines: plain text or JSON objects."""
    access_log: bool = False
    """Log one line per request after its response has been sent."""
    log_http: Annotated[bool, LIVE] = False
    """Log the method and path of every request along with the headers and bodies of the request and
    its response. Secrets are masked, and streamed bodies are omitted."""
