"""The interface of autoscaling policies, of simulated and of real fleets.

A policy looks at the metrics of a fleet, as they were last scraped, and returns the number of pods.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from app.base.metrics.table import FIRST_TOKEN

TTFT_SHARES = {"ttft_p50": 0.5, "ttft_p90": 0.9, "ttft_p99": 0.99}
TTFT_WINDOW_S = 60.0
"""Time before a scrape whose first tokens count, as in `rate(...[1m])`."""
BUILT_IN = ("hpa", "schedule")
METRICS = ("waiting", "running", "kv_cache_usage", *TTFT_SHARES)

Sample = Mapping[str, float]
"""`METRICS` of a pod at a scrape: counts, a share from 0 to 1, and quantiles of the TTFT in
seconds.
"""


@dataclass(frozen=True, slots=True)
class Look:
    """A fleet at a look of its autoscaler."""

    at_s: float
    """Seconds since the first request."""
    pods: int
    """Pods that load or are ready; draining pods do not count."""
    samples: Sequence[Sample]
    """Last scrapes of the ready pods; a pod that was not scraped yet has none."""


Decide = Callable[[Look], int]
"""Returns the wanted number of pods. Called for each look in order."""
AutoscalerStart = Callable[[int], Decide]
"""Returns the decisions of a run that starts with this number of pods."""


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
