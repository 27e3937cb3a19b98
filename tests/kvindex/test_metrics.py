"""What the index tells of itself to Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from app.kvindex.metrics import IndexMetrics, Losses

LLM_D_SECONDS = ["0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1.0", "2.5", "5.0", "10.0"]
"""Buckets of llm-d's histograms (kv-cache specification, 4)."""
FASTER = ["0.0001", "0.00025", "0.0005", "0.001", "0.0025"]

Samples = Mapping[tuple[str, ...], float]


def samples_of(metrics: IndexMetrics, **more: Any) -> Samples:
    """Values by the name of a sample, without `kvcache_`, and its labels."""
    losses: Losses = more.pop("losses", Losses())
    text = metrics.render(more.pop("gauges", {}), losses.messages, losses.events, **more)
    return {
        (sample.name.removeprefix("kvcache_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def buckets(samples: Samples, name: str) -> list[str]:
    return [labels[0] for family, *labels in samples if family == f"{name}_latency_seconds_bucket"]


def test_latencies_have_the_buckets_of_llm_d_and_lookups_some_below() -> None:
    metrics = IndexMetrics()
    metrics.looked_up(0.0002, 3)
    metrics.tokenized("t", 0.3, 5)
    metrics.rendered("t", 0.02)
    samples = samples_of(metrics)
    assert buckets(samples, "index_lookup") == [*FASTER, *LLM_D_SECONDS, "+Inf"]
    for name in ("tokenization_render_chat_template", "tokenization_tokenization"):
        assert buckets(samples, name) == [*LLM_D_SECONDS, "+Inf"]
    assert samples["index_lookup_latency_seconds_bucket", "0.0001"] == 0
    assert samples["index_lookup_latency_seconds_bucket", "0.00025"] == 1
    assert samples["tokenization_tokenized_tokens_total", "t"] == 5


def test_everything_is_counted_as_often_as_it_happens() -> None:
    metrics = IndexMetrics()
    for _ in range(3):
        metrics.changed(10, 4)
        metrics.looked_up(0.1, 7)
        metrics.received.inc()
        metrics.restarts.inc()
        metrics.crowded_out.inc()
        metrics.replayed("failed")
    samples = samples_of(metrics, times_lost=2, gauges={"index_blocks": 5})
    assert metrics.received.value == 3
    assert {name: value for (name, *_), value in samples.items() if value and name.endswith("_total")} == {
        "index_admissions_total": 30,
        "index_evictions_total": 12,
        "index_lookup_requests_total": 3,
        "index_lookup_hits_total": 21,
        "index_max_pod_hit_count_total": 21,
        "events_messages_total": 3,
        "events_pod_restarts_total": 3,
        "events_pods_evicted_total": 3,
        "events_replays_total": 3,
        "index_backend_losses_total": 2,
    }
    assert samples["index_blocks",] == 5
