"""The families by which routers see where adapters are (vllm#54830): a vLLM after 0.32 has them.

Nothing is read here, so a transition takes no time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from app.lora.adapters import AdapterMemory
from app.metrics.families import Spec, families_of
from app.metrics.instruments import Family, Gauge, Histogram

TIMES = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
TABLE = (
    Spec("vllm:num_gpu_loaded_lora_adapters", "gauge", "Adapters on the GPU."),
    Spec("vllm:num_cpu_loaded_lora_adapters", "gauge", "Adapters in CPU memory."),
    Spec("vllm:max_gpu_lora_adapters", "gauge", "Adapters that the GPU has room for (max-loras)."),
    Spec(
        "vllm:lora_adapter_load_seconds",
        "histogram",
        "Duration of a transition: load to CPU memory, activate on the GPU.",
        TIMES,
        extra={"transition": ("load", "activate")},
    ),
)


class LoraResidency:
    """Renders the places of adapters in `memory`; `rank` gives the rank of an adapter."""

    def __init__(
        self,
        memory: AdapterMemory,
        rank: Callable[[str], int],
        server: Mapping[str, str],
        now: Callable[[], float],
    ) -> None:
        """`server` and `now` as for `EngineFamilies`."""
        self._memory, self._rank, self._server = memory, rank, server
        self._ranks: dict[str, int] = {}
        """Of the adapters in memory: a rank is looked up once."""
        self._families = families_of(TABLE, server, 0, now)
        gauges = (cast(Gauge, self._families[spec.name].labels(**server)) for spec in TABLE[:3])
        self._gpu, self._cpu, most = gauges
        most.set(memory.most_gpu)
        times = self._families[TABLE[3].name]
        self._loads = cast(Histogram, times.labels(**server, transition="load"))
        self._activations = cast(Histogram, times.labels(**server, transition="activate"))

    def render(self) -> str:
        """The text of the families."""
        memory = self._memory
        levels = dict(memory)
        self._ranks = {name: self._ranks.get(name) or self._rank(name) for name in levels}
        self._cpu.set(len(levels))
        self._gpu.set(sum(level == "gpu" for level in levels.values()))
        self._loads.counts[0], self._activations.counts[0] = memory.loads, memory.activations
        loaded: Family[Gauge] = Family(
            "vllm:lora_adapter_loaded", "1 for an adapter in memory.", Gauge, "gauge"
        )
        for name, level in levels.items():
            labels = {"adapter_name": name, "level": level, "pinned": "false", "rank": str(self._ranks[name])}
            loaded.labels(**self._server, **labels).set(1)
        return loaded.render() + "".join(family.render() for family in self._families.values())
