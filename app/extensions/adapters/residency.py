"""Metrics of the LoRA adapters in memory (`lora-residency-metrics`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from app.core.base.metrics.families import EngineFamilies
from app.core.base.metrics.instruments import Family, Gauge
from app.core.base.metrics.spec import Spec
from app.core.engine.lora import AdapterMemory
from app.core.extensions import ServerParts
from app.extensions.adapters.config_file import read_config
from config.untrusted import decode_untrusted

LOAD_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
"""Bounds of the durations of transitions."""
FAMILIES = (
    Spec("vllm:num_gpu_loaded_lora_adapters", "gauge", "Adapters on the GPU."),
    Spec("vllm:num_cpu_loaded_lora_adapters", "gauge", "Adapters in CPU memory."),
    Spec(
        "vllm:max_gpu_lora_adapters",
        "gauge",
        "Adapters that the GPU has room for (max-loras).",
    ),
    Spec(
        "vllm:lora_adapter_load_seconds",
        "histogram",
        "Duration of a transition: load to CPU memory, activate on the GPU.",
        bounds=LOAD_SECONDS,
        extra={"transition": ("load", "activate")},
    ),
)
"""Families with the places of adapters, for routers (vllm#54830); in vLLM after 0.32."""


def rank_of(path: str) -> int | None:
    """Reads the rank from the adapter's folder; None if there is no rank."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        rank = decode_untrusted(read_config(path))["r"]
        return rank if isinstance(rank, int) else None
    return None


class LoraResidency:
    """Metric families of the adapters in `memory`; `rank` returns the rank of an adapter."""

    def __init__(
        self,
        memory: AdapterMemory,
        rank: Callable[[str], int],
        server: Mapping[str, str],
        now: Callable[[], float],
    ) -> None:
        self._memory = memory
        self._rank = rank
        self._server = server
        self._ranks: dict[str, int] = {}
        """Ranks of the adapters in memory; each is looked up once."""
        self._families = EngineFamilies(FAMILIES, server, now)
        self._families.counter("max_gpu_lora_adapters").value = memory.max_gpu

    def render(self) -> str:
        """Returns the families in the text format of Prometheus."""
        memory = self._memory
        counter = self._families.counter
        levels = dict(memory)
        self._ranks = {name: self._ranks.get(name) or self._rank(name) for name in levels}
        on_gpu = [name for name, level in levels.items() if level == "gpu"]
        counter("num_cpu_loaded_lora_adapters").value = len(levels)
        counter("num_gpu_loaded_lora_adapters").value = len(on_gpu)
        for transition, times in (("load", memory.loads), ("activate", memory.activations)):
            histogram = self._families.histogram("lora_adapter_load_seconds", transition=transition)
            histogram.counts[0] = times
        loaded: Family[Gauge] = Family(
            "vllm:lora_adapter_loaded", "1 for an adapter in memory.", Gauge, kind="gauge"
        )
        for name, level in levels.items():
            labels = {
                "adapter_name": name,
                "level": level,
                "pinned": "false",
                "rank": str(self._ranks[name]),
            }
            loaded.labels(**self._server, **labels).value = 1
        return loaded.render() + self._families.render()


def residency_of(parts: ServerParts) -> LoraResidency:
    """Returns the metrics of the adapters of a server."""
    settings = parts.settings

    def adapter_rank(name: str) -> int:
        return rank_of(parts.adapters.adapter(name).path) or settings.lora.max_lora_rank

    labels = {"model_name": settings.model.served_names[0], "engine": str(parts.rank)}
    return LoraResidency(parts.adapter_memory, adapter_rank, labels, time.time)
