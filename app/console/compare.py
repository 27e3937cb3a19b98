"""Compares two runs: rows of figures, and one sentence on which run is better, and why.

`simulate --compare` and the console page both get their rows and their sentence here.
"""

import math
from collections.abc import Callable, Mapping
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

NOTABLE = 0.05
"""Least relative difference that decides, and least difference of cached shares that explains
others.
"""
LONGER, LONGER_MS = 1.25, 5.0
"""Least ratio and difference of two mean times that explain other figures."""
P99_REQUESTS = 100
"""Least requests for p99; p90 decides for fewer."""


class RunFigures(Struct, frozen=True):
    """Figures of a run by the names of `MEASURES`: milliseconds, shares from 0 to 1, counts."""

    name: Annotated[str, Meta(max_length=200)]
    figures: dict[str, Annotated[float, Meta(ge=0, le=1e15)]]
    """Without those that the run does not have."""


class Comparison(Struct, frozen=True):
    better: str | None
    """Name of the better run; None if neither is better in all."""
    sentence: str
    rows: list[tuple[str, str, str, str, str]]
    """Figure, value of each run, difference, and for the second run `better`, `worse` or nothing.
    """


class Measure(NamedTuple):
    text: Callable[[float], str]
    least: float = 1.0
    """Smaller differences do not count."""
    sign: int = 1
    """1 where less is better, -1 where more is."""

    def gain(self, first: float | None, second: float | None) -> float:
        """Returns the logarithm of `first` / `second`, 0 unless the difference counts; above 0 is
        better.
        """
        if first is None or second is None or abs(first - second) < self.least:
            return 0.0
        gain = self.sign * math.log((first + self.least) / (second + self.least))
        return gain if abs(gain) > math.log1p(NOTABLE) else 0.0

    def change(self, first: float | None, second: float | None) -> str:
        if first is None or second is None or self.text(first) == self.text(second):
            return ""
        if self.text is _share or not first:
            return (
                f"{100 * (second - first):+.1f} points"
                if self.text is _share
                else f"+{self.text(second)}"
            )
        return f"{100 * (second / first - 1):+,.0f} %"


def _ms(value: float) -> str:
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.1f} ms"


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


TIMES, PARTS = ("TTFT", "ITL", "E2E"), ("p50", "p90", "p99")
FAILED, CACHED, QUEUE, PREFILL = (
    "failed",
    "prompt tokens cached",
    "mean wait in the queue",
    "mean prefill",
)
LOAD = REQUESTS, PROMPTS = "requests", "prompt tokens"
GPU_HOURS, OUTPUT = "GPU-hours", "output tokens/s"
MEASURES: Mapping[str, Measure] = {
    **{f"{time} {part}": Measure(_ms) for time in TIMES for part in PARTS},
    **{OUTPUT: Measure("{:,.0f}".format, 0.1, -1), FAILED: Measure(_share, 0.005)},
    **{CACHED: Measure(_share, 0.01, -1), QUEUE: Measure(_ms), PREFILL: Measure(_ms)},
    **{GPU_HOURS: Measure("{:,.2f}".format, 0.001)},
    **{name: Measure("{:,.0f}".format) for name in LOAD},
}
"""Rows of the comparison, in this order.

`mean prefill` is from the end of the queue to the first token.
"""
REASONS = {
    CACHED: "{} of its prompt tokens were found in a cache instead of {}",
    QUEUE: "its requests waited {} in the queue on average instead of {}",
    PREFILL: "its prompts took {} to compute on average instead of {}",
}


def compare(a: RunFigures, b: RunFigures) -> Comparison:
    """Compares `b` with `a`.

    Raises ValueError, in one line, for a run without a request that ended.
    """
    for its in (a, b):
        if "E2E p50" not in its.figures:
            raise ValueError(f"{its.name} has no request that ended: there is nothing to compare")
    rows = []
    for name, measure in MEASURES.items():
        if (pair := (a.figures.get(name), b.figures.get(name))) != (None, None):
            first, second = ("–" if value is None else measure.text(value) for value in pair)
            gain = 0.0 if name in LOAD else measure.gain(*pair)
            mark = "better" if gain > 0 else "worse" if gain < 0 else ""
            rows.append((name, first, second, measure.change(*pair), mark))
    return Comparison(*_verdict(a, b), rows)


def _verdict(a: RunFigures, b: RunFigures) -> tuple[str | None, str]:
    """Returns the name of the better run, or None, and the sentence."""
    tail = "p99" if min(its.figures.get(REQUESTS, 0.0) for its in (a, b)) >= P99_REQUESTS else "p90"
    gains = {
        name: its.gain(a.figures.get(name), b.figures.get(name)) for name, its in MEASURES.items()
    }
    differ = " and ".join(name for name in LOAD if gains[name])
    names = [*(f"{time} {part}" for part in (tail, "p50") for time in TIMES), FAILED]
    names += [] if differ else [GPU_HOURS, OUTPUT]  # a greater load has more of both
    loads = f"; but the loads differ in {differ}" if differ else ""
    head, cost = (_leading({name: gains[name] * sign for name in names}) for sign in (1, -1))
    winner, loser = b, a
    if -gains[cost] > gains[head]:
        head, cost, winner, loser = cost, head, a, b
    if not gains[head]:
        return None, f"Neither is better: no figure that decides differs by 5 %{loads}."
    by, other, is_cost = _against(head, winner, loser), "", gains[cost] * gains[head] < 0
    if is_cost and 2 * abs(gains[cost]) > abs(gains[head]):
        other = _against(cost, loser, winner)
        return (
            None,
            f"Neither is better in all: {winner.name} has {by}, {loser.name} has {other}{loads}.",
        )
    trade_off = f"; but {_against(cost, winner, loser)}" if is_cost else ""
    return (
        winner.name,
        f"{winner.name} is better: {by}{_reason(head, winner, loser)}{trade_off}{loads}.",
    )


def _leading(gains: Mapping[str, float]) -> str:
    """Returns the first figure with at least half of the greatest gain."""
    most = max(gains.values())
    return next(name for name, gain in gains.items() if gain >= most / 2 or gain == most)


def _against(name: str, its: RunFigures, other: RunFigures) -> str:
    """Returns, for example, `TTFT p99 212 ms against 840 ms (75 % less)`."""
    measure, value, before = MEASURES[name], its.figures[name], other.figures[name]
    by = f"{measure.change(before, value)[1:]} {'less' if value < before else 'more'}"
    return f"{name} {measure.text(value)} against {measure.text(before)} ({by})"


def _reason(head: str, winner: RunFigures, loser: RunFigures) -> str:
    """Returns why `winner` is better in figure `head`, as far as other figures show it."""
    reasons = []
    for name in (CACHED,) if head.startswith("ITL") else REASONS:
        other = loser.figures.get(name, 0.0)
        its = winner.figures.get(name, other)
        longer = other > its * LONGER and other - its > LONGER_MS
        if its - other >= NOTABLE if name == CACHED else longer:
            reasons.append(REASONS[name].format(*map(MEASURES[name].text, (its, other))))
    if head in (FAILED, GPU_HOURS):
        return ""
    return (
        f", because {' and '.join(reasons[:2])}" if reasons else "; these figures do not show why"
    )
