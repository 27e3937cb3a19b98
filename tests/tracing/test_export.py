"""Spans leave in batches; a collector that does not take them costs spans, and one line a minute."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from opentelemetry.trace import Tracer

from app.tracing import export
from app.tracing.export import BATCH, MOST_WAITING, QUIET_S, Outlet, Reason, exporter_to, tracer_to
from config.settings import TracingSettings
from tests.running_server import free_port
from tests.tracing.collector import Collector, running_collector


class Kept(SpanExporter):
    """Keeps what it is given, and then fails if it is told to."""

    def __init__(self, result: SpanExportResult | Exception = SpanExportResult.SUCCESS) -> None:
        self.batches: list[list[str]] = []
        self.result = result
        self.closed = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.batches.append([span.name for span in spans])
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    def shutdown(self) -> None:
        self.closed = True


def traced(outlet: Outlet, sampler: Sampler = ALWAYS_ON) -> Tracer:
    provider = TracerProvider(sampler, shutdown_on_exit=False)
    provider.add_span_processor(outlet)
    return provider.get_tracer("test")


def make(tracer: Tracer, count: int) -> list[str]:
    """Begin and end `count` spans; their names."""
    made = [str(number) for number in range(count)]
    for name in made:
        tracer.start_span(name).end()
    return made


def lost(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == export.__name__]


def test_spans_leave_in_order_and_in_batches() -> None:
    kept = Kept()
    outlet = Outlet(kept, Reason())
    made = make(traced(outlet), 2 * BATCH + 1)
    assert not kept.batches
    assert outlet.force_flush()
    assert [len(batch) for batch in kept.batches] == [BATCH, BATCH, 1]
    assert sum(kept.batches, []) == made


def test_spans_leave_without_being_asked_for() -> None:
    with running_collector() as collector:
        settings = TracingSettings(otlp_traces_endpoint=collector.url, otlp_service_name="mine")
        tracer = tracer_to(exporter_to(settings), settings.otlp_service_name)
        tracer.start_span("one", attributes={"a": 1}).end()
        wait_in_the_hub(collector)
    (span,) = collector.spans
    assert (span.name, span.told, span.resource["service.name"]) == ("one", {"a": 1}, "mine")
    assert collector.headers[0]["content-type"] == "application/x-protobuf"


def wait_in_the_hub(collector: Collector) -> None:
    """Let greenlets run until a span has arrived."""
    import gevent

    with gevent.Timeout(20):
        while not collector.spans:
            gevent.sleep(0.01)


def test_what_is_not_sampled_is_not_sent() -> None:
    kept = Kept()
    outlet = Outlet(kept, Reason())
    make(traced(outlet, ALWAYS_OFF), 3)
    assert outlet.force_flush()
    assert not kept.batches


def test_an_end_sends_what_waits_and_closes() -> None:
    kept = Kept()
    outlet = Outlet(kept, Reason())
    made = make(traced(outlet), 3)
    outlet.shutdown()
    assert (kept.batches, kept.closed) == ([made], True)


@pytest.mark.parametrize("result", [SpanExportResult.FAILURE, RuntimeError("broken")])
def test_spans_that_cannot_be_sent_are_told_of_once_a_minute(
    caplog: pytest.LogCaptureFixture, result: SpanExportResult | Exception
) -> None:
    kept, now_s = Kept(result), [0.0]
    outlet = Outlet(kept, Reason(), lambda: now_s[0])
    tracer = traced(outlet)
    for moment_s in (0, 1, QUIET_S - 1, QUIET_S, QUIET_S + 1):
        now_s[0] = moment_s
        make(tracer, 10)
        assert outlet.force_flush()
    assert [line.partition(" ")[0] for line in lost(caplog)] == ["10", "30"]


def test_more_spans_than_can_wait_are_lost(caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept()
    outlet = Outlet(kept, Reason())
    make(traced(outlet), MOST_WAITING + 7)
    assert outlet.force_flush()
    assert sum(map(len, kept.batches)) == MOST_WAITING
    assert [line.partition(" ")[0] for line in lost(caplog)] == ["7"]


def test_the_reason_is_the_first_that_the_library_gave(caplog: pytest.LogCaptureFixture) -> None:
    reason = Reason.of("a.library")
    logger = logging.getLogger("a.library")
    for word in ("first", "second"):
        logger.warning("the %s", word)
    assert [reason.take(), reason.take()] == ["the first", "no reason given"]
    assert not caplog.records


def test_a_dead_collector_is_named(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "2")
    port = free_port()
    exporter = exporter_to(TracingSettings(otlp_traces_endpoint=f"http://127.0.0.1:{port}/v1/traces"))
    outlet = Outlet(exporter, Reason.of(trace_exporter.__name__))
    make(traced(outlet), 1)
    assert outlet.force_flush(20_000)
    (line,) = lost(caplog)
    assert line.startswith("1 spans are lost: ") and str(port) in line
