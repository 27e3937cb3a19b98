"""Tokenization by a vLLM server or its render service, and a server that is such a service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.extensions import Extension, Position
from app.extensions.render_service.settings import RenderServiceSettings

if TYPE_CHECKING:
    from app.core.server.middleware.stack import Middleware
    from app.core.text.base import Tokenizer
    from config import Settings as AllSettings


class RenderService(Extension):
    """Provides the tokenizer of a server with a `render-url`, or is the service there."""

    name = "render_service"
    order = -2  # refuses requests outside of all other middleware
    Settings = RenderServiceSettings

    @classmethod
    def is_enabled(cls, settings: AllSettings) -> bool:
        """Returns whether a service is configured, or this server is one."""
        return has_service(settings) or settings.section(RenderServiceSettings).render_only

    @classmethod
    def prepare(cls, settings: AllSettings) -> None:
        """Checks that the service answers.

        Raises:
            TokenizerError: It does not.
        """
        tokenizer = cls.tokenizer(settings)
        if tokenizer is not None:
            tokenizer.encode("Ready?")

    @classmethod
    def tokenizer(cls, settings: AllSettings) -> Tokenizer | None:
        """Returns the tokenizer behind the service."""
        if not has_service(settings):
            return None
        from app.extensions.render_service.tokenizer import RenderTokenizer  # imports urllib3

        section = settings.section(RenderServiceSettings)
        return RenderTokenizer(
            section.render_url or "",
            model=settings.model.model,
            timeout_s=section.render_timeout,
            mm_timeout_s=section.mm_render_timeout,
        )

    def middleware(self) -> Mapping[Position, Sequence[Middleware]]:
        """Returns what hides all other routes of a render service."""
        if not self.parts.settings.section(RenderServiceSettings).render_only:
            return {}
        from app.extensions.render_service.render_only import RenderOnly

        return {Position.OUTSIDE: [RenderOnly()]}


def has_service(settings: AllSettings) -> bool:
    """Returns whether a service tokenizes; the embedded tokenizer comes first."""
    url = settings.section(RenderServiceSettings).render_url
    return bool(url) and not settings.tokenizer.force_dummy_tokenizer
