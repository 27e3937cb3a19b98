"""Tokenization by a vLLM server or its render service, instead of by this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.core.extensions import Extension
from app.extensions.render_service.settings import RenderServiceSettings

if TYPE_CHECKING:
    from app.core.text.base import Tokenizer
    from config import Settings as AllSettings


class RenderService(Extension):
    """Provides the tokenizer of a server with a `render-url`."""

    name = "render_service"
    Settings = RenderServiceSettings

    @classmethod
    def is_enabled(cls, settings: AllSettings) -> bool:
        """Returns whether a service is configured; the embedded tokenizer comes first."""
        has_url = bool(settings.section(RenderServiceSettings).render_url)
        return has_url and not settings.tokenizer.force_dummy_tokenizer

    @classmethod
    def prepare(cls, settings: AllSettings) -> None:
        """Checks that the service answers.

        Raises:
            TokenizerError: It does not.
        """
        cls.tokenizer(settings).encode("Ready?")

    @classmethod
    def tokenizer(cls, settings: AllSettings) -> Tokenizer:
        """Returns the tokenizer behind the service."""
        from app.extensions.render_service.tokenizer import RenderTokenizer  # imports urllib3

        section = settings.section(RenderServiceSettings)
        return RenderTokenizer(
            section.render_url or "",
            model=settings.model.model,
            timeout_s=section.render_timeout,
            mm_timeout_s=section.mm_render_timeout,
        )
