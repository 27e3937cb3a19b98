"""The metrics of vLLM that a study reads, and their names in a study. Start at `key_of`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf, isfinite
from typing import Literal, NamedTuple

from msgspec import Struct

PREFIX = "vllm:"

Kind = Literal["counter", "gauge", "histogram"]

INPUT = "input_tokens"
OUTPUT = "output_tokens"
TTFT = "ttft_s"
TPOT = "tpot_s"
E2E = "e2e_s"
QUEUE = "queue_s"
RUNNING = "running"
WAITING = "waiting"
KV_USAGE = "kv_usage"
QUERIES = "cache_queries"
HITS = "cache_hits"
PREEMPTIONS = "preemptions"
STARTED = "started"
IN_FLIGHT = "in_flight"
"""Sum of running and waiting, whose changes count."""


class Quantity(Struct, frozen=True):
    """A quantity and the metrics that have it, the newest name first, without the prefix."""

    name: str
    kind: Kind
    metrics: tuple[str, ...]


QUANTITIES = (
    Quantity(INPUT, "histogram", ("request_prompt_tokens",)),
    Quantity(OUTPUT, "histogram", ("request_generation_tokens",)),
    Quantity(TTFT, "histogram", ("time_to_first_token_seconds",)),
    Quantity(
        TPOT,
        "histogram",
        ("request_time_per_output_token_seconds",),
    ),
    Quantity(E2E, "histogram", ("e2e_request_latency_seconds",)),
    Quantity(QUEUE, "histogram", ("request_queue_time_seconds",)),
    Quantity("prefill_s", "histogram", ("request_prefill_time_seconds",)),
    Quantity("decode_s", "histogram", ("request_decode_time_seconds",)),
    Quantity("prompt_tokens", "counter", ("prompt_tokens_total",)),
    Quantity("generation_tokens", "counter", ("generation_tokens_total",)),
    Quantity("success", "counter", ("request_success_total",)),
    Quantity(PREEMPTIONS, "counter", ("num_preemptions_total",)),
    Quantity(QUERIES, "counter", ("prefix_cache_queries_total", "gpu_prefix_cache_queries_total")),
    Quantity(HITS, "counter", ("prefix_cache_hits_total", "gpu_prefix_cache_hits_total")),
    Quantity(RUNNING, "gauge", ("num_requests_running",)),
    Quantity(WAITING, "gauge", ("num_requests_waiting",)),
    Quantity(KV_USAGE, "gauge", ("kv_cache_usage_perc", "gpu_cache_usage_perc")),
    Quantity(STARTED, "gauge", ("prompt_tokens_created",)),
)
REQUIRED = (INPUT, OUTPUT, TTFT, E2E)
"""Histograms without which there is no study."""
HISTOGRAMS = tuple(each.name for each in QUANTITIES if each.kind == "histogram")
LATENCIES = tuple(name for name in HISTOGRAMS if name.endswith("_s"))
GAUGES = (RUNNING, WAITING, KV_USAGE)
NO_COUNTERS = frozenset((*GAUGES, STARTED, IN_FLIGHT))
"""Quantities whose values also fall while a server runs."""
UNCOUNTED = frozenset((*GAUGES, STARTED))
"""Quantities whose differences mean nothing."""
CACHE_CONFIG = "vllm:cache_config_info"
REASON = "finished_reason"
LE = "le"
MODEL = "model_name"
MAX_VALUE = 1e18
"""Largest value of a sample; a larger one is no count of vLLM."""
MAX_UNIX_S = 1e11
"""Latest time of a sample."""


class Key(NamedTuple):
    """A series of a study, summed over the engines of a pod."""

    quantity: str
    part: str = ""
    """Of a histogram "sum" or "count", of requests their reason; empty otherwise."""
    bound: float = 0.0
    """Upper bound of a bucket, whose part is "bucket"."""


IN_FLIGHT_KEY = Key(IN_FLIGHT)
STARTED_KEY = Key(STARTED)


def _table() -> Iterator[tuple[str, tuple[Quantity, str]]]:
    for quantity in QUANTITIES:
        for metric in quantity.metrics:
            name = PREFIX + metric
            if quantity.kind == "histogram":
                for part in ("sum", "count", "bucket"):
                    yield f"{name}_{part}", (quantity, part)
            else:
                yield name, (quantity, "")


SERIES: Mapping[str, tuple[Quantity, str]] = dict(_table())
"""Name of a series -> its quantity and its part of a histogram."""
BUCKET_SERIES = tuple(name for name, (_, part) in SERIES.items() if part == "bucket")
OTHER_SERIES = tuple(name for name, (_, part) in SERIES.items() if part != "bucket")


def key_of(name: str, labels: Mapping[str, str]) -> Key | None:
    """Returns the key of a sample; None for one that a study does not read."""
    entry = SERIES.get(name)
    if entry is None:
        return None
    quantity, part = entry
    if part == "bucket":
        bound = number_of(labels.get(LE, ""))
        return None if bound is None else Key(quantity.name, part, bound)
    if quantity.name == "success":
        return Key(quantity.name, labels.get(REASON, "")[:40])
    return Key(quantity.name, part)


def number_of(text: str) -> float | None:
    """Returns the number of a label, `+Inf` included; None for any other text."""
    try:
        number = float(text)
    except ValueError:
        return None
    if number != number or number < 0:
        return None
    return inf if number == inf else number


def is_valid(value: float) -> bool:
    """Returns whether a value can be one of vLLM's counters and gauges."""
    return isfinite(value) and 0 <= value <= MAX_VALUE
