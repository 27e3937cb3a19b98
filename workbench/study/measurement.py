"""Counts, latencies and pods over time, by samples of metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isnan
from statistics import fmean
from typing import TypeVar

from msgspec import Struct

from config.declaration import MAX_SHOWN_LENGTH, ConfigError
from workbench.study.accumulator import Accumulator, Levels, Sample
from workbench.study.quantities import (
    HISTOGRAMS,
    HITS,
    IN_FLIGHT_KEY,
    KV_USAGE,
    PREEMPTIONS,
    QUERIES,
    REQUIRED,
    RUNNING,
    STARTED,
    WAITING,
    Key,
)

PREFILL = "prefill"
DECODE = "decode"
ROLES = (PREFILL, DECODE)
"""Groups of pods with separate work; each request is on a pod of both."""
PREFILL_ONLY = frozenset(
    (QUERIES, HITS, PREEMPTIONS, STARTED, RUNNING, WAITING, KV_USAGE, "prefill_s", "prompt_tokens")
)
"""Quantities of a prefill pod; decode pods have the others."""
LONG_RANGE_S = 7200.0
WINDOW_S = 900.0
"""Length of a window of a long range."""
WINDOWS = 10
"""Windows of a shorter range."""
GAP_STEPS = 2.5
"""A time without samples that is longer, in steps, is a gap."""
MAX_SHOWN_MODELS = 10

T = TypeVar("T")


class PodLabels(Struct, kw_only=True):
    """Names of a pod, its model and its version, by its labels and routes.

    `PodTimeline` has the times of its samples.
    """

    name: str
    model: str = ""
    group: str = ""
    """Value of the label that separates groups, such as a role."""
    version: str = ""
    config: dict[str, str] = {}
    """Labels of vllm:cache_config_info."""


class Measurement:
    """Samples of all pods, summed by step and by window."""

    def __init__(self, edges: Sequence[float], window_s: float | None = None) -> None:
        """`edges` are the times between steps, in Unix seconds and ascending.

        Raises:
            ConfigError: There are fewer than two times.
        """
        if len(edges) < 2:
            raise ConfigError("a study needs samples of at least two times")
        self.edges = list(edges)
        self.step_s = (edges[-1] - edges[0]) / (len(edges) - 1)
        self.window_indexes = _window_indexes(edges, window_s)
        """Indexes of the edges at which windows begin, and of the last edge."""
        self.window_edges = [edges[index] for index in self.window_indexes]
        windows = [
            window
            for window, (first, last) in enumerate(
                zip(self.window_indexes, self.window_indexes[1:], strict=False)
            )
            for _ in range(first, last)
        ]
        max_gap_s = GAP_STEPS * self.step_s
        self.steps = Accumulator(edges, max_gap_s=max_gap_s, windows=windows)
        self.buckets = Accumulator(
            self.window_edges, max_gap_s=max_gap_s + self.window_edges[-1] - self.window_edges[0]
        )
        self.levels = Levels(edges)
        self.pods: dict[str, PodLabels] = {}
        self.warnings: list[str] = []
        self.invalid_samples = 0
        """Samples that were NaN, negative, infinite, or huge."""

    def add(self, pod: str, time_s: float, values: Mapping[Key, float]) -> bool:
        """Adds the next sample of a pod; returns whether its counters were reset before it."""
        buckets = {}
        others = {}
        for key, value in self._of_role(pod, values):
            if key.part == "bucket":
                buckets[key] = value
            else:
                others[key] = value
        if buckets:
            # The start of the process and the counts show resets, too.
            marks = {key: value for key, value in others.items() if key != IN_FLIGHT_KEY}
            self.add_buckets(pod, time_s, marks | buckets)
        return self.steps.add(pod, Sample(time_s, others))

    def add_buckets(self, pod: str, time_s: float, values: dict[Key, float]) -> None:
        """Adds the next sample of the buckets of a pod, and of marks of restarts."""
        self.buckets.add(pod, Sample(time_s, dict(self._of_role(pod, values))))

    def add_block(
        self, pod: str, first: int, columns: Mapping[Key, Sequence[float]]
    ) -> list[float]:
        """Adds samples at edges that follow each other; returns the times of resets."""
        self.levels.add_block(first, columns)
        return self.steps.add_block(pod, first, dict(self._of_role(pod, columns)))

    def add_bucket_block(
        self, pod: str, first: int, columns: Mapping[Key, Sequence[float]]
    ) -> None:
        """Adds buckets at the edges of windows that follow each other."""
        self.buckets.add_block(pod, first, dict(self._of_role(pod, columns)))

    def _of_role(self, pod: str, values: Mapping[Key, T]) -> Iterable[tuple[Key, T]]:
        """Returns the values that count: both roles have each request, but it is one request."""
        facts = self.pods.get(pod)
        if facts is None or facts.group not in ROLES:
            return values.items()
        if facts.group == PREFILL:
            return [each for each in values.items() if each[0].quantity in PREFILL_ONLY]
        return [
            (key, value) for key, value in values.items() if key.quantity not in (QUERIES, HITS)
        ]

    def check(self) -> None:
        """Checks that the samples are sufficient for a study.

        Raises:
            ConfigError: Metrics are missing, or no request ended.
        """
        names = {key.quantity for state in self.steps.pods.values() for key in state.last.values}
        missing = [name for name in REQUIRED if name not in names]
        if missing:
            raise ConfigError(
                f"the metrics have no histogram of {', '.join(missing)}; they must be those of"
                " vLLM's /metrics, and recording rules or drop rules must keep them"
            )
        has_buckets = {
            key.quantity
            for state in self.buckets.pods.values()
            for key in state.last.values
            if key.part == "bucket"
        }
        missing = [name for name in REQUIRED if name not in has_buckets]
        if missing:
            raise ConfigError(
                f"the buckets of {', '.join(missing)} are missing; keep the series ending in"
                " _bucket in Prometheus (metric_relabel_configs)"
            )
        if not sum(self.steps.sums(Key(REQUIRED[0], "count"))) > 0:
            raise ConfigError("no request ended between the first and the last sample")

    def window_sums(self, key: Key) -> list[float]:
        """Returns the differences of a counter by window."""
        if key.part == "bucket":
            return self.buckets.sums(key)
        sums = self.steps.sums(key)
        return [
            sum(sums[first:last])
            for first, last in zip(self.window_indexes, self.window_indexes[1:], strict=False)
        ]

    def bounds(self, quantity: str) -> list[float]:
        """Returns the upper bounds of buckets that all pods have, in ascending order."""
        common: set[float] | None = None
        for state in self.buckets.pods.values():
            bounds = {
                key.bound
                for key in state.last.values
                if key.quantity == quantity and key.part == "bucket"
            }
            if bounds:
                common = bounds if common is None else common & bounds
        return sorted(common or ())

    def has(self, quantity: str) -> bool:
        """Returns whether any pod has a metric."""
        return any(
            key.quantity == quantity
            for state in self.steps.pods.values()
            for key in state.last.values
        )

    def window_levels(self, values: Sequence[float]) -> list[float | None]:
        """Returns the means of values at times by window, its first time left out."""
        means: list[float | None] = []
        for first, last in zip(self.window_indexes, self.window_indexes[1:], strict=False):
            present = [value for value in values[first + 1 : last + 1] if not isnan(value)]
            means.append(fmean(present) if present else None)
        return means

    def latencies(self) -> list[str]:
        """Returns the histograms that the metrics have."""
        return [name for name in HISTOGRAMS if self.has(name)]


def shown_models(models: Sequence[str]) -> str:
    """Returns the number of models, and the names of the first ones, for a message."""
    names = ", ".join(model[:MAX_SHOWN_LENGTH] for model in models[:MAX_SHOWN_MODELS])
    return f"{len(models)} models: {names}"


def with_in_flight(values: dict[Key, float]) -> dict[Key, float]:
    """Returns the values with the number of requests that run or wait."""
    running = values.get(Key(RUNNING))
    if running is not None:
        values[IN_FLIGHT_KEY] = running + values.get(Key(WAITING), 0.0)
    return values


def sum_engines(samples: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    """Returns the values of a pod; counters and gauges of several engines add up."""
    values: dict[Key, float] = {}
    counts: dict[Key, int] = {}
    for key, value in samples:
        if key.quantity == STARTED:
            values[key] = max(values.get(key, 0.0), value)
            continue
        values[key] = values.get(key, 0.0) + value
        counts[key] = counts.get(key, 0) + 1
    usage = Key(KV_USAGE)
    if counts.get(usage, 0) > 1:
        values[usage] /= counts[usage]
    return with_in_flight(values)


def _window_indexes(edges: Sequence[float], window_s: float | None) -> list[int]:
    length_s = edges[-1] - edges[0]
    if window_s is None:
        window_s = WINDOW_S if length_s >= LONG_RANGE_S else length_s / WINDOWS
    indexes = [0]
    slack_s = 0.01 * (length_s / (len(edges) - 1))
    for index in range(1, len(edges) - 1):
        if edges[index] - edges[indexes[-1]] >= window_s - slack_s:
            indexes.append(index)
    last_s = edges[-1] - edges[indexes[-1]]
    if len(indexes) > 1 and last_s < window_s / 2:
        indexes.pop()  # the remainder belongs to the window before
    return [*indexes, len(edges) - 1]
