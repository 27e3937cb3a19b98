"""OpenTelemetry traces: how spans leave (docs/tracing.md); `app.middleware.traces` makes them.

Off unless `otlp-traces-endpoint` is set; then nothing of OpenTelemetry is imported.
"""
