"""The setting of traces, on vLLM's command line."""

from app.core.settings import resolve, settings_type
from app.extensions.tracing.settings import TracingSettings
from tests.callbacks import ignore
from vllm_facts.serve import settings_of


def test_grpc_collector_is_accepted_but_receives_no_spans() -> None:
    flags = settings_of(["m", "--otlp-traces-endpoint", "grpc://jaeger:4317"], {}, settings_type())
    settings = resolve(flags, {}, ignore)
    assert settings.section(TracingSettings).otlp_traces_endpoint is None
