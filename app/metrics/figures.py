"""The present numbers of the metrics, for readers inside this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from app.metrics.instruments import Histogram


class Distribution(Struct, frozen=True):
    """A histogram: inclusive upper `bounds` in seconds, and how many fell below each, the last above all."""

    bounds: Sequence[float]
    counts: Sequence[int]
    sum: float

    @classmethod
    def of(cls, histogram: Histogram) -> Distribution:
        return cls(histogram.bounds, tuple(histogram.counts), histogram.sum)


class Figures(Struct, frozen=True, kw_only=True):
    """The numbers of /metrics: gauges as they are, counters since the start of the server."""

    running: float
    waiting: float
    cache_usage: float
    """A share, from 0 to 1."""
    preemptions: float
    generated: float
    """Tokens of replies."""
    prompt: float
    """Tokens of prompts, cached ones too."""
    cached: float
    """Of those, the cached ones."""
    queries: float
    """Tokens that were looked for in the prefix cache."""
    hits: float
    finished: Mapping[str, float]
    """Requests by the reason of their end."""
    ttft: Distribution
    inter_token: Distribution
    e2e: Distribution
