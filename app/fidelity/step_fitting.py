"""Constants of the step cost, out of steps that were recorded one by one.

Where the engine itself says what each step held and how long it took, nothing has to be guessed from what
clients saw. But for the bend between reading weights and computing rows, the cost is a sum: what a step
holds, times constants that are not negative. So linear least squares find them, for each bend of a grid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from app.engine.batch import Batch
from app.engine.step_cost import StepCost
from app.fidelity.client import OfflineRequest
from app.fidelity.linear import applied, non_negative
from app.fidelity.playing import RecordedStep
from config import ConfigError
from config.profile import CostConstants

FEATURES: Mapping[str, Callable[[RecordedStep], float]] = {
    "base": lambda step: 1.0,
    "spill": lambda step: step.tokens * step.tokens,
    "per_sequence": lambda step: step.sequences,
    "per_context": lambda step: step.context,
    "per_attention": lambda step: step.attention,
    "mixed_context": lambda step: step.context if step.prefills else 0,
}
"""What each constant is multiplied by; `per_token` and `weights` depend on the bend."""
WIDTH = len(FEATURES) + 1
"""Those, and what steps took."""
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

    def rows(self, tokens: int) -> float:
        """Rows in whose time the products of so many tokens are done."""
        return float((self.knee**self.p + tokens**self.p) ** (1 / self.p))


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
        raise ConfigError(f"{len(steps)} steps were recorded, and a fit needs {FEWEST}: play more requests")
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
    """The constants of the bend that leaves least."""
    columns = [[feature(step) for step in steps] for feature in FEATURES.values()]
    took = [step.seconds for step in steps]
    gram = [[_product(one, other, weights) for other in columns] for one in columns]
    target = [_product(column, took, weights) for column in columns]
    sums = _sums_by_tokens(steps, [*columns, took], weights)
    found: list[tuple[float, Bend, list[float]]] = []
    for bend in BENDS:
        rows = {tokens: bend.rows(tokens) for tokens in sums}
        *edge, aim = (sum(rows[tokens] * of[place] for tokens, of in sums.items()) for place in range(WIDTH))
        square = sum(rows[tokens] ** 2 * of[0] for tokens, of in sums.items())
        whole = [*([*line, end] for line, end in zip(gram, edge, strict=True)), [*edge, square]]
        aims = [*target, aim]
        x = non_negative(whole, aims)
        # What is left of the squares, but for those of what the steps took.
        left = sum(it * (made - 2 * aim) for it, made, aim in zip(x, applied(whole, x), aims, strict=True))
        found.append((left, bend, x))
    _, bend, (*values, per_token) = min(found)
    its = dict(zip(FEATURES, values, strict=True))
    return CostConstants(**its, per_token=per_token, weights=per_token * bend.knee, p=bend.p)


def _sums_by_tokens(
    steps: Sequence[RecordedStep], columns: Sequence[Sequence[float]], weights: Sequence[float]
) -> dict[int, list[float]]:
    """Weighted sums of columns over the steps of as many tokens; the first column is all ones."""
    sums: dict[int, list[float]] = {}
    for place, (step, weight) in enumerate(zip(steps, weights, strict=True)):
        of = sums.setdefault(step.tokens, [0.0] * len(columns))
        for number, column in enumerate(columns):
            of[number] += column[place] * weight
    return sums


def _scaled(cost: CostConstants, share: float) -> CostConstants:
    names = [*FEATURES, "per_token", "weights"]
    return replace(cost, **{name: share * getattr(cost, name) for name in names})


def _product(one: Sequence[float], other: Sequence[float], weights: Sequence[float]) -> float:
    return sum(a * b * weight for a, b, weight in zip(one, other, weights, strict=True))
