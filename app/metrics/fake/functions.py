"""Values that follow time (simulator.md 14.4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from config.fake_metrics import Function

NANOSECONDS = 1_000_000_000
"""Per second. Time is counted in them, so that the end of a period falls on its instant."""

# Periods since the start -> how far the value is on its way from start (0) to end (1).
_CURVES: Mapping[str, Callable[[float], float]] = {
    "oscillate": lambda periods: (1 + math.sin(2 * math.pi * periods)) / 2,
    "ramp": lambda periods: min(periods, 1.0),
    "rampreset": lambda periods: periods % 1,
    "squarewave": lambda periods: float(periods % 1 >= 0.5),
}


def value_at(function: Function, elapsed_s: float, step_s: float) -> float:
    """The value of `function` `elapsed_s` >= 0 after its start, in steps of `step_s` > 0."""
    elapsed_ns, step_ns = _nanoseconds(elapsed_s), _nanoseconds(step_s)
    periods = elapsed_ns // step_ns * step_ns / _nanoseconds(function.period_s)
    way = _CURVES[function.shape](periods)
    return (1 - way) * function.start + way * function.end


def _nanoseconds(seconds: float) -> int:
    return round(seconds * NANOSECONDS)
