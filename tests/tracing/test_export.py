"""Spans leave in batches; a collector that does not take them costs spans, and one line a minute."""

from __future__ import annotations

import gevent
import pytest

from app.serving.middleware.traces import BATCH, QUIET_S, SpanSender, sampled_part
from app.wiring.factory import create_app
from config.loader import load
from tests.tracing.collector import decoded


class Kept:
    """A collector that keeps the names of what it is given, and fails for this `reason`."""

    def __init__(self, reason: str = "") -> None:
        self.batches: list[list[str]] = []
        self.reason = reason

    def __call__(self, message: bytes) -> str:
        self.batches.append([span.name for span in decoded(message)])
        return self.reason


def put(sender: SpanSender, count: int) -> list[str]:
    """Ends `count` spans; their names."""
    made = [str(number) for number in range(count)]
    for name in made:
        sender.put(b'{"name":"%b"}' % name.encode())
    return made


def lost(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "spans are lost" in record.getMessage()]


def test_spans_leave_in_order_and_in_batches() -> None:
    kept = Kept()
    sender = SpanSender(kept, {})
    made = put(sender, 2 * BATCH + 1)
    assert not kept.batches
    sender.close()
    assert [len(batch) for batch in kept.batches] == [BATCH, BATCH, 1]
    assert sum(kept.batches, []) == made


def test_spans_that_wait_are_told_among_the_caches() -> None:
    app = create_app(load(("--otlp-traces-endpoint=http://127.0.0.1:9",), {}))
    caches = {name: cache for room in app.caches for name, cache in room().items()}
    assert (caches["spans"].size_bytes, caches["spans"].limit_bytes) == (0, 32 << 20)


def test_spans_that_cannot_be_sent_are_told_of_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    sender = SpanSender(Kept("it is broken"), {}, lambda: now_s[0])
    for moment_s, told in ((0.0, 1), (QUIET_S / 2, 1), (QUIET_S, 2)):
        now_s[0] = moment_s
        put(sender, 3)
        sender.close()
        assert len(lost(caplog)) == told
    assert lost(caplog) == ["3 spans are lost: it is broken", "6 spans are lost: it is broken"]


def test_spans_beyond_the_memory_for_them_are_lost(caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept()
    sender = SpanSender(kept, {})
    sender.limit_bytes = 120
    made = put(sender, 20)
    assert sender.size_bytes == 120
    sender.close()
    gevent.sleep(0)
    assert (sum(kept.batches, []), sender.size_bytes) == (made[:10], 0)
    assert lost(caplog) == ["10 spans are lost: they wait for the collector"]


@pytest.mark.parametrize(
    ("name", "ratio", "part"),
    [("", "", 1), ("parentbased_traceidratio", "0.1", 0.1), ("traceidratio", "", 1), ("always_off", "", 0)],
)
def test_the_sampler_is_that_of_opentelemetrys_variables(name: str, ratio: str, part: float) -> None:
    assert sampled_part({"OTEL_TRACES_SAMPLER": name, "OTEL_TRACES_SAMPLER_ARG": ratio}) == part
