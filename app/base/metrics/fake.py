"""Fake metrics: configured numbers replace the true ones, to show a router any state.

simulator.md 14.4 lists the keys, their families, and the functions of time.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from app.base.metrics.families import TABLE, Bounds, EngineFamilies, engine_table, token_bounds
from app.base.metrics.instruments import Counter, Family, Gauge, Histogram, Instrument
from config import Settings
from config.fake_metrics import Counts, FakeAdapters, FakeMetrics, Function, parse

Families = tuple[Family[Instrument], ...]

ADAPTERS = "vllm:lora_requests_info"
CACHE_CONFIG = "vllm:cache_config_info"
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
WHOLE = frozenset((RUNNING, WAITING))
"""Gauges that a function sets to whole numbers."""
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
FAMILIES = {
    "running_requests": RUNNING,
    "waiting_requests": WAITING,
    "kv_cache_usage": "vllm:kv_cache_usage_perc",
    "prefix_cache_hits": "vllm:prefix_cache_hits_total",
    "prefix_cache_queries": "vllm:prefix_cache_queries_total",
    "request_success_total": "vllm:request_success_total",
    **HISTOGRAMS,
}
# Key of an explicit total, key of the counts that it is derived from otherwise, family.
TOTALS = (
    ("total_prompt_tokens", "request_prompt_tokens", "vllm:prompt_tokens_total"),
    ("total_generation_tokens", "request_generation_tokens", "vllm:generation_tokens_total"),
)
ALIASES = {
    spec.name: tuple(other.name for other in TABLE if other.alias_of == spec.name) for spec in TABLE
}
"""Maps a family to its older names, which repeat its numbers."""
ROUNDING = 1e-9
"""Keeps 29 % of the way from 0 to 100 from becoming 28 by a rounding error."""
NANOSECONDS = 1_000_000_000
"""Nanoseconds per second. Time is counted in them, so that periods end exactly."""

# Periods since the start -> position of the value between start (0) and end (1).
_CURVES: Mapping[str, Callable[[float], float]] = {
    "oscillate": lambda periods: (1 + math.sin(2 * math.pi * periods)) / 2,
    "ramp": lambda periods: min(periods, 1.0),
    "rampreset": lambda periods: periods % 1,
    "squarewave": lambda periods: float(periods % 1 >= 0.5),
}


class _Part(NamedTuple):
    """A value shown since `since_s` of the clock, under each name of its family."""

    value: object
    families: Families
    since_s: float


class FakeFamilies:
    """Shows fake metrics while any are set; subscribe `on_settings` to the live settings.

    Families that are not set are absent; events in the server are not counted. Labels, bounds and
    names are the true ones. `cache_config` is as for `Recorder`. `clock` returns monotonic seconds:
    a function of time starts when it is set. `now` returns Unix seconds.
    """

    def __init__(
        self,
        model_name: str,
        max_model_len: int,
        cache_config: Mapping[str, str],
        max_loras: int,
        engine: str = "0",
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._server = {"model_name": model_name, "engine": engine}
        self._max_model_len, self._max_loras = max_model_len, str(max_loras)
        self._clock, self._now = clock, now
        table = engine_table(cache_config, older_names=True)
        self._build = partial(EngineFamilies, table, self._server, now, max_model_len)
        self._cache_config = self._build().by_name[CACHE_CONFIG]
        self._refresh_s = 0.1
        self._fakes: FakeMetrics | None = None
        self._parts: dict[str, _Part] = {}

    @property
    def active(self) -> bool:
        """True while fake metrics replace the true ones."""
        return self._fakes is not None

    def on_settings(self, settings: Settings) -> None:
        """Shows the values of valid `settings`.

        Unchanged values, such as running functions, continue.
        """
        self._refresh_s = settings.metrics.fake_metrics_refresh_interval
        fakes = parse(settings.metrics.fake_metrics)
        if fakes == self._fakes:
            return
        fresh, before = self._build().by_name, self._parts
        self._fakes, self._parts = fakes, {}
        for name, value in () if fakes is None else fake_values(fakes, self._max_model_len):
            part = before.get(name)
            if part is None or part.value != value:
                part = _Part(value, self._families(fresh, name, value), self._clock())
            self._parts[name] = part

    def render(self) -> str:
        at_s = self._clock()
        families = [self._cache_config]
        for name, part in self._parts.items():
            if isinstance(part.value, Function):
                level = value_at(part.value, at_s - part.since_s, self._refresh_s)
                ((_, gauge),) = part.families[0].children()
                assert isinstance(gauge, Gauge)
                gauge.value = int(level + ROUNDING) if name in WHOLE else level
            families.extend(part.families)
        return "".join(family.render() for family in families)

    def _families(
        self, fresh: Mapping[str, Family[Instrument]], name: str, value: object
    ) -> Families:
        if name == ADAPTERS and isinstance(value, tuple):
            help = "Adapters that run and wait; the value is the time of the entry."
            adapters: Family[Instrument] = Family(ADAPTERS, help, Gauge, "gauge", self._now)
            for entry in value or (FakeAdapters("", "", self._now()),):
                names = {
                    "running_lora_adapters": entry.running,
                    "waiting_lora_adapters": entry.waiting,
                }
                (gauge := Gauge()).value = entry.timestamp
                adapters.add(gauge, {"max_lora": self._max_loras, **names})
            return (adapters,)
        family = fresh[name]
        if isinstance(value, Mapping):
            for reason, count in value.items():
                counter = family.labels(**self._server, finished_reason=reason)
                assert isinstance(counter, Counter)
                counter.inc(count)
        else:
            ((_, instrument),) = family.children()
            if isinstance(instrument, Histogram) and isinstance(value, tuple):
                for seen, count in observed(value, instrument.bounds):
                    instrument.observe(seen, count)
            elif isinstance(instrument, Counter) and isinstance(value, int | float):
                instrument.value = value
        return tuple(fresh[known] for known in (name, *ALIASES[name]))


def fake_values(fakes: FakeMetrics, max_model_len: int) -> Iterator[tuple[str, object]]:
    """Yields names and values of all families that are set, and of the adapters."""
    for key, name in FAMILIES.items():
        value = getattr(fakes, key)
        if value is not None and value != {} and value != ():
            yield name, value
    for key, of, name in TOTALS:
        total, counts = getattr(fakes, key), getattr(fakes, of)
        if total is None and counts:
            total = sum(
                int(value) * count for value, count in observed(counts, token_bounds(max_model_len))
            )
        if total is not None:
            yield name, total
    yield ADAPTERS, fakes.loras


def observed(counts: Counts, bounds: Bounds) -> Iterator[tuple[float, int]]:
    """Yields a value and the count of each bucket: its upper bound, or 1 above the last bound."""
    beyond = bounds[-1] + 1
    for place, count in enumerate(counts):
        yield (bounds[place] if place < len(bounds) else beyond), count


def value_at(function: Function[float], elapsed_s: float, step_s: float) -> float:
    """Returns the value of `function`, `elapsed_s` >= 0 after its start, in steps of `step_s` > 0."""
    given_s = elapsed_s, step_s, function.period_s
    elapsed_ns, step_ns, period_ns = (round(seconds * NANOSECONDS) for seconds in given_s)
    periods = elapsed_ns // step_ns * step_ns / period_ns
    way = _CURVES[function.shape](periods)
    return (1 - way) * function.start + way * function.end
