"""Sweeps: one setting of a simulation takes several values, each a point of a curve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from msgspec import Struct

from workbench.load.tables import markdown, milliseconds
from workbench.runs.summary import (
    DEFAULT_STATISTIC,
    Objective,
    RunSummary,
    objective_columns,
)

RATE = "rate"
IN_FLIGHT = "in-flight"
PODS = "pods"
PREFILL_PODS = "prefill-pods"
"""Sweep over P:D, the prefill and decode pods of a number of pods; 0 stands for ordinary pods."""
MAX_VALUES = {RATE: 1_000_000, IN_FLIGHT: 1_000_000, PODS: 10_000, PREFILL_PODS: 10_000}
MAX_POINTS = 1000
MEDIAN = "p50"
MEDIANS = ("ttft", "tpot")
"""Latencies whose median is a column, besides the statistics of the objectives."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """A setting and its values."""

    name: str
    values: tuple[float, ...]


class Point(Struct, frozen=True, kw_only=True):
    """A run of a sweep; `meets_slo` is None without objectives."""

    value: float
    meets_slo: bool | None
    summary: RunSummary


def read_sweep(text: str) -> Sweep:
    """Reads a sweep such as `rate=2:30:2`. Raises ValueError with the rule."""
    name, _, span = text.partition("=")
    if name not in MAX_VALUES:
        raise ValueError(f"must be NAME=FROM:TO:STEP, where NAME is one of {', '.join(MAX_VALUES)}")
    try:
        low, high, step = map(float, span.split(":"))
    except ValueError:
        raise ValueError(
            f"must be {name}=FROM:TO:STEP, where all three values are numbers"
        ) from None
    if not (1e-6 <= low <= high < math.inf and 0 < step < math.inf):
        raise ValueError("must have a FROM and a STEP above 0, and a TO that is not less than FROM")
    if (high - low) / step >= MAX_POINTS:
        raise ValueError(f"must have at most {MAX_POINTS} points")
    count = int((high - low) / step + 1e-9) + 1
    values = tuple(round(low + number * step, 9) for number in range(count))
    if name != RATE and not all(value.is_integer() for value in values):
        raise ValueError(f"must contain only whole numbers for {name}")
    if high > MAX_VALUES[name]:
        raise ValueError(f"must have a TO of at most {MAX_VALUES[name]:,}")
    return Sweep(name, values)


def best_value(
    name: str, points: Sequence[Point], objectives: Sequence[Objective] = ()
) -> tuple[str, float | None]:
    """Returns a word for the best value of a sweep, and the value; None if no point is good.

    The best value is the fewest pods, or the highest other value, that met the objectives. The best
    number of prefill pods has the most goodput, or else the latencies farthest below the
    objectives.
    """
    if name == PREFILL_PODS:
        split = _best_split(points, objectives)
        if split.meets_slo or (split.meets_slo is None and split.summary.goodput):
            return "best", split.value
        return "best", None
    good_values = [point.value for point in points if point.meets_slo]
    if name == PODS:
        return "fewest", min(good_values, default=None)
    return "highest", max(good_values, default=None)


def _best_split(points: Sequence[Point], objectives: Sequence[Objective]) -> Point:
    """Returns the best P:D, or the nearest to the objectives if no split meets them."""

    def rank(point: Point) -> tuple[bool, float, float]:
        summary = point.summary
        good = summary.goodput.good if summary.goodput else 0
        ratios = (objective.ratio(summary) for objective in objectives)
        return point.meets_slo is False, -good, max(ratios, default=0.0)

    return min((point for point in points if point.value), key=rank)


def curve_table(name: str, points: Sequence[Point], objectives: Sequence[Objective]) -> str:
    """Returns the saturation curve as a Markdown table."""
    first = points[0].summary
    columns = _latency_columns(objectives)
    heads = (f"{latency.upper()} {statistic}" for latency, statistic in columns)
    head = [setting_label(name), "requests/s", "tokens/s", *heads]
    head += ["running", "KV peak", "preempted"]
    if first.goodput:
        head.append("good")
    if first.price:
        head.append("a million tokens out")
    if objectives:
        head.append("meets SLO")
    return markdown(
        [head, *(_row(name, point, columns, has_objectives=bool(objectives)) for point in points)]
    )


def sweep_verdict(name: str, points: Sequence[Point], objectives: Sequence[Objective]) -> str:
    """Returns the best value of a sweep as a sentence; without objectives, its two ends."""
    objectives_text = ", ".join(map(str, objectives))
    if name == PREFILL_PODS and (objectives or points[0].summary.goodput):
        split = _best_split(points, objectives)
        nearest = ""
        if split.meets_slo is False:
            nearest = f"none meets {objectives_text}; nearest is "
        return (
            f"Best P:D: {nearest}{_verdict(split, objectives)}; {_verdict(points[0], objectives)}"
        )
    if not objectives:
        ends = [points[0], points[-1]][: len(points)]
        return "; ".join(_end_text(name, point) for point in ends)
    word, value = best_value(name, points)
    if value is None:
        return f"{word.capitalize()} {name}: none meets {objectives_text}"
    return f"{word.capitalize()} {name}: {value:g} meets {objectives_text}"


def _end_text(name: str, point: Point) -> str:
    latencies = ", ".join(
        f"{latency.upper()} {DEFAULT_STATISTIC}"
        f" {milliseconds(point.summary.latency(latency).statistic(DEFAULT_STATISTIC))}"
        for latency in MEDIANS
    )
    return f"{setting_label(name)} {point_label(name, point)}: {latencies}"


def _latency_columns(objectives: Sequence[Objective]) -> list[tuple[str, str]]:
    """Returns the latency and the statistic of each column."""
    columns = []
    for latency, statistic in objective_columns(objectives):
        median = (latency, MEDIAN)
        if latency in MEDIANS and median not in columns:
            columns.append(median)
        if (latency, statistic) not in columns:
            columns.append((latency, statistic))
    return columns


def _row(
    name: str, point: Point, columns: Sequence[tuple[str, str]], *, has_objectives: bool
) -> list[str]:
    summary = point.summary
    row = [
        point_label(name, point),
        f"{summary.requests_per_s:.2f}",
        f"{summary.output_tokens_per_s:,.0f}",
        *(milliseconds(summary.latency(part).statistic(statistic)) for part, statistic in columns),
        f"{summary.running.mean:.1f}",
        f"{summary.kv_cache_usage.peak:.0%}",
        f"{summary.preemptions:,}",
    ]
    if summary.goodput:
        row.append(f"{summary.goodput.share:.1%}")
    if summary.price:
        row.append(f"{summary.price.per_million_output_tokens:,.2f}")
    if has_objectives:
        row.append("yes" if point.meets_slo else "no")
    return row


def setting_label(name: str) -> str:
    """Returns the short name of a setting."""
    return "P:D" if name == PREFILL_PODS else name


def point_label(name: str, point: Point) -> str:
    """Returns the text of a point's value."""
    if name != PREFILL_PODS:
        return f"{point.value:g}"
    pods = len(point.summary.requests_per_pod)
    if not point.value:
        return f"{pods} ordinary"
    return f"{point.value:g}:{pods - point.value:g}"


def _verdict(point: Point, objectives: Sequence[Objective]) -> str:
    summary = point.summary
    label = point_label(PREFILL_PODS, point)
    parts = [label if point.value else f"{label} pods"]
    if objectives:
        ratio, worst = max(
            ((objective.ratio(summary), objective) for objective in objectives), key=itemgetter(0)
        )
        parts.append(f"{worst.latency}_{worst.statistic} at {ratio:.0%} of its limit")
    if summary.goodput:
        parts.append(f"goodput {summary.goodput.share:.1%}")
    return ", ".join(parts)
