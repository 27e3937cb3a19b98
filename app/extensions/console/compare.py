"""Compares two runs: rows of figures, and one sentence on which run is better, and why.

`simulate --compare` and the console page both get their rows and their sentence here. Start reading
at `compare`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

NOTABLE = 0.05
"""Least relative difference that decides, and least difference of cached shares that explains
other figures.
"""
LONGER_RATIO = 1.25
"""Least ratio of two mean times that explains other figures."""
LONGER_MS = 5.0
"""Least difference of two mean times that explains other figures."""
P99_REQUESTS = 100
"""Least requests for p99; p90 decides for fewer."""
TIMES = ("TTFT", "TPOT", "E2E")
PARTS = ("p50", "p90", "p99")
FAILED = "failed"
CACHED = "prompt tokens cached"
QUEUE = "mean wait in the queue"
PREFILL = "mean prefill"
"""Name of the mean time from the end of the queue to the first token."""
REQUESTS = "requests"
PROMPTS = "prompt tokens"
LOAD = (REQUESTS, PROMPTS)
GPU_HOURS = "GPU-hours"
OUTPUT = "output tokens/s"
REASONS = {
    CACHED: "{} of its prompt tokens were found in a cache instead of {}",
    QUEUE: "its requests waited {} in the queue on average instead of {}",
    PREFILL: "its prompts took {} to compute on average instead of {}",
}


class RunFigures(Struct, frozen=True):
    """Figures of a run by the names of `_measures`: milliseconds, shares from 0 to 1, counts."""

    name: Annotated[str, Meta(max_length=200)]
    figures: dict[str, Annotated[float, Meta(ge=0, le=1e15)]]
    """Figures that the run does not have are missing."""


class Comparison(Struct, frozen=True):
    """The result of a comparison."""

    better: str | None
    """Name of the better run; None if neither is better in all figures."""
    sentence: str
    rows: list[tuple[str, str, str, str, str]]
    """Figure, value of each run, difference, and for the second run `better`, `worse` or nothing.
    """


class Measure(NamedTuple):
    """How a figure is shown and compared."""

    text: Callable[[float], str]
    """Returns a value with its unit."""
    min_difference: float = 1.0
    """Smaller differences do not count."""
    less_is_better: bool = True
    is_share: bool = False

    def optional_text(self, value: float | None) -> str:
        """Returns a value with its unit, or a dash for a value that a run does not have."""
        if value is None:
            return "–"
        return self.text(value)

    def gain(self, first: float | None, second: float | None) -> float:
        """Returns the logarithm of the ratio of two values, above 0 if the second is better.

        Returns 0 for a difference that does not count.
        """
        if first is None or second is None or abs(first - second) < self.min_difference:
            return 0.0
        gain = math.log((first + self.min_difference) / (second + self.min_difference))
        if abs(gain) <= math.log1p(NOTABLE):
            return 0.0
        if not self.less_is_better:
            return -gain
        return gain

    def mark(self, first: float | None, second: float | None) -> str:
        """Returns `better` or `worse` for the second value, or nothing."""
        gain = self.gain(first, second)
        if gain > 0:
            return "better"
        if gain < 0:
            return "worse"
        return ""

    def change(self, first: float | None, second: float | None) -> str:
        """Returns the difference as text; empty if both values look the same."""
        if first is None or second is None or self.text(first) == self.text(second):
            return ""
        if self.is_share:
            return f"{100 * (second - first):+.1f} points"
        if not first:
            return f"+{self.text(second)}"
        return f"{100 * (second / first - 1):+,.0f} %"


def _ms(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f} ms"
    return f"{value:.1f} ms"


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _measures() -> Mapping[str, Measure]:
    whole = "{:,.0f}".format
    measures = {f"{time} {part}": Measure(_ms) for time in TIMES for part in PARTS}
    measures[OUTPUT] = Measure(whole, min_difference=0.1, less_is_better=False)
    measures[FAILED] = Measure(_share, min_difference=0.005, is_share=True)
    measures[CACHED] = Measure(_share, min_difference=0.01, less_is_better=False, is_share=True)
    measures[QUEUE] = Measure(_ms)
    measures[PREFILL] = Measure(_ms)
    measures[GPU_HOURS] = Measure("{:,.2f}".format, min_difference=0.001)
    measures[REQUESTS] = Measure(whole)
    measures[PROMPTS] = Measure(whole)
    return measures


_measure_by_name = _measures()
"""Rows of a comparison, in this order."""


def compare(a: RunFigures, b: RunFigures) -> Comparison:
    """Compares `b` with `a`.

    Raises:
        ValueError: A run has no request that ended. The text is one line.
    """
    for run in (a, b):
        if "E2E p50" not in run.figures:
            raise ValueError(f"{run.name} has no finished requests to compare")
    rows: list[tuple[str, str, str, str, str]] = []
    for name, measure in _measure_by_name.items():
        first = a.figures.get(name)
        second = b.figures.get(name)
        if first is None and second is None:
            continue
        mark = ""
        if name not in LOAD:
            mark = measure.mark(first, second)
        rows.append(
            (
                name,
                measure.optional_text(first),
                measure.optional_text(second),
                measure.change(first, second),
                mark,
            )
        )
    better, sentence = _verdict(a, b)
    return Comparison(better, sentence, rows)


def _verdict(a: RunFigures, b: RunFigures) -> tuple[str | None, str]:
    """Returns the name of the better run, or None, and the sentence."""
    gains: dict[str, float] = {}
    for name, measure in _measure_by_name.items():
        gains[name] = measure.gain(a.figures.get(name), b.figures.get(name))
    different_loads = " and ".join(name for name in LOAD if gains[name])
    names = _deciding_figures(a, b)
    hint = ""
    if different_loads:
        hint = f"; but the loads differ in {different_loads}"
    else:  # a greater load has more of both
        names += [GPU_HOURS, OUTPUT]
    head = _leading_figure({name: gains[name] for name in names})
    cost = _leading_figure({name: -gains[name] for name in names})
    if -gains[cost] > gains[head]:
        winner = a
        loser = b
        head, cost = cost, head
    else:
        winner = b
        loser = a
    if not gains[head]:
        return None, f"Neither is better: no figure that decides differs by 5 %{hint}."
    gain_text = _against(head, winner, loser)
    is_cost = gains[cost] * gains[head] < 0
    if is_cost and 2 * abs(gains[cost]) > abs(gains[head]):
        cost_text = _against(cost, loser, winner)
        sentence = f"{winner.name} has {gain_text}, {loser.name} has {cost_text}"
        return None, f"Neither is better in all: {sentence}{hint}."
    sentence = f"{winner.name} is better: {gain_text}{_reason(head, winner, loser)}"
    if is_cost:
        sentence += f"; but {_against(cost, winner, loser)}"
    return winner.name, f"{sentence}{hint}."


def _deciding_figures(a: RunFigures, b: RunFigures) -> list[str]:
    requests = min(run.figures.get(REQUESTS, 0.0) for run in (a, b))
    tail = "p90"
    if requests >= P99_REQUESTS:
        tail = "p99"
    names = [f"{time} {part}" for part in (tail, "p50") for time in TIMES]
    return [*names, FAILED]


def _leading_figure(gains: Mapping[str, float]) -> str:
    """Returns the first figure with at least half of the greatest gain."""
    max_gain = max(gains.values())
    least_gain = min(max_gain, max_gain / 2)
    return next(name for name, gain in gains.items() if gain >= least_gain)


def _against(name: str, run: RunFigures, other: RunFigures) -> str:
    """Returns, for example, `TTFT p99 212 ms against 840 ms (75 % less)`."""
    measure = _measure_by_name[name]
    value = run.figures[name]
    other_value = other.figures[name]
    direction = "more"
    if value < other_value:
        direction = "less"
    change = f"{measure.change(other_value, value)[1:]} {direction}"
    return f"{name} {measure.text(value)} against {measure.text(other_value)} ({change})"


def _reason(head: str, winner: RunFigures, loser: RunFigures) -> str:
    """Returns why `winner` is better in figure `head`, as far as other figures show it."""
    if head in (FAILED, GPU_HOURS):
        return ""
    causes = [*REASONS]
    if head.startswith("TPOT"):
        causes = [CACHED]
    reasons: list[str] = []
    for name in causes:
        loser_value = loser.figures.get(name, 0.0)
        winner_value = winner.figures.get(name, loser_value)
        if name == CACHED:
            explains = winner_value - loser_value >= NOTABLE
        else:
            is_longer = loser_value > winner_value * LONGER_RATIO
            explains = is_longer and loser_value - winner_value > LONGER_MS
        if explains:
            text = _measure_by_name[name].text
            reasons.append(REASONS[name].format(text(winner_value), text(loser_value)))
    if not reasons:
        return "; these figures do not show why"
    return f", because {' and '.join(reasons[:2])}"
