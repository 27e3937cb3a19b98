"""Accumulators of Prometheus samples: plain attributes, no locks, one greenlet hub owns them.

Each kind answers the same two questions: `samples()` names the sample lines that it prints (suffix of the
metric name, extra labels), in the order of prometheus_client, and `values()` gives their numbers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import ClassVar, Protocol

from prometheus_client.utils import floatToGoString

Sample = tuple[str, dict[str, str]]


# From here on Go's format, which prometheus_client follows, switches to an exponent.
_EXPONENT_FROM = 1_000_000


def number(value: float) -> str:
    """`value` as prometheus_client prints it: `1.0`, `0.25`, `1.5e+06`, `+Inf`, `NaN`."""
    if value.__class__ is int and 0 <= value < _EXPONENT_FROM:
        return f"{value}.0"
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


class Instrument(Protocol):
    """What a family needs to print one labelled child."""

    kind: ClassVar[str]

    def samples(self) -> Sequence[Sample]: ...

    def values(self) -> tuple[float, ...]: ...


class Counter:
    """A number that only grows."""

    kind: ClassVar[str] = "counter"
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def inc(self, amount: float = 1) -> None:
        """Add `amount` (>= 0)."""
        self.value += amount

    def samples(self) -> Sequence[Sample]:
        return (("_total", {}),)

    def values(self) -> tuple[float, ...]:
        return (self.value,)


class Gauge:
    """A number that goes up and down."""

    kind: ClassVar[str] = "gauge"
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def set(self, value: float) -> None:
        self.value = value

    def add(self, delta: float) -> None:
        self.value += delta

    def samples(self) -> Sequence[Sample]:
        return (("", {}),)

    def values(self) -> tuple[float, ...]:
        return (self.value,)


class Summary:
    """Count and sum of observations, without quantiles."""

    kind: ClassVar[str] = "summary"
    __slots__ = ("count", "sum")

    def __init__(self) -> None:
        self.count = 0
        self.sum: float = 0.0

    def observe(self, value: float) -> None:
        self.count += 1
        self.sum += value

    def samples(self) -> Sequence[Sample]:
        return (("_count", {}), ("_sum", {}))

    def values(self) -> tuple[float, ...]:
        return (self.count, self.sum)


class Histogram:
    """Observations in buckets.

    `bounds` are the buckets' inclusive upper bounds, strictly ascending and without +Inf, which is implied.
    Raises ValueError when they are not ascending. `counts` holds one number per bucket, not cumulative.
    """

    kind: ClassVar[str] = "histogram"
    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(float(bound) for bound in bounds)
        if any(low >= high for low, high in zip(self.bounds, self.bounds[1:], strict=False)):
            raise ValueError(f"bucket bounds must ascend: {self.bounds}")
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum: float = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Add `count` observations of `value`."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    def observe_all(self, values: Iterable[float]) -> None:
        """As `observe` of each value, one after the other, for a sixth of the time when there are many."""
        ordered = sorted(values := list(values))
        below = 0
        for place, bound in enumerate(self.bounds):
            if below == len(ordered):
                break
            up_to = bisect_right(ordered, bound, below)
            self.counts[place] += up_to - below
            below = up_to
        self.counts[-1] += len(ordered) - below
        total = self.sum
        for value in values:  # in their order: the rounding is that of single observations
            total += value
        self.sum = total

    def samples(self) -> Sequence[Sample]:
        bounds = [number(bound) for bound in (*self.bounds, float("inf"))]
        return [*(("_bucket", {"le": bound}) for bound in bounds), ("_count", {}), ("_sum", {})]

    def values(self) -> tuple[float, ...]:
        cumulative = tuple(accumulate(self.counts))
        return (*cumulative, cumulative[-1], self.sum)
