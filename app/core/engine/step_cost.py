"""Cost of an engine's steps in seconds (step model of docs/how-timing-works.md)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from copy import copy
from functools import cache, partial
from math import exp
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from app.core.engine.batch import Batch, S
from app.core.engine.scheduler import PREFILL_SHARE, Scheduler

if TYPE_CHECKING:
    from app.core.engine.profile import CostConstants

TILE_ROWS = 128
"""Rows of a matrix product that a device computes together."""


class CostModel(Protocol):
    """Cost of steps: `StepCost`, or a plugin's own class."""

    def seconds(self, batch: Batch[Any], start_s: float, idle: bool) -> float:
        """See `StepCost.seconds`. Called once per step, in order; must not wait."""


def least_seconds(cost: CostModel) -> float:
    """Returns the seconds that each step takes at least, from `least_s`; 0 if that is unknown."""
    return getattr(cost, "least_s", 0.0)


class StepCost:
    """Computes the cost of consecutive steps. Prefill soon after prefill is slower."""

    def __init__(self, constants: CostConstants) -> None:
        self._constants = constants
        # Few numbers of tokens and of sequences occur.
        self._gemm = cache(self._products)
        self._outputs = cache(partial(interpolate, constants.outputs))
        self._heat = 0.0
        self._heated_s = 0.0

    def of_another_engine(self) -> StepCost:
        """Returns the cost of the steps of an equal engine, which shares the computed products."""
        other = copy(self)
        other._heat = 0.0
        other._heated_s = 0.0
        return other

    @property
    def least_s(self) -> float:
        """See `least_seconds`."""
        constants = self._constants
        for points in (constants.products, constants.outputs):
            if len(points) > 1 and points[-1][1] < points[-2][1]:  # falls beyond the last point
                return 0.0
        if constants.products:
            lowest = min(value for _, value in constants.products)
            return constants.base + constants.products_scale * lowest
        return constants.base + constants.weights

    def seconds(self, batch: Batch[S], start_s: float, idle: bool) -> float:
        """Returns the cost of `batch` from `start_s` on.

        `idle` is true if the step before had ended by then.
        """
        constants = self._constants
        gemm = self._gemm(batch.tokens)
        context: float = batch.context
        pairs = batch.attention
        decodes = batch.sequences - batch.prefills
        if constants.window:
            share = constants.window_share
            window = constants.window
            context -= share * (context - min(context, window * decodes))
            pairs -= share * (pairs - min(pairs, window * (batch.tokens - decodes)))
        cost = (
            constants.base
            + gemm
            + constants.per_context * context
            + constants.per_sequence * batch.sequences
        )
        if constants.outputs:
            cost += self._outputs(batch.sequences)
        if decodes:
            cost += constants.decodes + constants.per_decode * decodes
        if batch.prefills:
            attention = constants.prefills + constants.per_attention * pairs + batch.encoder_s
            cost += attention + constants.mixed_context * context
            cost = self._heated(cost, gemm + attention, start_s)
        if idle:
            cost += constants.wake
        return cost

    def _products(self, tokens: int) -> float:
        """Returns the cost of the matrix products.

        It comes from the table, or is the p-norm of reading weights and computing, plus spill.
        """
        constants = self._constants
        if constants.products:
            return constants.products_scale * interpolate(constants.products, tokens)
        rows = tokens + constants.tile * (-tokens % TILE_ROWS)
        reading = constants.weights
        computing = constants.per_token * rows
        if constants.expert_weights:
            reading += constants.expert_weights * (1 - (1 - constants.expert_share) ** tokens)
        larger = max(reading, computing)
        spill = constants.spill * tokens * tokens
        if not larger:
            return spill
        p = constants.p
        norm = larger * ((reading / larger) ** p + (computing / larger) ** p) ** (1 / p)
        return float(norm + spill)

    def _heated(self, cost: float, computing: float, start_s: float) -> float:
        """Heats the device, and returns the cost of a step with prefill at the present heat."""
        tau = self._constants.tau
        slowdown = self._constants.slowdown
        if not slowdown or not cost:
            return cost
        cold = 1.0 - self._heat * exp((self._heated_s - start_s) / tau)
        x = cost / tau
        cost += slowdown * computing * (1.0 - cold * (1.0 - exp(-x)) / x)
        self._heat = 1.0 - cold * exp(-cost / tau)
        self._heated_s = start_s + cost
        return cost


class PrefillTime:
    """Cuts prompts by time, as the real engine does (setting engine-step-time).

    The real engine measures the costs, which are known here.
    """

    def __init__(self, scheduler: Scheduler[S], constants: CostConstants, target_s: float) -> None:
        self._scheduler = scheduler
        self._target_s = target_s
        self._cost = StepCost(replace(constants, slowdown=0.0))

    def __call__(self) -> int:
        """Returns the maximum prompt tokens of the next step."""
        scheduler = self._scheduler
        max_tokens = scheduler.limits.max_num_batched_tokens
        if not scheduler.prefilling and not scheduler.waiting.members:
            return max_tokens
        count, context = scheduler.decoding
        start = scheduler.prefilling[0].computed if scheduler.prefilling else 0

        def seconds(tokens: int) -> float:
            prefills = int(tokens > 0)
            step: Batch[Any] = Batch(
                tokens=count + tokens,
                sequences=count + prefills,
                context=context,
                attention=tokens * (start + tokens / 2),
                prefills=prefills,
            )
            return self._cost.seconds(step, 0.0, idle=False)

        target_s = max(self._target_s, (1 + PREFILL_SHARE) * seconds(0))
        return 1 + bisect_right(range(2, max_tokens + 1), target_s, key=seconds)


def interpolate(points: Sequence[tuple[int, float]], count: int) -> float:
    """Returns the value at `count`, linear between the points and beyond the last two."""
    if count <= points[0][0] or len(points) == 1:
        return points[0][1]
    right = bisect_left(points, count, key=itemgetter(0))
    right = min(max(1, right), len(points) - 1)
    low, low_value = points[right - 1]
    high, high_value = points[right]
    return low_value + (high_value - low_value) * (count - low) / (high - low)
