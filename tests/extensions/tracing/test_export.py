"""Spans leave in batches; a collector that does not take them costs spans, and one line a minute."""

import gc
import tracemalloc
from collections.abc import Callable, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Tracer
from opentelemetry.util.types import AttributeValue

from app.extensions.tracing.export import BATCH_SPANS, LOG_INTERVAL_S, SpanSender, span_bytes
from tests.application import app_of


class KeepingExporter(SpanExporter):
    """Keeps what it is given, and then fails if it is told to."""

    def __init__(self, result: SpanExportResult | Exception = SpanExportResult.SUCCESS) -> None:
        self.batches: list[list[str]] = []
        self.result = result

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.batches.append([span.name for span in spans])
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def traced(sender: SpanSender) -> Tracer:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(sender)
    return provider.get_tracer("test")


def make(tracer: Tracer, count: int) -> list[str]:
    """Begins and ends `count` spans, and returns their names."""
    names = [str(number) for number in range(count)]
    for name in names:
        tracer.start_span(name).end()
    return names


def lost(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "app.extensions.tracing.export"
    ]


def test_spans_are_exported_in_order_and_in_batches() -> None:
    exporter = KeepingExporter()
    sender = SpanSender(exporter)
    names = make(traced(sender), 2 * BATCH_SPANS + 1)
    assert not exporter.batches
    assert sender.force_flush()
    assert [len(batch) for batch in exporter.batches] == [BATCH_SPANS, BATCH_SPANS, 1]
    assert sum(exporter.batches, []) == names


def test_span_cache_starts_empty_and_has_a_limit_of_32_mib() -> None:
    app = app_of("--otlp-traces-endpoint=http://127.0.0.1:9")
    caches = {name: cache for room in app.caches for name, cache in room().items()}
    assert isinstance(caches["spans"], SpanSender)
    assert (caches["spans"].size_bytes, caches["spans"].limit_bytes) == (0, 32 << 20)


@pytest.mark.parametrize("result", [SpanExportResult.FAILURE, RuntimeError("broken")])
def test_lost_spans_are_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture, result: SpanExportResult | Exception
) -> None:
    exporter = KeepingExporter(result)
    now_s = 0.0

    def now() -> float:
        return now_s

    sender = SpanSender(exporter, now)
    tracer = traced(sender)
    for moment_s in (0, 1, LOG_INTERVAL_S - 1, LOG_INTERVAL_S, LOG_INTERVAL_S + 1):
        now_s = moment_s
        make(tracer, 10)
        assert sender.force_flush()
    assert [line.partition(" ")[0] for line in lost(caplog)] == ["10", "30"]


def test_spans_above_the_limit_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    exporter = KeepingExporter()
    sender = SpanSender(exporter)
    sender.limit_bytes = 2**20
    names = make(traced(sender), 1000)
    assert 2**20 - 8192 < sender.size_bytes <= 2**20
    assert sender.force_flush()
    fitted = sum(exporter.batches, [])
    assert (fitted, sender.size_bytes) == (names[: len(fitted)], 0)
    assert [line.partition(" ")[0] for line in lost(caplog)] == [str(len(names) - len(fitted))]


def no_attributes(number: int) -> dict[str, AttributeValue]:
    return {}


def many_numbers(number: int) -> dict[str, AttributeValue]:
    return {f"a{place}": number + place * 0.5 for place in range(19)}


def long_texts(number: int) -> dict[str, AttributeValue]:
    return {"url.path": f"{'/' * 8000}{number}", "reasons": (f"stop {number}",)}


@pytest.mark.parametrize(
    "attributes_of",
    [no_attributes, many_numbers, long_texts],
)
@pytest.mark.usefixtures("few_objects_to_collect")
def test_estimated_size_of_a_span_is_an_upper_bound(
    attributes_of: Callable[[int], dict[str, AttributeValue]],
) -> None:
    spans: list[ReadableSpan] = []

    class Keeper(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            spans.append(span)

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Keeper())
    tracer = provider.get_tracer("test")
    gc.collect()
    tracemalloc.start()
    for number in range(500):
        tracer.start_span("a name", attributes=attributes_of(number)).end()
    really, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert really <= sum(map(span_bytes, spans)) <= 2 * really
