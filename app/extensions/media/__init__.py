"""Images, sounds and films in messages: their tokens, limits, errors and hashes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from app.core.extensions import Extension
from app.extensions.media.settings import MediaSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from app.core.api.chat.media import MediaReader
    from config import Settings as AllSettings


class Media(Extension):
    """Reads the media of messages by the rules of the served model."""

    name = "media"
    Settings = MediaSettings

    @classmethod
    def prepare(cls, settings: AllSettings) -> None:
        """Checks the arguments of the model's processor.

        Raises:
            ConfigError: The processor cannot use them.
        """
        if settings.section(MediaSettings).mm_processor_kwargs is not None:
            from app.extensions.media.reader import model_of, rule_of

            rule_of(model_of(settings).facts, settings.section(MediaSettings))

    def media(self) -> Callable[[], MediaReader]:
        """Returns a function that returns the reader, which is made at its first use."""
        return cache(self._new_reader)

    def _new_reader(self) -> MediaReader:
        from app.extensions.media.reader import Reader, model_of  # few messages have media

        parts = self.parts
        section = parts.settings.section(MediaSettings)
        model = model_of(parts.settings)
        return Reader(model, section, parts.tokenizer, recorder=parts.recorder)
