"""Fake metrics: configured numbers replace the true ones, to show a router any state."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from app.core.base.metrics.families import EngineFamilies, engine_table, token_bounds
from app.core.base.metrics.instruments import Counter, Family, Gauge, Histogram, Instrument
from app.core.base.metrics.spec import Bounds
from app.core.base.metrics.table import TABLE
from app.extensions.fake_metrics.document import Counts, FakeAdapters, FakeMetrics, Function, parse
from app.extensions.fake_metrics.settings import FakeMetricsSettings
from config import Settings

Families = tuple[Family[Instrument], ...]

ADAPTERS = "vllm:lora_requests_info"
CACHE_CONFIG = "vllm:cache_config_info"
ADAPTERS_HELP = "Adapters that run and wait; the value is the time of the entry."
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
WHOLE_NUMBERS = frozenset((RUNNING, WAITING))
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
TOTALS = (
    ("total_prompt_tokens", "request_prompt_tokens", "vllm:prompt_tokens_total"),
    ("total_generation_tokens", "request_generation_tokens", "vllm:generation_tokens_total"),
)
"""Key of an explicit total, key of the counts that it is derived from otherwise, and family."""
ALIASES = {
    spec.name: tuple(alias.name for alias in TABLE if alias.alias_of == spec.name) for spec in TABLE
}
"""Maps a family to its older names, which repeat its numbers."""
ROUNDING = 1e-9
"""Keeps 29 % of the way from 0 to 100 from becoming 28 by a rounding error."""
NANOSECONDS = 1_000_000_000
"""Nanoseconds per second. Time is counted in them, so that periods end exactly."""


class _FakeValue(NamedTuple):
    """A value shown since `start_s` of the clock, under each name of its family."""

    value: object
    families: Families
    start_s: float


class FakeFamilies:
    """Shows fake metrics while any are set; subscribe `on_settings` to the live settings.

    Families that are not set are absent; events in the server are not counted. Labels, bounds and
    names are the true ones. `server` has the labels `model_name` and `engine`. `cache_config` is as
    for `Recorder`. `clock` returns monotonic seconds: a function of time starts when it is set.
    `now` returns Unix seconds.
    """

    def __init__(
        self,
        server: Mapping[str, str],
        max_model_len: int,
        cache_config: Mapping[str, str],
        max_loras: int,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._server = server
        self._max_model_len = max_model_len
        self._max_loras = str(max_loras)
        self._clock = clock
        self._now = now
        self._table = engine_table(cache_config, older_names=True)
        self._cache_config = self._build().by_name[CACHE_CONFIG]
        self._refresh_s = 0.1
        self._fakes: FakeMetrics | None = None
        self._values: dict[str, _FakeValue] = {}

    @property
    def active(self) -> bool:
        """True while fake metrics replace the true ones."""
        return self._fakes is not None

    def on_settings(self, settings: Settings) -> None:
        """Shows the values of valid `settings`.

        Unchanged values, such as running functions, continue.
        """
        section = settings.section(FakeMetricsSettings)
        self._refresh_s = section.fake_metrics_refresh_interval
        fakes = parse(section.fake_metrics)
        if fakes == self._fakes:
            return
        new_families = self._build().by_name
        previous = self._values
        self._fakes = fakes
        self._values = {}
        if fakes is None:
            return
        for name, value in fake_values(fakes, self._max_model_len):
            fake = previous.get(name)
            if fake is None or fake.value != value:
                families = self._families(new_families, name, value)
                fake = _FakeValue(value, families, self._clock())
            self._values[name] = fake

    def render(self) -> str:
        """Returns the families that are set, in the Prometheus text format."""
        now_s = self._clock()
        families = [self._cache_config]
        for name, fake in self._values.items():
            if isinstance(fake.value, Function):
                level = value_at(fake.value, now_s - fake.start_s, self._refresh_s)
                ((_, gauge),) = fake.families[0].children()
                assert isinstance(gauge, Gauge)
                gauge.value = int(level + ROUNDING) if name in WHOLE_NUMBERS else level
            families.extend(fake.families)
        return "".join(family.render() for family in families)

    def _build(self) -> EngineFamilies:
        return EngineFamilies(self._table, self._server, self._now, self._max_model_len)

    def _families(
        self, new_families: Mapping[str, Family[Instrument]], name: str, value: object
    ) -> Families:
        """Returns a family and its aliases with a value."""
        if name == ADAPTERS and isinstance(value, tuple):
            return (self._adapters(value),)
        family = new_families[name]
        if isinstance(value, Mapping):
            for reason, count in value.items():
                counter = family.labels(**self._server, finished_reason=reason)
                assert isinstance(counter, Counter)
                counter.inc(count)
        else:
            ((_, instrument),) = family.children()
            if isinstance(instrument, Histogram) and isinstance(value, tuple):
                for observation, count in observations(value, instrument.bounds):
                    instrument.observe(observation, count)
            elif isinstance(instrument, Counter) and isinstance(value, int | float):
                instrument.value = value
        return tuple(new_families[alias] for alias in (name, *ALIASES[name]))

    def _adapters(self, entries: Sequence[FakeAdapters]) -> Family[Instrument]:
        family: Family[Instrument] = Family(
            ADAPTERS, ADAPTERS_HELP, Gauge, kind="gauge", now=self._now
        )
        for entry in entries or (FakeAdapters("", "", self._now()),):
            gauge = Gauge()
            gauge.value = entry.timestamp
            labels = {
                "max_lora": self._max_loras,
                "running_lora_adapters": entry.running,
                "waiting_lora_adapters": entry.waiting,
            }
            family.add(gauge, labels)
        return family


def fake_values(fakes: FakeMetrics, max_model_len: int) -> Iterator[tuple[str, object]]:
    """Yields names and values of all families that are set, and of the adapters."""
    for key, name in FAMILIES.items():
        value = getattr(fakes, key)
        if value is not None and value != {} and value != ():
            yield name, value
    for key, counts_key, name in TOTALS:
        total = getattr(fakes, key)
        counts = getattr(fakes, counts_key)
        if total is None and counts:
            bounds = token_bounds(max_model_len)
            total = sum(int(value) * count for value, count in observations(counts, bounds))
        if total is not None:
            yield name, total
    yield ADAPTERS, fakes.loras


def observations(counts: Counts, bounds: Bounds) -> Iterator[tuple[float, int]]:
    """Yields a value and the count of each bucket: its upper bound, or 1 above the last bound."""
    last_value = bounds[-1] + 1
    for bucket, count in enumerate(counts):
        value = bounds[bucket] if bucket < len(bounds) else last_value
        yield value, count


def value_at(function: Function[float], elapsed_s: float, step_s: float) -> float:
    """Returns a function's value `elapsed_s` >= 0 after its start, in steps of `step_s` > 0."""
    elapsed_ns = round(elapsed_s * NANOSECONDS)
    step_ns = round(step_s * NANOSECONDS)
    period_ns = round(function.period_s * NANOSECONDS)
    periods = elapsed_ns // step_ns * step_ns / period_ns
    progress = _progress(function.shape, periods)
    return (1 - progress) * function.start + progress * function.end


def _progress(shape: str, periods: float) -> float:
    """Returns the position of the value between start (0) and end (1) after `periods`."""
    match shape:
        case "oscillate":
            return (1 + math.sin(2 * math.pi * periods)) / 2
        case "ramp":
            return min(periods, 1.0)
        case "rampreset":
            return periods % 1
        case "squarewave":
            return float(periods % 1 >= 0.5)
    raise ValueError(f"unknown function of time: {shape}")
