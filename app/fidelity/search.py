"""The search for the constants, and how sure each one is: slopes of the errors by numpy, CMA-ES by `cma`.

Constants make up for each other, so the loss is a long narrow valley, and saturated runs make its floor
rough. Steps by the slopes of the errors lead into the valley in few evaluations, and stall there; they also
tell how long it is in which direction, and CMA-ES, which minds no roughness, begins with that.
"""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from math import inf, sqrt
from multiprocessing import get_context
from typing import Protocol, TypeAlias, TypeVar

import numpy
from msgspec import Struct
from numpy.typing import NDArray

from app.fidelity.fitting import PULL, SOFT, Certainty, Problem

STEP = 0.03
"""By which a constant is moved to see what changes: of the logarithm."""
LONG_STEP = 0.1
"""The same where certainty is asked for: roughness must not look as if it told constants apart."""
DOWNHILL = 5
"""Steps by slopes, at most."""
LENGTHS = (1.0, 0.5, 0.2, 0.05)
"""Shares of such a step that are tried."""
LONGEST = 1.5
"""Spreads that a constant moves in one of them, at most."""
RISE = 2e-4
"""Of the loss, for which candidates of CMA-ES are a length of 1 away from the first."""
SIGMA = 0.4
"""Of the first of them."""
PATIENCE = 16
"""Generations without an improvement after which nothing more is expected."""
WORTHWHILE = 0.01
"""The share of the loss that counts as an improvement."""
NOISE = 0.008
"""Least error of a figure for reasons other than constants, as a share."""
BEFORE = 2.0
"""Spreads that a constant may be from its start, before anything is recorded."""

Array: TypeAlias = NDArray[numpy.float64]
Vector: TypeAlias = Sequence[float]
Result = TypeVar("Result")


class Spread(Protocol):
    """Returns a function's results for many candidates, in their order."""

    def __call__(
        self, function: Callable[[Vector], Result], candidates: Sequence[Vector]
    ) -> list[Result]: ...


class Progress(Struct, frozen=True):
    """How far a search has come."""

    evaluations: int
    best: float
    """The least loss so far."""


class Found(Struct, frozen=True):
    x: list[float]
    loss: float
    evaluations: int
    why: str
    """Why the search ended."""


@contextmanager
def mapped(jobs: int) -> Iterator[Spread]:
    """Yields `map`, spread over `jobs` processes."""
    if jobs == 1:
        yield lambda function, candidates: [function(x) for x in candidates]
        return
    # Spawned: the parent has threads of numerical libraries, which a fork does not survive.
    with get_context("spawn").Pool(jobs, _ignore_interrupts) as pool:
        yield lambda function, candidates: pool.map(function, candidates, chunksize=1)


