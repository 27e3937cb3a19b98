"""The interface of autoscaling policies, of simulated and of real fleets.

A policy looks at the metrics of a fleet, as they were last scraped, and returns the number of pods.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from app.core.base.metrics.table import FIRST_TOKEN
from app.core.policies import AutoscalerStart

TTFT_SHARES = {"ttft_p50": 0.5, "ttft_p90": 0.9, "ttft_p99": 0.99}
TTFT_WINDOW_S = 60.0
"""Time before a scrape whose first tokens count, as in `rate(...[1m])`."""
METRICS = ("waiting", "running", "kv_cache_usage", *TTFT_SHARES)


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """A policy with its bounds."""

    min_pods: int
    max_pods: int
    start: AutoscalerStart


def histogram_quantile(share: float, values: Sequence[float]) -> float:
    """Returns Prometheus' quantile over the buckets of the TTFT, in seconds; 0 without values."""
    if not values:
        return 0.0
    counts = Counter(bisect_left(FIRST_TOKEN, value) for value in values)
    rank = share * len(values)
    below = 0
    for index, bound in enumerate(FIRST_TOKEN):
        inside = counts[index]
        if inside and below + inside >= rank:
            lower_bound = FIRST_TOKEN[index - 1] if index else 0.0
            return lower_bound + (bound - lower_bound) * (rank - below) / inside
        below += inside
    return FIRST_TOKEN[-1]
