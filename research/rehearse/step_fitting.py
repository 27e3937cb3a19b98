"""Constants of the step cost, out of steps that were recorded one by one.

Where the engine itself says what each step held and how long it took, nothing has to be guessed
from what clients saw. But for the bend between reading weights and computing rows, the cost is a
sum: what a step holds, times constants that are not negative. So linear least squares find them,
for each bend of a grid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple, TypeAlias

import msgspec
import numpy
import numpy.typing
from msgspec import Struct
from msgspec.structs import replace

from app.core.engine.batch import Batch
from app.core.engine.profile import CostConstants
from app.core.engine.step_cost import StepCost
from config import ConfigError
from research.rehearse.playing import RecordedStep
from workbench.runs.pod import OfflineRequest

FEATURES: Mapping[str, Callable[[RecordedStep], float]] = {
    "base": lambda step: 1.0,
    "spill": lambda step: step.tokens * step.tokens,
    "per_sequence": lambda step: step.sequences,
    "per_context": lambda step: step.context,
    "per_attention": lambda step: step.attention,
    "mixed_context": lambda step: step.context if step.prefills else 0,
}
"""What each constant is multiplied by; `per_token` and `weights` depend on the bend."""
RIDGE = 1e-9
"""Added to squares of length 1, so that columns that are alike can be told apart."""
Array: TypeAlias = "numpy.typing.NDArray[numpy.float64]"
FAR = 3.0
"""Median errors beyond which a step counts less: something else had the machine meanwhile."""
ROUNDS = 4
"""In which steps are weighed by what the round before predicted of them."""
FEWEST = 20
"""Steps that a fit needs."""


class Bend(NamedTuple):
    """How reading the weights gives way to computing rows."""

    knee: float
    """Rows that take as long to compute as the weights to read."""
    p: float

    def rows(self, tokens: Array) -> Array:
        """Returns the rows in whose time the products of so many tokens are done."""
        rows: Array = (self.knee**self.p + tokens**self.p) ** (1 / self.p)
        return rows


KNEES = [2.0 ** (half / 2) for half in range(2, 21)]
BENDS = (Bend(0.0, 6.0), *(Bend(knee, p) for knee in KNEES for p in (2.0, 3.0, 4.0, 8.0)))


class StepFit(Struct, frozen=True):
    """What steps cost, and how far single ones are from it."""

    cost: CostConstants
    steps: int
    median_error: float
    """A share of what the step took."""


def fit_steps(steps: Sequence[RecordedStep]) -> StepFit:
    """The constants that tell each step best, by its relative error, and the sum of all exactly.

    ConfigError when there are too few steps.
    """
    if len(steps) < FEWEST:
        raise ConfigError(
            f"{len(steps)} steps were recorded, and a fit needs {FEWEST}: play more requests"
        )
    cost = _least_squares(steps, [step.seconds**-2 for step in steps])
    for _ in range(ROUNDS - 1):
        cost = _least_squares(steps, _weights(steps, predicted(cost, steps)))
    # Outliers are of no use for the shape, but somebody had to wait for them.
    cost = _scaled(cost, sum(step.seconds for step in steps) / sum(predicted(cost, steps)))
    errors = _errors(steps, predicted(cost, steps))
    return StepFit(cost, len(steps), median(errors))


def predicted(cost: CostConstants, steps: Sequence[RecordedStep]) -> list[float]:
    """Seconds of each step."""
    its = StepCost(cost)
    return [its.seconds(_batch(step), 0.0, False) for step in steps]


def _batch(step: RecordedStep) -> Batch[OfflineRequest]:
    batch: Batch[OfflineRequest] = Batch()
    batch.tokens, batch.sequences, batch.context = step.tokens, step.sequences, step.context
    batch.attention, batch.prefills = step.attention, step.prefills
    return batch


def _errors(steps: Sequence[RecordedStep], seconds: Sequence[float]) -> list[float]:
    return [abs(told / step.seconds - 1) for step, told in zip(steps, seconds, strict=True)]


def _weights(steps: Sequence[RecordedStep], seconds: Sequence[float]) -> list[float]:
    """Of relative errors, and less for those that are far off (Huber)."""
    errors = [abs(step.seconds / told - 1) for step, told in zip(steps, seconds, strict=True)]
    far = FAR * median(errors)
    return [
        min(1.0, far / error if error else 1.0) / (told * told)
        for error, told in zip(errors, seconds, strict=True)
    ]


def _least_squares(steps: Sequence[RecordedStep], weights: Sequence[float]) -> CostConstants:
    """Returns the constants of the bend that leaves the smallest weighted sum of squares."""
    roots = numpy.sqrt(numpy.array(weights))
    took = numpy.array([step.seconds for step in steps]) * roots
    tokens = numpy.array([float(step.tokens) for step in steps])
    known = [
        numpy.array([feature(step) for step in steps]) * roots for feature in FEATURES.values()
    ]
    found: list[tuple[float, Bend, list[float]]] = []
    for bend in BENDS:
        columns = numpy.array([*known, bend.rows(tokens) * roots])
        gram, target = columns @ columns.T, columns @ took
        x = non_negative(gram, target)
        # What is left of the squares, less the sum that is the same for all bends.
        left = x @ (gram @ x - 2 * target)
        found.append((float(left), bend, x.tolist()))
    _, bend, (*values, per_token) = min(found)
    cost = CostConstants(per_token=per_token, weights=per_token * bend.knee, p=bend.p)
    return msgspec.structs.replace(cost, **dict(zip(FEATURES, values, strict=True)))


def non_negative(gram: Array, target: Array) -> Array:
    """Solves least squares without negative numbers (Lawson and Hanson).

    `gram` (n, n) has the products of the columns with each other, `target` (n,) those with what
    they are to sum up to. A column of zeros gets 0.
    """
    norms = numpy.sqrt(gram.diagonal())
    norms[norms == 0] = numpy.inf
    unit, aims = gram / numpy.outer(norms, norms) + RIDGE * numpy.eye(len(norms)), target / norms
    x, chosen = numpy.zeros(len(norms)), numpy.zeros(len(norms), dtype=bool)
    for _ in range(3 * len(norms)):
        slopes = numpy.where(chosen | numpy.isinf(norms), -numpy.inf, aims - unit @ x)
        best = slopes.argmax()
        if slopes[best] <= RIDGE * aims.max():
            break
        chosen[best] = True
        x = _best_of(unit, aims, x, chosen)
        chosen = x > 0
    return x / norms


def _best_of(
    unit: Array, aims: Array, x: Array, chosen: numpy.typing.NDArray[numpy.bool_]
) -> Array:
    """Returns the best solution of `chosen` columns, less those that would become negative."""
    while chosen.any():
        solved = numpy.zeros(len(x))
        solved[chosen] = numpy.linalg.solve(unit[numpy.ix_(chosen, chosen)], aims[chosen])
        below = chosen & (solved <= 0)
        if not below.any():
            return solved
        shares = numpy.where(below, x / numpy.where(below, x - solved, 1.0), numpy.inf)
        gone = shares.argmin()
        x = x + shares[gone] * (solved - x)
        x[gone], chosen[gone] = 0.0, False
    return x


def _scaled(cost: CostConstants, share: float) -> CostConstants:
    names = [*FEATURES, "per_token", "weights"]
    return replace(cost, **{name: share * getattr(cost, name) for name in names})
