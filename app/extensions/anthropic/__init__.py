"""Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.base.caches import Memo
from app.core.extensions import Extension, late_routes
from app.extensions.anthropic.settings import AnthropicSettings

if TYPE_CHECKING:
    from app.core.base import Bounded
    from app.core.extensions import ServerParts
    from app.core.server.http.route import Route
    from config import Settings as AllSettings

OPERATIONS = ("POST /v1/messages", "POST /v1/messages/count_tokens")
THREADS_LIMIT_BYTES = 64 << 20
THREADS_SHARE = 1 / 64
"""Part of the memory of a process that threads may take, up to `THREADS_LIMIT_BYTES`."""


class AnthropicMessages(Extension):
    """POST /v1/messages, and the count of its tokens."""

    name = "anthropic"
    Settings = AnthropicSettings

    def __init__(self, parts: ServerParts) -> None:
        super().__init__(parts)
        self._threads = Memo[str, bytes](
            parts.server.memory_share(THREADS_SHARE, THREADS_LIMIT_BYTES)
        )

    @classmethod
    def is_enabled(cls, settings: AllSettings) -> bool:
        """Returns whether the model generates text."""
        return settings.model.task == "generate"

    @classmethod
    def paths_of_other_models(cls, settings: AllSettings) -> Collection[str]:
        """Returns its paths for a model that generates no text."""
        return () if cls.is_enabled(settings) else ("/v1/messages", "/v1/messages/count_tokens")

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the routes of messages."""
        return {"anthropic": late_routes(self._load, *OPERATIONS)}

    def _load(self) -> list[Route]:
        from app.extensions.anthropic.routes import routes

        return routes(self.parts.pipeline, self._threads)

    def caches(self) -> Mapping[str, Bounded]:
        """Returns the conversations that later requests may continue."""
        return {"threads": self._threads}
