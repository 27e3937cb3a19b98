"""The search for the constants: a few steps downhill, then CMA-ES, candidates spread over processes.

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
from math import sqrt
from multiprocessing import get_context

from msgspec import Struct

from app.fidelity.fitting import Problem
from app.fidelity.linear import Spread, Vector, applied, curvature, inverse, root, slopes

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
    """`map`, spread over `jobs` processes."""
    if jobs == 1:
        yield lambda function, candidates: [function(x) for x in candidates]
        return
    # Spawned: the parent has threads of numerical libraries, which a fork does not survive.
    with get_context("spawn").Pool(jobs, _ignore_interrupts) as pool:
        yield lambda function, candidates: pool.map(function, candidates, chunksize=1)


class Search:
    """One search; `run` does all of it."""

    def __init__(self, problem: Problem, spread: Spread, most: int, tell: Callable[[Progress], None]) -> None:
        """About `most` evaluations at most; fewer, when nothing improves any more."""
        self._problem = problem
        self._spread = spread
        self._most = most
        self._tell = tell
        self._evaluations = 0
        self._best = [0.0] * len(problem.constants)
        self._loss = float("inf")

    def run(self, seed: int) -> Found:
        self._losses([self._best])
        for _ in range(DOWNHILL):
            if self._evaluations >= self._most or not self._step_down():
                break
        why = self._wander(seed)
        return Found(self._best, self._loss, self._evaluations, why)

    def _losses(self, candidates: Sequence[Vector]) -> list[float]:
        found = self._spread(self._problem.loss, candidates)
        self._evaluations += len(candidates)
        least = min(range(len(found)), key=found.__getitem__)
        if found[least] < self._loss:
            self._best, self._loss = list(candidates[least]), found[least]
        self._tell(Progress(self._evaluations, self._loss))
        return found

    def _curvature(self) -> tuple[list[list[float]], list[float]]:
        self._evaluations += 2 * len(self._best) + 1
        return curvature(slopes(self._problem, self._best, self._spread), self._best)

    def _step_down(self) -> bool:
        """Whether a step by slopes was worth while."""
        second, first = self._curvature()
        before, x = self._loss, self._best
        step = applied(inverse(second), first)
        step = [max(-LONGEST, min(LONGEST, it)) for it in step]
        self._losses([[a - share * b for a, b in zip(x, step, strict=True)] for share in LENGTHS])
        return self._loss < 0.95 * before

    def _wander(self, seed: int) -> str:
        """CMA-ES around the best, in coordinates in which the loss rises alike; why it ended."""
        second, _ = self._curvature()
        for place in range(len(second)):
            second[place][place] += 2 * RISE  # no constant goes further than a spread
        scale = sqrt(2 * RISE)
        axes = [[scale * it for it in row] for row in root(inverse(second))]
        middle, strategy = self._best, _strategy(len(second), seed)

        def placed(z: Vector) -> list[float]:
            return [a + b for a, b in zip(middle, applied(axes, z), strict=True)]

        mark, since = self._loss, 0
        while self._evaluations < self._most:
            asked = strategy.ask()
            strategy.tell(asked, self._losses([placed(list(map(float, z))) for z in asked]))
            since += 1
            if self._loss < mark * (1 - WORTHWHILE):
                mark, since = self._loss, 0
            if since >= PATIENCE or strategy.stop():
                self._losses([placed(list(map(float, strategy.result.xfavorite)))])
                return "nothing improved any more"
        return "all evaluations were done"


def _strategy(size: int, seed: int):  # type: ignore[no-untyped-def]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package tells of others that it could use
        cma = import_module("cma")
        options = {"seed": seed + 1, "verbose": -9, "verb_log": 0}  # of seed 0 each run would be another
        return cma.CMAEvolutionStrategy([0.0] * size, SIGMA, options)


def _ignore_interrupts() -> None:
    """Ctrl-C is for the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
