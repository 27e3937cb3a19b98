"""OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from app.core.base.late_imports import import_modules
from app.core.extensions import Extension, late_routes
from app.extensions.responses.settings import ResponsesSettings

if TYPE_CHECKING:
    from app.core.base import Bounded
    from app.core.server.http.route import Route
    from app.extensions.responses.store import ResponseStore
    from config import Settings as AllSettings

OPERATIONS = (
    "POST /v1/responses",
    "GET /v1/responses/{response_id}",
    "POST /v1/responses/{response_id}/cancel",
)
MODULES = (
    "app.extensions.responses.protocol",
    "app.extensions.responses.chat",
    "app.extensions.responses.writer",
    "app.extensions.responses.routes",
)
"""Modules of the routes, in the order of their imports: together they take 20 ms."""


class Responses(Extension):
    """POST /v1/responses, and the stored responses."""

    name = "responses"
    Settings = ResponsesSettings

    @classmethod
    def is_enabled(cls, settings: AllSettings) -> bool:
        """Returns whether the model generates text."""
        return settings.model.task == "generate"

    @classmethod
    def paths_of_other_models(cls, settings: AllSettings) -> Collection[str]:
        """Returns its paths for a model that generates no text."""
        return () if cls.is_enabled(settings) else ("/v1/responses",)

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the routes of responses."""
        return {"responses": late_routes(self._load, *OPERATIONS)}

    def _load(self) -> list[Route]:
        import_modules(*MODULES)
        from app.extensions.responses.routes import ResponseHandlers, routes

        handlers_type = ResponseHandlers
        section = self.parts.settings.section(ResponsesSettings)
        if section.responses_dialect == "open":
            from app.extensions.responses.open_dialect import OpenResponseHandlers

            handlers_type = OpenResponseHandlers
        return routes(handlers_type(self.parts.pipeline, self._store))

    @cached_property
    def _store(self) -> ResponseStore:
        from app.extensions.responses.store import MAX_BYTES, MEMORY_SHARE, ResponseStore

        enabled = self.parts.settings.section(ResponsesSettings).enable_responses_store
        max_bytes = self.parts.server.memory_share(MEMORY_SHARE, MAX_BYTES)
        return ResponseStore(enabled, max_bytes=max_bytes)

    def caches(self) -> Mapping[str, Bounded]:
        """Returns the stored responses."""
        return {"responses": self._store}
