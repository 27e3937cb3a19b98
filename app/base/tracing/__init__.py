"""Export of OpenTelemetry traces (docs/tracing.md); `app.serving.middleware.traces` makes the spans.

Off unless `otlp-traces-endpoint` is set; OpenTelemetry is not imported then.
"""
