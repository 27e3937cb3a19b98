"""Search for the constants and their certainty.

Derivatives of the errors are computed with numpy, CMA-ES is that of the package `cma`. Constants
compensate for each other, so the loss is a long narrow valley, and saturated runs make its floor
rough. Gauss-Newton steps lead into the valley in few evaluations, and stall there. Their
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

from workbench.load.progress import Progress
from workbench.runs.fitting import PULL, SMOOTHING, Certainty, Problem
from workbench.runs.workers import map_jobs

STEP = 0.03
"""Change of a constant's logarithm, for derivatives."""
LONG_STEP = 0.1
"""Change of a constant's logarithm for certainties: long, so that roughness does not pass for
information.
"""
MAX_GAUSS_NEWTON_STEPS = 5
STEP_SHARES = (1.0, 0.5, 0.2, 0.05)
"""Shares of a Gauss-Newton step that are tried."""
MAX_GAUSS_NEWTON_MOVE = 1.5
"""Most spreads that a constant moves in a Gauss-Newton step."""
RISE = 2e-4
"""Rise of the loss at distance 1 from the first candidate of CMA-ES."""
SIGMA = 0.4
"""Step size of the first generation of CMA-ES."""
MAX_STALLED_GENERATIONS = 16
"""Generations without an improvement after which the search ends."""
MIN_IMPROVEMENT = 0.01
"""Least improvement, as a share of the loss."""
NOISE = 0.008
"""Least error of a figure from other causes than constants, as a share."""
PRIOR_DEVIATION = 2.0
"""Prior standard deviation of a constant from its start, in spreads."""

Array: TypeAlias = NDArray[numpy.float64]
Pool: TypeAlias = ProcessPoolExecutor | None


class SearchResult(Struct, frozen=True):
    """The best candidate of a search, and the reason for the end of the search."""

    x: list[float]
    loss: float
    evaluations: int
    reason: str


class Search:
    """Searches the candidate with the least loss."""

    def __init__(
        self, problem: Problem, pool: Pool, max_evaluations: int, progress: Progress
    ) -> None:
        """`max_evaluations` is a rough limit; `progress` receives the number of evaluations."""
        self._problem = problem
        self._pool = pool
        self._max_evaluations = max_evaluations
        self._progress = progress
        self._evaluations = 0
        self._loss = inf
        self._best = numpy.zeros(len(problem.constants))

    def run(self, seed: int) -> SearchResult:
        """Runs the search; `seed` is that of CMA-ES."""
        self._evaluate([self._best])
        for _ in range(MAX_GAUSS_NEWTON_STEPS):
            if self._evaluations >= self._max_evaluations:
                break
            second, first = self._curvature()
            last_loss = self._loss
            x = self._best
            move = numpy.linalg.solve(second, first)
            move = move.clip(-MAX_GAUSS_NEWTON_MOVE, MAX_GAUSS_NEWTON_MOVE)
            self._evaluate(x - share * move for share in STEP_SHARES)
            if self._loss >= 0.95 * last_loss:
                break
        reason = self._run_cma(seed)
        return SearchResult(self._best.tolist(), self._loss, self._evaluations, reason)

    def _evaluate(self, candidates: Iterable[Array]) -> list[float]:
        """Returns the losses of the candidates, and keeps the best candidate."""
        candidates = list(candidates)
        losses = list(map_jobs(self._pool, self._problem.loss, candidates))
        self._evaluations += len(candidates)
        best = min(range(len(losses)), key=losses.__getitem__)
        if losses[best] < self._loss:
            self._best = candidates[best]
            self._loss = losses[best]
        self._progress(min(self._evaluations, self._max_evaluations))
        return losses

    def _curvature(self) -> tuple[Array, Array]:
        """Returns second (n, n) and first (n,) derivative of the loss at the best x.

        They are approximated by Gauss-Newton.
        """
        x = self._best
        self._evaluations += 2 * len(x) + 1
        errors, rows = slopes(self._problem, x, self._pool)
        weighted = rows / numpy.sqrt(errors * errors + SMOOTHING * SMOOTHING) / len(errors)
        second = weighted @ rows.T + 2 * PULL * numpy.eye(len(x))
        return second, weighted @ errors + 2 * PULL * x

    def _run_cma(self, seed: int) -> str:
        """Runs CMA-ES around the best candidate, with axes of equal rise of the loss.

        Returns the reason for its end.
        """
        second, _ = self._curvature()
        second += 2 * RISE * numpy.eye(len(second))  # limits each axis to one spread
        axes = sqrt(2 * RISE) * numpy.linalg.cholesky(numpy.linalg.inv(second))
        with catch_warnings():
            simplefilter("ignore")  # the package warns about missing optional packages
            cma = import_module("cma")
            # Seed 0 would be a random seed.
            options = {"seed": seed + 1, "verbose": -9, "verb_log": 0}
            strategy = cma.CMAEvolutionStrategy([0.0] * len(second), SIGMA, options)
        center = self._best
        improved_loss = self._loss
        stalled_generations = 0
        while self._evaluations < self._max_evaluations:
            points = strategy.ask()
            strategy.tell(points, self._evaluate(center + axes @ point for point in points))
            stalled_generations += 1
            if self._loss < improved_loss * (1 - MIN_IMPROVEMENT):
                improved_loss = self._loss
                stalled_generations = 0
            if stalled_generations >= MAX_STALLED_GENERATIONS or strategy.stop():
                self._evaluate([center + axes @ strategy.result.xfavorite])
                return "nothing improved any more"
        return "all evaluations were done"