class Search:
    """One search; `run` does all of it."""

    def __init__(self, problem: Problem, spread: Spread, most: int, tell: Callable[[Progress], None]) -> None:
        """Takes about `most` evaluations at most; fewer, when nothing improves any more."""
        self._problem = problem
        self._spread = spread
        self._most = most
        self._tell = tell
        self._evaluations = 0
        self._best = [0.0] * len(problem.constants)
        self._loss = inf

    def run(self, seed: int) -> Found:
        self._losses([self._best])
        for _ in range(DOWNHILL):
            if self._evaluations >= self._most or not self._step_down():
                break
        why = self._wander(seed)
        return Found(self._best, self._loss, self._evaluations, why)

    def _losses(self, candidates: Sequence[list[float]]) -> list[float]:
        found = self._spread(self._problem.loss, candidates)
        self._evaluations += len(candidates)
        least = min(range(len(found)), key=found.__getitem__)
        if found[least] < self._loss:
            self._best, self._loss = candidates[least], found[least]
        self._tell(Progress(self._evaluations, self._loss))
        return found

    def _curvature(self) -> tuple[Array, Array]:
        """Returns second (n, n) and first (n,) derivative of the loss at the best candidate.

        They are those of a sum of squares, weighted as the loss does.
        """
        x = numpy.array(self._best)
        self._evaluations += 2 * len(x) + 1
        errors, rows = slopes(self._problem, self._best, self._spread)
        weighted = rows / numpy.sqrt(errors * errors + SOFT * SOFT) / len(errors)
        return weighted @ rows.T + 2 * PULL * numpy.eye(len(x)), weighted @ errors + 2 * PULL * x

    def _step_down(self) -> bool:
        """Takes a step by slopes; returns whether it improved the loss by a twentieth."""
        second, first = self._curvature()
        before, x = self._loss, numpy.array(self._best)
        step = numpy.linalg.solve(second, first).clip(-LONGEST, LONGEST)
        self._losses([(x - share * step).tolist() for share in LENGTHS])
        return self._loss < 0.95 * before

    def _wander(self, seed: int) -> str:
        """CMA-ES around the best, in coordinates in which the loss rises alike; why it ended."""
        second, _ = self._curvature()
        second += 2 * RISE * numpy.eye(len(second))  # no constant goes further than a spread
        axes = sqrt(2 * RISE) * numpy.linalg.cholesky(numpy.linalg.inv(second))
        middle, strategy = numpy.array(self._best), _strategy(len(second), seed)
        mark, since = self._loss, 0
        while self._evaluations < self._most:
            asked = strategy.ask()
            strategy.tell(asked, self._losses([(middle + axes @ z).tolist() for z in asked]))
            since += 1
            if self._loss < mark * (1 - WORTHWHILE):
                mark, since = self._loss, 0
            if since >= PATIENCE or strategy.stop():
                self._losses([(middle + axes @ strategy.result.xfavorite).tolist()])
                return "nothing improved any more"
        return "all evaluations were done"


def slopes(problem: Problem, x: Vector, spread: Spread, step: float = STEP) -> tuple[Array, Array]:
    """Returns the errors (m,) at a candidate, and how they change (n, m) with each number of it.

    Costs two evaluations for each constant, and one. A longer `step` sees less of roughness.
    """
    moves = step / numpy.array([constant.spread for constant in problem.constants])
    moved = [(numpy.array(x) + sign * row).tolist() for row in numpy.diag(moves) for sign in (1, -1)]
    seen = numpy.array([numpy.ravel(errors) for errors in spread(problem.errors, [*moved, list(x)])])
    return seen[-1], (seen[0:-1:2] - seen[1:-1:2]) / (2 * moves[:, numpy.newaxis])


def certainties(problem: Problem, x: Sequence[float], spread: Spread) -> list[Certainty]:
    """Returns how sure all constants are, in their order, and the sum of base and weights.

    Near the best candidate errors are taken as linear in the constants. With what is left of them as their
    noise, and the spread of the start as all that was known before, linear regression says how far each
    constant may be off.
    """
    errors, rows = slopes(problem, x, spread, LONG_STEP)
    noise = max(NOISE, float(numpy.sqrt(numpy.mean(errors * errors))))
    covariance = numpy.linalg.inv(rows @ rows.T / noise**2 + numpy.eye(len(x)) / BEFORE**2)
    values = problem.candidate(x)
    start = dict(zip((it.name for it in problem.constants), problem.values, strict=True))
    told = [
        Certainty(it.name, start[it.name], values[it.name], it.spread * sqrt(covariance[place, place]))
        for place, it in enumerate(problem.constants)
    ]
    if not {"base", "weights"} <= set(start):
        return told
    # Recordings tell the two apart only where steps are of very different sizes.
    whole = values["base"] + values["weights"]
    shares = numpy.array(
        [it.spread * values[it.name] / whole * (it.name in ("base", "weights")) for it in problem.constants]
    )
    off = sqrt(shares @ covariance @ shares)
    return [*told, Certainty("base + weights", start["base"] + start["weights"], whole, off)]


def _strategy(size: int, seed: int):  # type: ignore[no-untyped-def]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package tells of others that it could use
        cma = import_module("cma")
        options = {"seed": seed + 1, "verbose": -9, "verb_log": 0}  # of seed 0 each run would be another
        return cma.CMAEvolutionStrategy([0.0] * size, SIGMA, options)


def _ignore_interrupts() -> None:
    """Ctrl-C is for the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
