"""Builds the page of metrics: families of the engine, of HTTP and of the extensions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from app.core.base.metrics.instruments import Exposition

if TYPE_CHECKING:
    from app.core.base.metrics.instruments import Families
    from app.core.engine.lora import AdapterMemory
    from app.core.extensions import ServerParts
    from app.core.server.middleware.http_metrics import HttpMetrics


def build_exposition(
    parts: ServerParts, adapter_memory: AdapterMemory, http_metrics: HttpMetrics
) -> Exposition:
    """Returns the page of metrics."""
    families = [*_families(parts, adapter_memory), http_metrics.text]
    return Exposition(families, http_metrics.process_text)


def _families(parts: ServerParts, adapter_memory: AdapterMemory) -> list[Families]:
    """Returns functions that render the metric families of the engine and of extensions."""
    settings = parts.settings
    families: list[Families] = []
    if not settings.metrics.disable_log_stats:
        engine_families: Families = parts.recorder.render
        for extension in parts.extensions:
            engine_families = extension.engine_metrics(engine_families)
        families.append(engine_families)
    if settings.lora.lora_residency_metrics:
        families.append(_lora_residency(parts, adapter_memory))
    for extension in parts.extensions:
        families += extension.metrics()
    return families


def _lora_residency(parts: ServerParts, adapter_memory: AdapterMemory) -> Families:
    from app.core.engine.lora_metrics import LoraResidency, rank_of

    def adapter_rank(name: str) -> int:
        return rank_of(parts.adapters.adapter(name).path) or parts.settings.lora.max_lora_rank

    labels = {"model_name": parts.settings.model.served_names[0], "engine": str(parts.rank)}
    return LoraResidency(adapter_memory, adapter_rank, labels, time.time).render
