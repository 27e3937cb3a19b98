"""Cost of an engine's steps, in seconds (step model of docs/fidelity.md)."""

from __future__ import annotations

from math import exp
from typing import Any, Protocol

from app.engine.core.batch import Batch, S
from config.profile import CostConstants

TILE_ROWS = 128
"""Rows of a matrix product that a device computes together."""


class CostModel(Protocol):
    """Cost of steps: `StepCost`, or a plugin's own class."""

    def seconds(self, batch: Batch[Any], start_s: float, idle: bool) -> float:
        """See `StepCost.seconds`. Called once per step, in order; must not wait."""


class StepCost:
    """Computes the cost of consecutive steps. Prefill soon after prefill is slower."""

    def __init__(self, constants: CostConstants) -> None:
        self._constants = constants
        self._gemm: dict[int, float] = {}
        """Cost of the matrix products by tokens of a step; few token counts occur."""
        self._heat = 0.0
        self._heated_s = 0.0

    def seconds(self, batch: Batch[S], start_s: float, idle: bool) -> float:
        """Returns the cost of `batch` from `start_s` on; `idle` if the step before had ended by then."""
        its = self._constants
        gemm = self._gemm.get(batch.tokens)
        if gemm is None:
            gemm = self._gemm[batch.tokens] = self._products(batch.tokens)
        cost = its.base + gemm + its.per_context * batch.context + its.per_sequence * batch.sequences
        if batch.prefills:
            attention = its.per_attention * batch.attention
            cost += attention + its.mixed_context * batch.context
            cost = self._heated(cost, gemm + attention, start_s)
        return cost + its.wake if idle else cost

    def _products(self, tokens: int) -> float:
        """Returns the cost of the matrix products: p-norm of reading weights and computing, plus spill."""
        its = self._constants
        rows = tokens + its.tile * (-tokens % TILE_ROWS)
        reading, computing = its.weights, its.per_token * rows
        if its.expert_weights:
            reading += its.expert_weights * (1 - (1 - its.expert_share) ** tokens)
        most = max(reading, computing)
        if not most:
            return its.spill * tokens * tokens
        norm = most * ((reading / most) ** its.p + (computing / most) ** its.p) ** (1 / its.p)
        return float(norm + its.spill * tokens * tokens)

    def _heated(self, cost: float, computing: float, start_s: float) -> float:
        """Returns the cost of a step with prefill at the device's current heat, and heats the device."""
        tau, slowdown = self._constants.tau, self._constants.slowdown
        if not slowdown or not cost:
            return cost
        cold = 1.0 - self._heat * exp((self._heated_s - start_s) / tau)
        x = cost / tau
        cost += slowdown * computing * (1.0 - cold * (1.0 - exp(-x)) / x)
        self._heat = 1.0 - cold * exp(-cost / tau)
        self._heated_s = start_s + cost
        return cost
