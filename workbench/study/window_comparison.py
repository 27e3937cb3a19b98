"""Compares measured and simulated latencies. Start reading at `compare_windows`.

Means come from sums and counts, so they are exact. Of the distributions only the shares of buckets
are compared: a quantile inside of a bucket would be a guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from msgspec import Struct

from config.flags import FlagTable
from workbench.load.study_folder import StudyVerdict
from workbench.load.tables import markdown, milliseconds
from workbench.study.folder import Distribution, MeasuredWindow, Study, text_of
from workbench.study.quantities import E2E, HITS, QUERIES, TPOT, TTFT
from workbench.study.simulated import (
    SimulatedWindow,
    compared_latencies,
    mean_level,
    mean_of,
)

NAMES = {
    TTFT: "TTFT",
    TPOT: "TPOT",
    E2E: "E2E",
    "queue_s": "queue",
    "decode_s": "decode",
}
JUDGED = (TTFT, TPOT, E2E)
"""Latencies that the verdict is about."""
MIN_REQUESTS = 5
"""Least requests of a window whose error counts."""
DEFAULT_LIMIT = 0.2
FEW_PERCENT = 0.02
"""Error below which the verdict has a decimal."""


class Row(Struct, kw_only=True):
    """A latency, as measured and as simulated; seconds, errors as shares."""

    quantity: str
    measured_s: float
    simulated_s: float
    error: float
    """Error of the mean over all windows."""
    window_error: float
    """Mean absolute error of the means of windows, weighted by their requests."""
    bucket_error: float
    """Largest difference of the shares of values up to a bound of the buckets."""
    worst_window: str
    """Start of the window with the largest error."""


class Level(Struct, kw_only=True):
    """A gauge or a share, as measured and as simulated."""

    quantity: str
    measured: float
    simulated: float


class Part(Struct, kw_only=True):
    """A comparison of some windows."""

    name: str
    windows: int
    requests: float
    rows: list[Row]
    levels: list[Level]


class Comparison(StudyVerdict, frozen=True, kw_only=True):
    """`comparison.json`: the verdict, the limit, and the comparisons that led to it."""

    limit: float
    errors: dict[str, float]
    """Mean absolute errors by window of the judged latencies."""
    parts: list[Part]
    command: str
    """The command line, for readers."""
    flags: FlagTable
    """Flags of `simulate` that described the engine, besides those of the fleet."""
    constants: dict[str, float] = {}
    """Factors that a calibration found."""


def compare_windows(
    name: str, study: Study, simulated: Sequence[SimulatedWindow], numbers: Sequence[int]
) -> Part:
    """Compares the windows with these numbers."""
    measured = [study.measured.windows[number] for number in numbers]
    chosen = [simulated[number] for number in numbers]
    rows = []
    for quantity in compared_latencies(study):
        row = _row(quantity, measured, chosen)
        if row is not None:
            rows.append(row)
    requests = sum(window.latencies[E2E].count for window in measured if E2E in window.latencies)
    return Part(
        name=name,
        windows=len(numbers),
        requests=requests,
        rows=rows,
        levels=_levels(measured, chosen),
    )


def _row(
    quantity: str, measured: Sequence[MeasuredWindow], simulated: Sequence[SimulatedWindow]
) -> Row | None:
    pairs = [
        (window, window.latencies[quantity], other.latencies[quantity])
        for window, other in zip(measured, simulated, strict=True)
        if quantity in window.latencies
    ]
    measured_s = mean_of([truth for _, truth, _ in pairs])
    simulated_s = mean_of([guess for _, _, guess in pairs])
    if not measured_s or simulated_s is None:
        return None
    weight = 0.0
    total = 0.0
    worst = -1.0
    worst_start = ""
    for window, truth, guess in pairs:
        if truth.count < MIN_REQUESTS or not truth.mean or guess.mean is None:
            continue
        error = abs(guess.mean / truth.mean - 1)
        total += error * truth.count
        weight += truth.count
        if error > worst:
            worst = error
            worst_start = text_of(window.start)
    error = simulated_s / measured_s - 1
    return Row(
        quantity=quantity,
        measured_s=measured_s,
        simulated_s=simulated_s,
        error=error,
        window_error=total / weight if weight else abs(error),
        bucket_error=_bucket_error(
            [truth for _, truth, _ in pairs], [guess for _, _, guess in pairs]
        ),
        worst_window=worst_start,
    )


def _bucket_error(measured: Sequence[Distribution], simulated: Sequence[Distribution]) -> float:
    bounds = sorted({high for each in measured for _, high, _ in each.buckets if high is not None})
    pairs = zip(shares_below(measured, bounds), shares_below(simulated, bounds), strict=True)
    return max((abs(share - other) for share, other in pairs), default=0.0)


def shares_below(distributions: Sequence[Distribution], bounds: Sequence[float]) -> list[float]:
    """Returns the share of the values up to each bound."""
    total = sum(count for each in distributions for _, _, count in each.buckets)
    shares = []
    for bound in bounds:
        below = sum(
            count
            for each in distributions
            for _, high, count in each.buckets
            if (inf if high is None else high) <= bound
        )
        shares.append(below / total if total else 0.0)
    return shares


def _levels(
    measured: Sequence[MeasuredWindow], simulated: Sequence[SimulatedWindow]
) -> list[Level]:
    levels = []
    for name in ("running", "kv_usage"):
        truth = mean_level([getattr(window, name) for window in measured])
        guess = mean_level([getattr(window, name) for window in simulated])
        if truth is not None and guess is not None:
            levels.append(Level(quantity=name, measured=truth, simulated=guess))
    queries = sum(window.counters.get(QUERIES, 0.0) for window in measured)
    if queries:
        hits = sum(window.counters.get(HITS, 0.0) for window in measured)
        guess = mean_level([window.cached_share for window in simulated])
        levels.append(
            Level(quantity="cached share", measured=hits / queries, simulated=guess or 0.0)
        )
    return levels


def verdict_of(part: Part, limit: float) -> tuple[str, bool, dict[str, float]]:
    """Returns a sentence, whether all errors are within the limit, and the errors."""
    rows = {row.quantity: row for row in part.rows if row.quantity in JUDGED}
    errors = {name: rows[name].window_error for name in JUDGED if name in rows}
    if not errors:
        return "no latency could be compared", False, errors
    texts = []
    for name, error in errors.items():
        digits = 1 if error < FEW_PERCENT else 0
        texts.append(f"{NAMES[name]} within {error:.{digits}%}")
    text = ", ".join(texts)
    worst = max(errors, key=lambda name: errors[name])
    if rows[worst].worst_window and part.windows > 1:
        text += f"; the worst window starts at {rows[worst].worst_window}"
    return text, max(errors.values()) <= limit, errors


def table_of(part: Part) -> str:
    """Returns a table of a comparison."""
    rows = [["mean", "measured", "simulated", "error", "by window", "buckets"]]
    for row in part.rows:
        rows.append(
            [
                NAMES.get(row.quantity, row.quantity),
                milliseconds(row.measured_s),
                milliseconds(row.simulated_s),
                f"{row.error:+.1%}",
                f"{row.window_error:.1%}",
                f"{row.bucket_error:.1%}",
            ]
        )
    for level in part.levels:
        is_share = level.quantity != "running"
        values = [
            f"{value:.1%}" if is_share else f"{value:.2f}"
            for value in (level.measured, level.simulated)
        ]
        rows.append([level.quantity, *values, "", "", ""])
    heading = f"{part.name}: {part.windows} windows, {part.requests:,.0f} requests"
    return f"{heading}\n{markdown(rows)}"


def means_by_window(
    windows: Sequence[Mapping[str, Distribution]], quantity: str
) -> list[float | None]:
    """Returns the mean of a latency in each window."""
    means = []
    for window in windows:
        distribution = window.get(quantity)
        means.append(None if distribution is None else distribution.mean)
    return means
