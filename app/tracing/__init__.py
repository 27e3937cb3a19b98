"""OpenTelemetry traces: how spans leave (docs/tracing.md); `app.middleware.traces` makes them.

Off unless `otlp-traces-endpoint` is set; then nothing of OpenTelemetry is imported.
"""

from __future__ import annotations

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
