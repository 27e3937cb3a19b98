"""Errors as linear functions of the constants, near a candidate; and the algebra for it, of a dozen rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Protocol, TypeAlias, TypeVar

from msgspec import Struct

from app.fidelity.fitting import PULL, SOFT, Problem

STEP = 0.03
"""By which a constant is moved to see what changes: of the logarithm."""

Vector: TypeAlias = Sequence[float]
Matrix: TypeAlias = Sequence[Sequence[float]]
Result = TypeVar("Result")


class Spread(Protocol):
    """A function's results for many candidates, in their order."""

    def __call__(
        self, function: Callable[[Vector], Result], candidates: Sequence[Vector]
    ) -> list[Result]: ...


class Slopes(Struct, frozen=True):
    """Errors at a candidate, and how they change with each number of it."""

    errors: list[float]
    rows: list[list[float]]

    def information(self, weights: Vector) -> list[list[float]]:
        """Products of the rows with each other."""
        return [[sum(map(_product, one, other, weights)) for other in self.rows] for one in self.rows]

    def gradient(self, weights: Vector) -> list[float]:
        """Products of the rows with the errors."""
        return [sum(map(_product, row, self.errors, weights)) for row in self.rows]


def slopes(problem: Problem, x: Vector, spread: Spread, step: float = STEP) -> Slopes:
    """Costs two evaluations for each constant, and one. A longer `step` sees less of roughness."""
    moved = [_moved(problem, x, place, move) for place in range(len(x)) for move in (step, -step)]
    seen = [[error for run in of for error in run] for of in spread(problem.errors, [*moved, list(x)])]
    widths = [2 * step / constant.spread for constant in problem.constants]
    rows = [
        [(up - down) / width for up, down in zip(seen[2 * place], seen[2 * place + 1], strict=True)]
        for place, width in enumerate(widths)
    ]
    return Slopes(seen[-1], rows)


def curvature(at: Slopes, x: Vector) -> tuple[list[list[float]], list[float]]:
    """Second and first derivative of the loss: that of a sum of squares, weighted as the loss does."""
    weights = [1 / sqrt(error * error + SOFT * SOFT) / len(at.errors) for error in at.errors]
    second = at.information(weights)
    for place in range(len(x)):
        second[place][place] += 2 * PULL
    return second, [slope + 2 * PULL * step for slope, step in zip(at.gradient(weights), x, strict=True)]


def inverse(matrix: Matrix) -> list[list[float]]:
    """Of a symmetric positive definite matrix, by Gauss and Jordan."""
    size = len(matrix)
    rows = [[*row, *(float(i == j) for j in range(size))] for i, row in enumerate(matrix)]
    for place in range(size):
        pivot = rows[place][place]
        rows[place] = [value / pivot for value in rows[place]]
        for other in range(size):
            if other != place and rows[other][place]:
                factor = rows[other][place]
                rows[other] = [a - factor * b for a, b in zip(rows[other], rows[place], strict=True)]
    return [row[size:] for row in rows]


def root(matrix: Matrix) -> list[list[float]]:
    """The lower triangle whose product with its transpose is the matrix (Cholesky)."""
    lower: list[list[float]] = []
    for i, row in enumerate(matrix):
        lower.append([])
        for j in range(i + 1):
            rest = row[j] - sum(a * b for a, b in zip(lower[i], lower[j], strict=False))
            lower[i].append(sqrt(rest) if i == j else rest / lower[j][j])
    return lower


def applied(matrix: Matrix, vector: Vector) -> list[float]:
    """Rows may end early, as those of a triangle do."""
    return [sum(a * b for a, b in zip(row, vector, strict=False)) for row in matrix]


def _moved(problem: Problem, x: Vector, place: int, move: float) -> list[float]:
    moved = list(x)
    moved[place] += move / problem.constants[place].spread
    return moved


def _product(a: float, b: float, weight: float) -> float:
    return a * b * weight
