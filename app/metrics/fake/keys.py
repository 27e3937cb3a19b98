"""Which family each key of the fake metrics stands for, and what it then tells (simulator.md 14.4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from app.metrics.families import Bounds, token_bounds
from config.fake_metrics import Counts, FakeAdapters, FakeMetrics, Level

Told = Level | Counts | Mapping[str, int] | tuple[FakeAdapters, ...]
"""A gauge's level, a histogram's counts per bucket, a counter's number, one per finish reason, adapters."""

ADAPTERS = "vllm:lora_requests_info"
LEVELS = {
    "running_requests": "vllm:num_requests_running",
    "waiting_requests": "vllm:num_requests_waiting",
    "kv_cache_usage": "vllm:kv_cache_usage_perc",
}
WHOLE = frozenset((LEVELS["running_requests"], LEVELS["waiting_requests"]))
"""Levels of which a function gives whole numbers."""

HISTOGRAMS = {
    "ttft_buckets_values": "vllm:time_to_first_token_seconds",
    "tpot_buckets_values": "vllm:inter_token_latency_seconds",
    "request_tpot_buckets_values": "vllm:request_time_per_output_token_seconds",
    "e2erl_buckets_values": "vllm:e2e_request_latency_seconds",
    "queue_time_buckets_values": "vllm:request_queue_time_seconds",
    "inf_time_buckets_values": "vllm:request_inference_time_seconds",
    "prefill_time_buckets_values": "vllm:request_prefill_time_seconds",
    "decode_time_buckets_values": "vllm:request_decode_time_seconds",
    "request_prompt_tokens": "vllm:request_prompt_tokens",
    "request_generation_tokens": "vllm:request_generation_tokens",
    "request_params_max_tokens": "vllm:request_params_max_tokens",
    "request_max_generation_tokens": "vllm:request_max_num_generation_tokens",
}
COUNTERS = {
    "prefix_cache_hits": "vllm:prefix_cache_hits_total",
    "prefix_cache_queries": "vllm:prefix_cache_queries_total",
    "request_success_total": "vllm:request_success_total",
}
# Explicit total, counts that it is derived from otherwise, family.
TOTALS = (
    ("total_prompt_tokens", "request_prompt_tokens", "vllm:prompt_tokens_total"),
    ("total_generation_tokens", "request_generation_tokens", "vllm:generation_tokens_total"),
)


def told(fakes: FakeMetrics, max_model_len: int) -> Iterator[tuple[str, Told]]:
    """Family name and what it tells, for all families that are not to be absent."""
    for key, name in (*LEVELS.items(), *COUNTERS.items()):
        value = getattr(fakes, key)
        if value is not None and value != {}:
            yield name, value
    for key, name in HISTOGRAMS.items():
        if counts := getattr(fakes, key):
            yield name, counts
    for key, of, name in TOTALS:
        total, counts = getattr(fakes, key), getattr(fakes, of)
        if total is not None:
            yield name, total
        elif counts:
            yield name, total_tokens(counts, token_bounds(max_model_len))
    yield ADAPTERS, fakes.loras


def observed(counts: Counts, bounds: Bounds) -> Iterator[tuple[float, int]]:
    """A value of each bucket and its count: the upper bound, and one more than the last bound beyond it."""
    beyond = bounds[-1] + 1
    for place, count in enumerate(counts):
        yield (bounds[place] if place < len(bounds) else beyond), count


def total_tokens(counts: Counts, bounds: Bounds) -> int:
    """The tokens that the observations amount to."""
    return sum(int(value) * count for value, count in observed(counts, bounds))
