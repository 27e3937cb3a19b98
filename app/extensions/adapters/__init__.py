"""Loading and unloading of LoRA adapters at run time, and metrics of adapters in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.extensions import Extension, late_routes
from app.extensions.adapters.settings import AdapterSettings

if TYPE_CHECKING:
    from app.core.base.metrics.instruments import Families
    from app.core.server.http.route import Route
    from config import Settings as AllSettings

OPERATIONS = (
    "POST /v1/load_lora_adapter",
    "POST /v1/unload_lora_adapter",
    "POST /adapters",
    "DELETE /adapters/{adapter_name}",
)


class Adapters(Extension):
    """The routes of vLLM and of SageMaker that load and unload adapters, and their metrics."""

    name = "adapters"
    Settings = AdapterSettings

    @classmethod
    def is_enabled(cls, settings: AllSettings) -> bool:
        """Returns true if adapters may be loaded at run time, or are reported."""
        is_reported = settings.section(AdapterSettings).lora_residency_metrics
        return settings.lora.allow_runtime_lora_updating or is_reported

    def metrics(self) -> Sequence[Families]:
        """Returns the metrics of the adapters in memory, if the settings ask for them."""
        if not self.parts.settings.section(AdapterSettings).lora_residency_metrics:
            return ()
        from app.extensions.adapters.residency import residency_of

        return [residency_of(self.parts).render]

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the routes of adapters, if they may be loaded."""
        if not self.parts.settings.lora.allow_runtime_lora_updating:
            return {}
        return {"lora": late_routes(self._load, *OPERATIONS)}

    def _load(self) -> list[Route]:
        from app.extensions.adapters.routes import adapter_routes
        from app.extensions.adapters.rules import AdapterRules

        parts = self.parts
        rules = parts.pipeline.version.rules(AdapterRules)
        return adapter_routes(parts.body, parts.pipeline.models, parts.settings.lora, rules)
