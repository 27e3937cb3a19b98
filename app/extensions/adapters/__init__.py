"""Loading and unloading of LoRA adapters at run time, if it is allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.extensions import Extension
from app.core.server.http.late_routes import late_routes

if TYPE_CHECKING:
    from app.core.server.http.route import Route
    from config import Settings as AllSettings

OPERATIONS = (
    "POST /v1/load_lora_adapter",
    "POST /v1/unload_lora_adapter",
    "POST /adapters",
    "DELETE /adapters/{adapter_name}",
)


class Adapters(Extension):
    """The routes of vLLM and of SageMaker that load and unload adapters."""

    name = "adapters"

    @classmethod
    def is_enabled(cls, settings: AllSettings) -> bool:
        """Returns true if adapters may be loaded at run time."""
        return settings.lora.allow_runtime_lora_updating

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the routes of adapters."""
        return {"lora": late_routes(self._load, *OPERATIONS)}

    def _load(self) -> list[Route]:
        from app.extensions.adapters.routes import adapter_routes

        parts = self.parts
        return adapter_routes(parts.body, parts.pipeline.models, parts.settings.lora)
