"""The comparison of two runs: rows of figures, and one sentence on which run is better, and why.

`simulate --compare` and the console page both get their rows and their sentence here.
"""

import math
from collections.abc import Callable, Mapping
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

NOTABLE = 0.05
"""Least relative difference that decides, and least difference of cached shares that explains others."""
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
    """Figure, value of each run, difference, and for the second run `better`, `worse` or nothing."""


class Measure(NamedTuple):
    text: Callable[[float], str]
    least: float = 1.0
    """Smaller differences do not count."""
    sign: int = 1
    """1 where less is better, -1 where more is."""

    def gain(self, first: float | None, second: float | None) -> float:
        """Returns the logarithm of `first` / `second`, 0 unless the difference counts; above 0 is better."""
        if first is None or second is None or abs(first - second) < self.least:
            return 0.0
        gain = self.sign * math.log((first + self.least) / (second + self.least))
        return gain if abs(gain) > math.log1p(NOTABLE) else 0.0

    def change(self, first: float | None, second: float | None) -> str:
        if first is None or second is None or self.text(first) == self.text(second):
            return ""
        if self.text is _share:
            return f"{100 * (second - first):+.1f} points"
        return f"{100 * (second / first - 1):+,.0f} %" if first else f"+{self.text(second)}"


def _ms(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1000:,.1f} s"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.1f} ms"


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


TIMES = ("TTFT", "ITL", "E2E")
FAILED, CACHED, QUEUE, PREFILL = "failed", "prompt tokens cached", "mean wait in the queue", "mean prefill"
LOAD = REQUESTS, PROMPTS = "requests", "prompt tokens"
GPU_HOURS, OUTPUT = "GPU-hours", "output tokens/s"
MEASURES: Mapping[str, Measure] = {
    **{f"{time} {part}": Measure(_ms, 1.0, 1) for time in TIMES for part in ("p50", "p90", "p99")},
    OUTPUT: Measure("{:,.0f}".format, 0.1, -1),
    FAILED: Measure(_share, 0.005, 1),
    CACHED: Measure(_share, 0.01, -1),
    QUEUE: Measure(_ms, 1.0, 1),
    PREFILL: Measure(_ms, 1.0, 1),
    GPU_HOURS: Measure("{:,.2f}".format, 0.001, 1),
    **{name: Measure("{:,.0f}".format) for name in LOAD},
}
"""Rows of the comparison, in this order. `mean prefill` is from the end of the queue to the first token."""
REASONS = {
    CACHED: "{} of its prompt tokens were found in a cache instead of {}",
    QUEUE: "its requests waited {} in the queue on average instead of {}",
    PREFILL: "its prompts took {} to compute on average instead of {}",
}


def compare(a: RunFigures, b: RunFigures) -> Comparison:
    """Compares `b` with `a`. Raises ValueError, in one line, for a run without a request that ended."""
    rows = []
    for its in (a, b):
        if its.figures.get("E2E p50") is None:
            raise ValueError(f"{its.name} has no request that ended: there is nothing to compare")
    for name, measure in MEASURES.items():
        if (values := (a.figures.get(name), b.figures.get(name))) != (None, None):
            first, second = ("–" if value is None else measure.text(value) for value in values)
            gain = 0.0 if name in LOAD else measure.gain(*values)
            mark = "better" if gain > 0 else "worse" if gain < 0 else ""
            rows.append((name, first, second, measure.change(*values), mark))
    return Comparison(*_verdict(a, b), rows)


def _verdict(a: RunFigures, b: RunFigures) -> tuple[str | None, str]:
    """Returns the name of the better run, or None, and the sentence."""
    pairs = {name: (a.figures.get(name), b.figures.get(name)) for name in MEASURES}
    tail = "p99" if min(its.figures.get(REQUESTS, 0.0) for its in (a, b)) >= P99_REQUESTS else "p90"
    first = {*(f"{time} {tail}" for time in TIMES), FAILED, OUTPUT, GPU_HOURS}
    medians = {f"{time} p50" for time in TIMES}
    gains = {name: MEASURES[name].gain(*pair) for name, pair in pairs.items() if name in first | medians}

    def strongest(sign: int) -> str:
        """Returns the figure with the most gain for one run; a median only where nothing else has any."""
        its = [name for name, gain in gains.items() if gain * sign > 0]
        return max(its, key=lambda name: (name in first, abs(gains[name])), default="")

    differ = [name for name in LOAD if MEASURES[name].gain(*pairs[name])]
    loads = f"; but the loads differ in {' and '.join(differ)}" if differ else ""
    head, cost, winner, loser = strongest(1), strongest(-1), b, a
    if abs(gains.get(cost, 0)) > gains.get(head, 0):
        head, cost, winner, loser = cost, head, a, b
    if not head:
        return None, f"Neither is better: no figure that decides differs by 5 %{loads}."
    by = _against(head, winner, loser)
    if cost and 2 * abs(gains[cost]) > abs(gains[head]):
        other = _against(cost, loser, winner)
        return None, f"Neither is better in all: {winner.name} has {by}, {loser.name} has {other}{loads}."
    trade_off = f"; but {_against(cost, winner, loser)}" if cost else ""
    return winner.name, f"{winner.name} is better: {by}{_reason(head, winner, loser)}{trade_off}{loads}."


def _against(name: str, its: RunFigures, other: RunFigures) -> str:
    """Returns, for example, `TTFT p99 212 ms against 840 ms (75 % less)`."""
    text, value, before = MEASURES[name].text, its.figures[name], other.figures[name]
    by = (
        f" ({abs(100 * (value / before - 1)):.0f} % {'less' if value < before else 'more'})" if before else ""
    )
    return f"{name} {text(value)} against {text(before)}{'' if text is _share else by}"


def _reason(head: str, winner: RunFigures, loser: RunFigures) -> str:
    """Returns why `winner` is better, as far as the figures show it."""
    reasons = []
    for name, form in REASONS.items():
        its, other = winner.figures.get(name), loser.figures.get(name, 0.0 if name == CACHED else None)
        if its is None or other is None or (name != CACHED and head.startswith("ITL")):
            continue
        longer = other > its * LONGER and other - its > LONGER_MS
        if its - other >= NOTABLE if name == CACHED else longer:
            reasons.append(form.format(*map(MEASURES[name].text, (its, other))))
    if head in (FAILED, GPU_HOURS):
        return ""
    return f", because {' and '.join(reasons[:2])}" if reasons else "; these figures do not show why"
