"""The figures of a policy, out of its samples."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from app.load.client import Sample


@dataclass(frozen=True, slots=True)
class Summary:
    """What a policy came to. Times are seconds; without a request that was answered they are NaN.

    In JSON, which these names are made for, NaN is null.
    """

    policy: str
    requests: int
    failed: int
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    ttfts_s: tuple[float, ...]
    """All of them, ascending."""
    cached_share: float
    """Prompt tokens that were cached, of all prompt tokens."""
    requests_per_s: float
    """Answered requests, over the time of the whole run."""
    per_pod: dict[str, int]
    """Answered requests of every pod."""
    fallbacks: int
    """Requests routed without the indexer, because it failed."""
    errors: tuple[str, ...]
    """The different errors, the most frequent first."""


def summarize(
    policy: str, samples: Sequence[Sample], took_s: float, pods: Sequence[str], fallbacks: int
) -> Summary:
    """The figures of `samples`, which took `took_s` in all."""
    answered = [sample for sample in samples if not sample.error]
    ttfts_s = tuple(sorted(sample.ttft_s for sample in answered))
    prompt_tokens = sum(sample.prompt_tokens for sample in answered)
    counts = Counter(sample.pod for sample in answered)
    return Summary(
        policy=policy,
        requests=len(samples),
        failed=len(samples) - len(answered),
        ttft_mean_s=fmean(ttfts_s) if ttfts_s else math.nan,
        ttft_p50_s=quantile(ttfts_s, 0.5),
        ttft_p90_s=quantile(ttfts_s, 0.9),
        ttft_p99_s=quantile(ttfts_s, 0.99),
        ttfts_s=ttfts_s,
        cached_share=sum(sample.cached_tokens for sample in answered) / max(1, prompt_tokens),
        requests_per_s=len(answered) / took_s if took_s > 0 else 0.0,
        per_pod={pod: counts[pod] for pod in pods},
        fallbacks=fallbacks,
        errors=tuple(error for error, _ in Counter(s.error for s in samples if s.error).most_common()),
    )


def quantile(ascending: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the values lie, linear between neighbours; NaN of none."""
    if not ascending:
        return math.nan
    place = share * (len(ascending) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ascending) - 1)
    return ascending[low] + (ascending[high] - ascending[low]) * (place - low)
