"""LoRA adapters of a simulated engine: slots, and the cost of steps with adapters."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from app.core.engine.batch import Batch, LoRASlots
from app.core.engine.step_cost import CostModel
from app.extensions.lab.costs.lora import LoraCosts


class AdapterPlan(Struct, frozen=True, kw_only=True):
    """Adapters of a load, and the slots of each engine."""

    adapters: int
    """Adapters, one for each request, chosen at random."""
    max_loras: int
    """Adapters of one step, as vLLM's option."""
    max_rank: int
    costs: LoraCosts

    def slots(self) -> LoRASlots:
        """Returns the slots of an engine."""
        return LoRASlots(self.max_loras, _is_loaded)


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
