"""POST /v1/chat/completions/batch: several conversations in one request."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.extensions import Extension, late_routes

if TYPE_CHECKING:
    from app.core.server.http.route import Route
    from config import Settings as AllSettings


class ChatBatch(Extension):
    """Serves batches of conversations."""

    name = "chat_batch"

    @classmethod
    def is_enabled(cls, settings: AllSettings) -> bool:
        """Returns whether the model generates."""
        return settings.model.task == "generate"

    @classmethod
    def paths_of_other_models(cls, settings: AllSettings) -> Collection[str]:
        """Returns its paths for a model that generates no text."""
        return () if cls.is_enabled(settings) else ("/v1/chat/completions/batch",)

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the route."""
        return {"chat_batch": late_routes(self._load, "POST /v1/chat/completions/batch")}

    def _load(self) -> list[Route]:
        from app.extensions.chat_batch.routes import routes

        return routes(self.parts.pipeline)
