"""LoRA adapters of a simulated engine: slots, and the cost of steps with adapters."""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from random import Random
from typing import Any

from msgspec import Struct

from config import ConfigError
from workbench.engine.costs import LoraCosts
from workbench.engine.steps import Batch, CostModel, LoRASlots

MAX_ADAPTERS = 10_000
COUNT = re.compile(r"[0-9]{1,9}")
SHARE = re.compile(r"([^=%\s]+)=([0-9]{1,9}(?:\.[0-9]{1,9})?)%")
ROUNDING = 1e-9
"""Largest difference of the sum of all shares from 1."""


class AdapterPlan(Struct, frozen=True, kw_only=True, dict=True):
    """Adapters of a load, and the slots of each engine."""

    shares: tuple[float, ...]
    """Share of the requests for each adapter; other requests use the base model."""
    max_loras: int
    """Adapters of one step, as vLLM's option."""
    max_rank: int
    costs: LoraCosts

    @cached_property
    def _bounds(self) -> list[float]:
        """Upper bound of the draws of each adapter."""
        bounds = list(accumulate(self.shares))
        if abs(bounds[-1] - 1) < ROUNDING:
            bounds[-1] = 1.0
        return bounds

    def draw(self, rng: Random) -> str | None:
        """Draws the adapter of a request; None for the base model."""
        number = bisect(self._bounds, rng.random())
        return str(number) if number < len(self.shares) else None

    def slots(self) -> LoRASlots:
        """Returns the slots of an engine."""
        return LoRASlots(self.max_loras, _is_loaded)


def read_adapters(text: str) -> int | tuple[str, float]:
    """Returns a number of adapters with equal shares, or the name and the share of an adapter.

    Raises:
        ValueError: The text has another form; the message completes "the value ...".
    """
    if COUNT.fullmatch(text) and 1 <= int(text) <= MAX_ADAPTERS:
        return int(text)
    match = SHARE.fullmatch(text)
    if match is None or not 0 < float(match[2]) <= 100:
        raise ValueError(
            f"must be a whole number from 1 to {MAX_ADAPTERS}, or NAME=SHARE%, such as sql=70%"
        )
    return match[1], float(match[2]) / 100


def adapter_shares(parts: Sequence[int | tuple[str, float]]) -> tuple[float, ...]:
    """Returns the share of each adapter.

    Raises:
        ConfigError: The parts do not belong together.
    """
    first = parts[0]
    if isinstance(first, int) and len(parts) == 1:
        return (1 / first,) * first
    named = [part for part in parts if not isinstance(part, int)]
    if len(named) < len(parts):
        raise ConfigError("--loras: must be one number, or NAME=SHARE% for each adapter")
    if len({name for name, _ in named}) < len(named):
        raise ConfigError("--loras: each adapter must have a unique name")
    shares = tuple(share for _, share in named)
    if sum(shares) > 1 + 1e-9:
        raise ConfigError(f"--loras: the shares must not exceed 100%, but are {sum(shares):.4g}")
    return shares


def _is_loaded(adapter: str) -> bool:
    """Returns True: all adapters of the load are registered."""
    return True


class AdapterCosts:
    """Costs of steps whose sequences have adapters."""

    def __init__(self, costs: CostModel, plan: AdapterPlan) -> None:
        self._costs = costs
        self._lora = plan.costs

    def seconds(self, batch: Batch[Any], start_s: float, idle: bool) -> float:
        """Returns the cost of a step; see `StepCost.seconds`."""
        adapters = {sequence.adapter for sequence in batch.decodes}
        adapters.update(sequence.adapter for sequence in batch.admitted)
        adapters.update(sequence.adapter for sequence in batch.prefilled)
        adapters.discard(None)
        seconds = self._costs.seconds(batch, start_s, idle)
        return seconds + self._lora.step_s + len(adapters) * self._lora.adapter_s
