"""Present values of the metrics, for readers inside this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from app.base.metrics.instruments import Histogram


class Distribution(Struct, frozen=True):
    """A histogram: inclusive upper `bounds` in seconds, and a count per bucket; the last is above all
    bounds.
    """

    bounds: Sequence[float]
    counts: Sequence[int]
    sum: float

    @classmethod
    def of(cls, histogram: Histogram) -> Distribution:
        return cls(histogram.bounds, tuple(histogram.counts), histogram.sum)


class Figures(Struct, frozen=True, kw_only=True):
    """The numbers of /metrics: present gauges, and counters since the start of the server."""

    running: float
    waiting: float
    cache_usage: float
    """Share from 0 to 1."""
    preemptions: float
    generated: float
    prompt: float
    """Prompt tokens, cached ones included."""
    cached: float
    queries: float
    """Tokens looked up in the prefix cache."""
    hits: float
    finished: Mapping[str, float]
    ttft: Distribution
    inter_token: Distribution
    e2e: Distribution
