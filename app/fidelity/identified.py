"""Which constants a fit knows, and which it only guessed: from how the figures change around what was found.

Near the best candidate errors are taken as linear in the constants. With what is left of them as their noise,
and the spread of the start as all that was known before, linear regression says how far each constant may be
off; and the same of `base` + `weights`, which recordings tell apart only where steps are of very different
sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, sqrt

from msgspec import Struct

from app.fidelity.fitting import Problem
from app.fidelity.linear import Spread, inverse, slopes

STEP = 0.1
"""By which a constant is moved to see what changes: of the logarithm. Figures are rough, and roughness must
not look as if it told constants apart.
"""
NOISE = 0.008
"""What a figure may be off for reasons that are no constant's, at least."""
KNOWN = 0.03
"""A constant that may be off by this share at most is identified."""
BEFORE = 2.0
"""Spreads that a constant may be from its start, before anything is recorded."""


class Certainty(Struct, frozen=True):
    """A constant, and the share by which it may be off (one standard deviation)."""

    name: str
    start: float
    value: float
    off: float

    @property
    def identified(self) -> bool:
        return self.off <= KNOWN


def certainties(problem: Problem, x: Sequence[float], spread: Spread) -> list[Certainty]:
    """Of all constants, in their order, and of the sum of base and weights."""
    at = slopes(problem, x, spread, STEP)
    noise = max(NOISE, sqrt(sum(error * error for error in at.errors) / len(at.errors)))
    known = at.information([noise**-2] * len(at.errors))
    for place in range(len(x)):
        known[place][place] += BEFORE**-2
    covariance = inverse(known)
    values = problem.candidate(x)
    start = dict(zip((it.name for it in problem.constants), problem.values, strict=True))
    told = [
        Certainty(it.name, start[it.name], values[it.name], it.spread * sqrt(covariance[place][place]))
        for place, it in enumerate(problem.constants)
    ]
    return [*told, *_sum(problem, start, values, covariance)]


def _sum(
    problem: Problem, start: dict[str, float], values: dict[str, float], covariance: list[list[float]]
) -> list[Certainty]:
    """That of base and weights, if both are fitted."""
    names = [it.name for it in problem.constants]
    if not {"base", "weights"} <= set(names):
        return []
    whole = values["base"] + values["weights"]
    shares = {
        names.index(name): problem.constants[names.index(name)].spread * values[name] / whole
        for name in ("base", "weights")
    }
    variance = sum(shares[i] * shares[j] * covariance[i][j] for i in shares for j in shares)
    return [Certainty("base + weights", start["base"] + start["weights"], whole, sqrt(variance))]


def off_as_text(off: float) -> str:
    """A factor once the share is large."""
    return f"+-{off:.1%}" if off < 0.3 else f"x/{exp(off):.1f}"
