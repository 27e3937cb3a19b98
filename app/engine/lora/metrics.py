"""Families of adapters that are in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from app.base.metrics.families import ADAPTERS, EngineFamilies
from app.base.metrics.instruments import Family, Gauge

if TYPE_CHECKING:
    from app.engine.lora.adapters import AdapterMemory


class LoraResidency:
    """Families of the adapters in `memory`; `rank` returns the rank of an adapter."""

    def __init__(
        self,
        memory: AdapterMemory,
        rank: Callable[[str], int],
        server: Mapping[str, str],
        now: Callable[[], float],
    ) -> None:
        """`server` and `now`: see `EngineFamilies`."""
        self._memory, self._rank, self._server = memory, rank, server
        self._ranks: dict[str, int] = {}
        """Ranks of the adapters in memory; each is looked up once."""
        self._families = EngineFamilies(ADAPTERS, server, now)
        gauge, histogram = self._families.gauge, self._families.histogram
        gauge("max_gpu_lora_adapters").value = memory.most_gpu
        self._gpu = gauge("num_gpu_loaded_lora_adapters")
        self._cpu = gauge("num_cpu_loaded_lora_adapters")
        self._loads = histogram("lora_adapter_load_seconds", transition="load")
        self._activations = histogram("lora_adapter_load_seconds", transition="activate")

    def render(self) -> str:
        memory = self._memory
        levels = dict(memory)
        self._ranks = {name: self._ranks.get(name) or self._rank(name) for name in levels}
        self._cpu.set(len(levels))
        self._gpu.set(sum(level == "gpu" for level in levels.values()))
        self._loads.counts[0], self._activations.counts[0] = memory.loads, memory.activations
        help = "1 for an adapter in memory."
        loaded: Family[Gauge] = Family("vllm:lora_adapter_loaded", help, Gauge, "gauge")
        for name, level in levels.items():
            labels = {"adapter_name": name, "level": level, "pinned": "false", "rank": str(self._ranks[name])}
            loaded.labels(**self._server, **labels).set(1)
        return loaded.render() + self._families.render()
