"""One run for each of many rates: the saturation curve, and how much may come while objectives are met."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct

from app.fidelity.summary import LATENCIES, STATISTICS, Summary
from config.durations import parse_duration

MOST = {"rate": 1_000_000, "in-flight": 1_000_000, "pods": 10_000}
"""What can be swept, and how far."""
MOST_POINTS = 1000


@dataclass(frozen=True, slots=True)
class Sweep:
    """The setting that is swept, and its values."""

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Objective:
    """The `statistic` of a latency is to be at most `limit_s`."""

    latency: str
    statistic: str
    limit_s: float

    def met(self, summary: Summary) -> bool:
        seconds: float | None = getattr(summary.latency(self.latency), self.statistic)
        return seconds is None or seconds <= self.limit_s

    def __str__(self) -> str:
        return f"{self.latency}_{self.statistic} <= {self.limit_s * 1000:g} ms"


class Point(Struct, frozen=True, kw_only=True):
    """One run of a sweep."""

    value: float
    meets_slo: bool | None
    summary: Summary


def read_sweep(text: str) -> Sweep:
    """`rate=2:30:2`. ValueError says what is wrong."""
    name, _, span = text.partition("=")
    if name not in MOST:
        raise ValueError(f"must be NAME=FROM:TO:STEP with one of {', '.join(MOST)}")
    try:
        low, high, step = map(float, span.split(":"))
    except ValueError:
        raise ValueError(f"must be {name}=FROM:TO:STEP, in numbers") from None
    if not (0 < low <= high < math.inf and 0 < step < math.inf):
        raise ValueError("must go up from a number above 0, in steps above 0")
    if (high - low) / step >= MOST_POINTS:
        raise ValueError(f"must have at most {MOST_POINTS} points")
    values = [round(low + number * step, 9) for number in range(int((high - low) / step + 1e-9) + 1)]
    if name != "rate" and not all(value.is_integer() for value in values):
        raise ValueError(f"must be whole numbers for {name}")
    if high > MOST[name]:
        raise ValueError(f"must not exceed {MOST[name]:,} for {name}")
    return Sweep(name, tuple(values))


def read_objectives(text: str) -> tuple[Objective, ...]:
    """`ttft_p99=500ms,itl_p99=50ms`. ValueError says what is wrong."""
    return tuple(_objective(part.strip()) for part in text.split(","))


def _objective(text: str) -> Objective:
    name, _, limit = text.partition("=")
    latency, _, statistic = name.partition("_")
    if latency not in LATENCIES or statistic not in STATISTICS:
        raise ValueError(
            f"must be {'|'.join(LATENCIES)}_{'|'.join(STATISTICS)}=DURATION, several with commas between"
        )
    limit_s = parse_duration(limit)
    if limit_s <= 0:
        raise ValueError(f"must have limits above 0, not {limit}")
    return Objective(latency, statistic, limit_s)


def best(name: str, points: Sequence[Point]) -> tuple[str, float | None]:
    """The answer of a sweep of `name`: the fewest pods, of others the highest value, that met the objectives.

    With its word; None when they were never met.
    """
    met = [point.value for point in points if point.meets_slo]
    return ("fewest", min(met, default=None)) if name == "pods" else ("highest", max(met, default=None))
