"""OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.extensions import Extension
from app.extensions.responses.settings import ResponsesSettings

if TYPE_CHECKING:
    from app.core.base import Bounded
    from app.core.extensions import ServerParts
    from app.core.server.http.route import Route
    from config import Settings as AllSettings


class Responses(Extension):
    """POST /v1/responses, and the stored responses."""

    name = "responses"
    Settings = ResponsesSettings

    def __init__(self, parts: ServerParts) -> None:
        from app.extensions.responses.store import ResponseStore

        super().__init__(parts)
        section = parts.settings.section(ResponsesSettings)
        self._store = ResponseStore(section.enable_responses_store)

    @classmethod
    def is_enabled(cls, settings: AllSettings) -> bool:
        """Returns whether the model generates text."""
        return settings.model.task == "generate"

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the routes of responses."""
        from app.extensions.responses.routes import ResponseHandlers, routes

        handlers_type = ResponseHandlers
        section = self.parts.settings.section(ResponsesSettings)
        if section.responses_dialect == "open":
            from app.extensions.responses.open_dialect import OpenResponseHandlers

            handlers_type = OpenResponseHandlers
        return {"responses": routes(handlers_type(self.parts.pipeline, self._store))}

    def caches(self) -> Mapping[str, Bounded]:
        """Returns the stored responses."""
        return {"responses": self._store}
