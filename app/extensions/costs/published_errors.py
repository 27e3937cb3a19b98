"""Errors on runs that people published, and intervals by the level of evidence.

`published_errors.json` has the residuals of the half of `benchmarks/people_runs.csv` that fits may
see; the other half judges these intervals (`python -m benchmarks.people --coverage`). They hold for
devices without cells in `known_errors.json`, and for pairs of model and card that have none there.
Start reading at `PublishedErrors.spread`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from math import exp, inf
from pathlib import Path

import msgspec

from app.extensions.costs.error_model import (
    COVERAGE,
    ErrorSpread,
    Evidence,
    KnownError,
    Situation,
    distance_between,
    evidence_of,
    load_distance,
)
from app.shared.statistics import weighted_quantiles

TABLE = Path(__file__).with_name("published_errors.json")
LOAD_SCALE = 0.3
"""Distance of loads at which a run of the same pair has 1/e of its weight."""
CENTER_SHARES: Mapping[Evidence, float] = {
    Evidence.PAIR: 0.7,
    Evidence.CARD: 0.5,
    Evidence.KERNELS: 0.25,
    Evidence.NONE: 0.25,
}
"""Share of the median residual that the center of an interval has."""
VERSION_GROWTH = 0.025
"""Growth of the half width with each minor version of vLLM between the server and the nearest run.

From 0.10 to 0.11, CUDA graphs with attention made small steps 38 % shorter; 0.16 is 7 % faster than
0.15 on RTX 5090.
"""
WIDTHS: Mapping[str, Mapping[Evidence, tuple[float, float]]] = {
    "tpot": {
        Evidence.PAIR: (0.27, 0.69),
        Evidence.CARD: (0.28, 0.69),
        Evidence.KERNELS: (0.25, 0.69),
        Evidence.NONE: (0.35, 0.9),
    },
    "ttft": {
        Evidence.PAIR: (0.45, 1.0),
        Evidence.CARD: (0.45, 1.0),
        Evidence.KERNELS: (0.55, 1.1),
        Evidence.NONE: (0.65, 1.3),
    },
}
"""Figure -> least and greatest half width of each level, as logarithms."""


class PublishedErrors:
    """Intervals from the residuals of published runs."""

    def __init__(self, errors: Sequence[KnownError]) -> None:
        self._errors = errors

    def evidence(self, situation: Situation, figure: str) -> Evidence:
        """Returns the best level of evidence for a figure."""
        levels = [
            evidence_of(situation, error.situation)
            for error in self._errors
            if error.residual(figure) is not None
        ]
        return max(levels, default=Evidence.NONE)

    def spread(
        self, situation: Situation, figure: str, at_most: Evidence = Evidence.PAIR
    ) -> ErrorSpread:
        """Returns the distribution of errors from the runs of the best level.

        Args:
            situation: A server and its load.
            figure: `tpot` or `ttft`.
            at_most: Better evidence is left out, to judge a level by servers that have better one.
        """
        levels = defaultdict(list)
        for error in self._errors:
            level = evidence_of(situation, error.situation)
            if level <= at_most and error.residual(figure) is not None:
                levels[level].append(error)
        level = max(levels, default=Evidence.NONE)
        runs = levels[level]
        if level is Evidence.NONE:
            runs = [error for errors in levels.values() for error in errors]
        return _spread(situation, figure, level, runs=runs)


def _spread(
    situation: Situation, figure: str, level: Evidence, *, runs: Sequence[KnownError]
) -> ErrorSpread:
    """Returns the distribution of the residuals of runs of a level."""
    servers = defaultdict(list)
    for error in runs:
        servers[error.group].append(error)
    weighted = []
    for group in servers.values():
        for error in group:
            residual = error.residual(figure)
            assert residual is not None
            weight = 1 / len(group)
            if level is Evidence.PAIR:
                weight *= exp(-load_distance(situation, error.situation) / LOAD_SCALE)
            weighted.append((residual, weight))
    least, greatest = WIDTHS[figure][level]
    center = 0.0
    half_width = greatest
    distance = inf
    nearest = ""
    source = ""
    if weighted:
        center = CENTER_SHARES[level] * next(weighted_quantiles(weighted, [0.5]))
        deviations = [(abs(residual - center), weight) for residual, weight in weighted]
        half_width = next(weighted_quantiles(deviations, [COVERAGE])) * (1 + 1 / len(servers))
        closest = min(runs, key=lambda error: _unlikeness(situation, error.situation))
        distance = distance_between(situation, closest.situation)
        gap = 0
        if level is not Evidence.NONE:
            gap = min(abs(situation.version - error.situation.version) for error in runs)
            nearest = closest.group
            source = closest.source
        half_width = max(least, half_width) + VERSION_GROWTH * gap
    half_width = min(half_width, greatest)
    return ErrorSpread(
        center=center,
        half_width=half_width,
        distance=distance,
        nearest=nearest,
        chosen_center=center,
        chosen_half_width=half_width,
        evidence=level,
        source=source,
    )


def _unlikeness(left: Situation, right: Situation) -> tuple[int, float]:
    """Returns a key that is least for the most similar run."""
    return abs(left.devices - right.devices), load_distance(left, right)


def read_published() -> list[KnownError]:
    """Returns the residuals that are shipped."""
    return msgspec.json.decode(TABLE.read_bytes(), type=list[KnownError])


@cache
def published_errors() -> PublishedErrors:
    """Returns the model of the residuals that are shipped."""
    return PublishedErrors(read_published())
