"""Search for the constants and their certainty: derivatives of the errors by numpy, then CMA-ES by
`cma`.

Constants compensate for each other, so the loss is a long narrow valley, and saturated runs make
its floor rough. Gauss-Newton steps lead into the valley in few evaluations, and stall there. Their
second derivatives give the valley's shape, from which CMA-ES starts; roughness does not hinder
CMA-ES.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from math import inf, sqrt
from typing import TypeAlias
from warnings import catch_warnings, simplefilter

import numpy
from msgspec import Struct
from numpy.typing import NDArray

from app.lab.fidelity.fitting import PULL, SOFT, Certainty, Problem
from app.lab.fidelity.simulation import Progress, each

STEP = 0.03
"""Change of a constant's logarithm, for derivatives."""
LONG_STEP = 0.1
"""Change of a constant's logarithm for certainties:

long, so that roughness does not pass for information.
"""
DOWNHILL = 5
LENGTHS = (1.0, 0.5, 0.2, 0.05)
"""Shares of a Gauss-Newton step that are tried."""
LONGEST = 1.5
"""Most spreads that a constant moves in a Gauss-Newton step."""
RISE = 2e-4
"""Rise of the loss at distance 1 from the first candidate of CMA-ES."""
SIGMA = 0.4
"""Step size of the first generation of CMA-ES."""
PATIENCE = 16
"""Generations without an improvement after which the search ends."""
WORTHWHILE = 0.01
"""Least improvement, as a share of the loss."""
NOISE = 0.008
"""Least error of a figure from other causes than constants, as a share."""
BEFORE = 2.0
"""Prior standard deviation of a constant from its start, in spreads."""

Array: TypeAlias = NDArray[numpy.float64]
Pool: TypeAlias = ProcessPoolExecutor | None


class SearchResult(Struct, frozen=True):
    x: list[float]
    loss: float
    evaluations: int
    why: str


class Search:
    def __init__(self, problem: Problem, pool: Pool, most: int, progress: Progress) -> None:
        """`most` limits the evaluations, roughly; `progress` receives their number."""
        self._problem, self._pool, self._most, self._progress = problem, pool, most, progress
        self._evaluations, self._loss = 0, inf
        self._best = numpy.zeros(len(problem.constants))

    def run(self, seed: int) -> SearchResult:
        self._try([self._best])
        for _ in range(DOWNHILL):
            if self._evaluations >= self._most:
                break
            second, first = self._curvature()
            before, x = self._loss, self._best
            step = numpy.linalg.solve(second, first).clip(-LONGEST, LONGEST)
            self._try(x - share * step for share in LENGTHS)
            if self._loss >= 0.95 * before:
                break
        why = self._wander(seed)
        return SearchResult(self._best.tolist(), self._loss, self._evaluations, why)

    def _try(self, given: Iterable[Array]) -> list[float]:
        candidates = list(given)
        found = list(each(self._pool, self._problem.loss, candidates))
        self._evaluations += len(candidates)
        least = min(range(len(found)), key=found.__getitem__)
        if found[least] < self._loss:
            self._best, self._loss = candidates[least], found[least]
        self._progress(min(self._evaluations, self._most))
        return found

    def _curvature(self) -> tuple[Array, Array]:
        """Returns second (n, n) and first (n,) derivative of the loss at the best x, by
        Gauss-Newton.
        """
        x = self._best
        self._evaluations += 2 * len(x) + 1
        errors, rows = slopes(self._problem, x, self._pool)
        weighted = rows / numpy.sqrt(errors * errors + SOFT * SOFT) / len(errors)
        return weighted @ rows.T + 2 * PULL * numpy.eye(len(x)), weighted @ errors + 2 * PULL * x

    def _wander(self, seed: int) -> str:
        """Runs CMA-ES around the best candidate, with axes of equal rise; returns the reason for
        its end.
        """
        second, _ = self._curvature()
        second += 2 * RISE * numpy.eye(len(second))  # limits each axis to one spread
        axes = sqrt(2 * RISE) * numpy.linalg.cholesky(numpy.linalg.inv(second))
        with catch_warnings():
            simplefilter("ignore")  # the package warns about missing optional packages
            cma = import_module("cma")
            options = {
                "seed": seed + 1,
                "verbose": -9,
                "verb_log": 0,
            }  # seed 0 would be a random seed
            strategy = cma.CMAEvolutionStrategy([0.0] * len(second), SIGMA, options)
        middle, mark, since = self._best, self._loss, 0
        while self._evaluations < self._most:
            asked = strategy.ask()
            strategy.tell(asked, self._try(middle + axes @ z for z in asked))
            since += 1
            if self._loss < mark * (1 - WORTHWHILE):
                mark, since = self._loss, 0
            if since >= PATIENCE or strategy.stop():
                self._try([middle + axes @ strategy.result.xfavorite])
                return "nothing improved any more"
        return "all evaluations were done"


def slopes(problem: Problem, x: Array, pool: Pool, step: float = STEP) -> tuple[Array, Array]:
    """Returns the errors (m,) at `x` and their derivatives (n, m).

    Longer steps average over roughness.
    """
    moves = step / numpy.array([constant.spread for constant in problem.constants])
    moved = [x + sign * row for row in numpy.diag(moves) for sign in (1, -1)]
    seen = numpy.array([numpy.ravel(errors) for errors in each(pool, problem.errors, [*moved, x])])
    return seen[-1], (seen[0:-1:2] - seen[1:-1:2]) / (2 * moves[:, numpy.newaxis])


def certainties(problem: Problem, x: Sequence[float], pool: Pool) -> list[Certainty]:
    """Returns the certainty of all constants in their order, then of the sum of base and weights.

    Errors are taken as linear in the constants near the best candidate. Bayesian linear regression
    gives the standard deviation of each constant. The noise is the remaining error, the prior is
    `BEFORE` spreads.
    """
    errors, rows = slopes(problem, numpy.array(x), pool, LONG_STEP)
    noise = max(NOISE, float(numpy.sqrt(numpy.mean(errors * errors))))
    covariance = numpy.linalg.inv(rows @ rows.T / noise**2 + numpy.eye(len(x)) / BEFORE**2)
    values = problem.candidate(x)
    start = dict(zip((it.name for it in problem.constants), problem.values, strict=True))
    told = [
        Certainty(
            it.name, start[it.name], values[it.name], it.spread * sqrt(covariance[place, place])
        )
        for place, it in enumerate(problem.constants)
    ]
    if not {"base", "weights"} <= set(start):
        return told
    # Recordings separate the two only with steps of very different sizes.
    whole = values["base"] + values["weights"]
    shares = numpy.array(
        [
            it.spread * values[it.name] / whole * (it.name in ("base", "weights"))
            for it in problem.constants
        ]
    )
    off = sqrt(shares @ covariance @ shares)
    return [*told, Certainty("base + weights", start["base"] + start["weights"], whole, off)]
