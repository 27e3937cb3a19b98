"""Cohere's Chat API, version 2, if it is enabled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.extensions import Extension, late_routes
from app.extensions.cohere.settings import CohereSettings
from app.extensions.scale_out.settings import ScaleOutSettings

if TYPE_CHECKING:
    from app.core.server.http.route import Route
    from config import Settings as AllSettings

CHAT = "POST /cohere/v2/chat"
RENDER = "POST /cohere/v2/chat/render"


class CohereChat(Extension):
    """POST /cohere/v2/chat, and the route that renders its prompt."""

    name = "cohere"
    Settings = CohereSettings
    requires = ("scale_out",)

    @classmethod
    def is_enabled(cls, settings: AllSettings) -> bool:
        """Returns true if the API is enabled and the model generates text."""
        is_on = settings.section(CohereSettings).enable_cohere_api
        return is_on and settings.model.task == "generate"

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the chat, and with scale-out its rendering."""
        operations = [CHAT]
        section = self.parts.settings.section(ScaleOutSettings)
        if section.enable_scale_out or section.tokens_only:
            operations.append(RENDER)
        return {"cohere": late_routes(self._load, *operations)}

    def _load(self) -> list[Route]:
        from app.extensions.cohere.routes import routes

        section = self.parts.settings.section(ScaleOutSettings)
        return routes(self.parts.pipeline, section.enable_scale_out or section.tokens_only)
