"""The HorizontalPodAutoscaler of Kubernetes' `autoscaling/v2`, with a metric of type Pods.

docs/simulate.md, "Autoscaling", lists the modeled behavior.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.extensions.plugins.policies import Decide, Look

MILLI = 1000
"""The HPA counts in thousandths: its quantities are whole thousandths."""
MAX_PERIOD_S = 1800
"""Longest period of a rate that Kubernetes accepts."""
MAX_WINDOW_S = 3600
"""Longest stabilization window that Kubernetes accepts."""

Rate = tuple[int, bool, float]
"""A change that is allowed within a period: a number, True for a percentage of the pods at the
beginning of the period or False for pods, and the period in seconds.
"""
Change = tuple[float, int]
"""Time in seconds, and the pods that were added (or, below 0, removed) then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HorizontalPodAutoscaler:
    """The HPA's formula and behavior, with the defaults of Kubernetes."""

    min_pods: int
    max_pods: int
    metric: str
    target: float
    tolerance: float = 0.1
    up: Sequence[Rate] = ((100, True, 15.0), (4, False, 15.0))
    down: Sequence[Rate] = ((100, True, 15.0),)
    select_up: str = "max"
    select_down: str = "max"
    window_up: float = 0.0
    """Stabilization window, in seconds."""
    window_down: float = 300.0

    def start(self, pods: int) -> Decide:
        """Returns the decisions of a run that starts with this number of pods."""
        return _Decisions(self, pods).decide

    def limited(self, now_s: float, current: int, wanted: int, changes: Iterable[Change]) -> int:
        """Returns the pods between `current` and `wanted` that rates and bounds allow."""
        if wanted > current:
            if self.select_up == "disabled":
                return current
            limits = _rate_limits(self.up, sign=1, now_s=now_s, current=current, changes=changes)
            limit = max(limits) if self.select_up == "max" else min(limits)
            return min(wanted, max(limit, current), self.max_pods)
        if self.select_down == "disabled":
            return current
        limits = _rate_limits(self.down, sign=-1, now_s=now_s, current=current, changes=changes)
        limit = min(limits) if self.select_down == "max" else max(limits)
        return max(wanted, min(limit, current), self.min_pods)


class _Decisions:
    """The decisions of one run, which depend on earlier ones."""

    def __init__(self, hpa: HorizontalPodAutoscaler, pods: int) -> None:
        self._hpa = hpa
        self._recommended = deque[Change]([(0.0, pods)])
        """Times and recommended numbers of pods."""
        self._changes = deque[Change]()

    def decide(self, look: Look) -> int:
        hpa = self._hpa
        now_s = look.at_s
        current = look.pods
        wanted = min(max(current, hpa.min_pods), hpa.max_pods)
        if wanted == current:
            values = [sample[hpa.metric] for sample in look.samples]
            raw = replicas_for(current, values, hpa.target, hpa.tolerance)
            stable = self._stabilize(now_s, current, raw)
            wanted = hpa.limited(now_s, current, stable, self._changes)
            self._recommended.append((now_s, raw))
        self._changes.append((now_s, wanted - current))
        for history in (self._recommended, self._changes):
            while history and history[0][0] <= now_s - MAX_WINDOW_S:
                history.popleft()
        return wanted

    def _stabilize(self, now_s: float, current: int, raw: int) -> int:
        """Returns the number nearest to `current` among those wanted within the windows."""
        up_since_s = now_s - self._hpa.window_up
        down_since_s = now_s - self._hpa.window_down
        up = min([raw, *(pods for time_s, pods in self._recommended if time_s > up_since_s)])
        down = max([raw, *(pods for time_s, pods in self._recommended if time_s > down_since_s)])
        return min(max(current, up), down)


def replicas_for(
    current: int, values: Sequence[float], target: float, tolerance: float = 0.1
) -> int:
    """Returns the number of replicas that brings the mean of `values` to `target`.

    `values` has a value for each pod with metrics. Pods without metrics, such as loading pods,
    count as idle before a scale up, and as on target before a scale down. Neither may reverse the
    direction. Without any values the number stays.
    """
    if not values:
        return current
    ratio = _ratio(values, target)
    usage = ratio
    missing = current - len(values)
    if missing:
        assumed = target if ratio < 1 else 0.0
        usage = _ratio([*values, *[assumed] * missing], target)
    is_within_tolerance = 1 - tolerance <= usage <= 1 + tolerance
    is_reversed = ratio < 1 < usage or usage < 1 < ratio
    if is_within_tolerance or is_reversed:
        return current
    return math.ceil(usage * current)


def _ratio(values: Sequence[float], target: float) -> float:
    return sum(int(value * MILLI) for value in values) // len(values) / round(target * MILLI)


def _rate_limits(
    rates: Sequence[Rate], *, sign: int, now_s: float, current: int, changes: Iterable[Change]
) -> list[int]:
    """Returns the number of pods that each rate allows; `sign` is 1 for up and -1 for down."""
    limits = []
    for value, is_percent, period_s in rates:
        since_s = now_s - period_s
        begun = current - sum(change for time_s, change in changes if time_s > since_s)
        if not is_percent:
            limits.append(begun + sign * value)
            continue
        share = begun * (1 + sign * value / 100)
        limits.append(math.ceil(share) if sign > 0 else int(share))
    return limits