def slopes(problem: Problem, x: Array, pool: Pool, step: float = STEP) -> tuple[Array, Array]:
    """Returns the errors (m,) at `x` and their derivatives (n, m).

    Longer steps average over roughness.
    """
    moves = step / numpy.array([constant.spread for constant in problem.constants])
    candidates = [x + sign * row for row in numpy.diag(moves) for sign in (1, -1)]
    candidates.append(x)
    errors = numpy.array(
        [numpy.ravel(errors) for errors in map_jobs(pool, problem.errors, candidates)]
    )
    return errors[-1], (errors[0:-1:2] - errors[1:-1:2]) / (2 * moves[:, numpy.newaxis])


def certainties(problem: Problem, x: Sequence[float], pool: Pool) -> list[Certainty]:
    """Returns the certainty of all constants in their order, then of the sum of base and weights.

    Errors are taken as linear in the constants near the best candidate. Bayesian linear regression
    gives the standard deviation of each constant. The noise is the remaining error, the prior is
    `PRIOR_DEVIATION` spreads.
    """
    errors, rows = slopes(problem, numpy.array(x), pool, LONG_STEP)
    noise = max(NOISE, float(numpy.sqrt(numpy.mean(errors * errors))))
    prior = numpy.eye(len(x)) / PRIOR_DEVIATION**2
    covariance = numpy.linalg.inv(rows @ rows.T / noise**2 + prior)
    values = problem.candidate(x)
    starts: dict[str, float] = {}
    results = []
    for index, constant in enumerate(problem.constants):
        starts[constant.name] = problem.values[index]
        results.append(
            Certainty(
                constant.name,
                start=problem.values[index],
                value=values[constant.name],
                deviation=constant.spread * sqrt(covariance[index, index]),
            )
        )
    if not {"base", "weights"} <= set(starts):
        return results
    # Recordings separate the two only with steps of very different sizes.
    total = values["base"] + values["weights"]
    shares = numpy.zeros(len(x))
    for index, constant in enumerate(problem.constants):
        if constant.name in ("base", "weights"):
            shares[index] = constant.spread * values[constant.name] / total
    deviation = sqrt(shares @ covariance @ shares)
    total_start = starts["base"] + starts["weights"]
    return [*results, Certainty("base + weights", total_start, total, deviation)]
