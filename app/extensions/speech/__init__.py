"""Texts of sounds: /v1/audio/transcriptions and /v1/audio/translations, for speech models."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from app.core.extensions import Extension, late_routes
from app.extensions.media.settings import MediaSettings
from config.settings import ModelSettings

if TYPE_CHECKING:
    from random import Random

    from app.core.base.caches import LimitedDict
    from app.core.engine.request import EngineRequest
    from app.core.server.http.route import Route
    from app.extensions.speech.models import SpeechModel
    from config import Settings as AllSettings

PATHS = ("/v1/audio/transcriptions", "/v1/audio/translations")
DEFAULT_MODEL = ModelSettings().model
MAX_LENGTHS_BYTES = 1 << 20


class Speech(Extension):
    """Answers forms with a sound."""

    name = "speech"
    requires = ("media",)

    @classmethod
    def is_enabled(cls, settings: AllSettings) -> bool:
        """Returns true if the model transcribes."""
        return not settings.engine.is_real and _model_of(settings) is not None

    @classmethod
    def paths_of_other_models(cls, settings: AllSettings) -> Collection[str]:
        """Returns the routes that only speech models have."""
        return () if cls.is_enabled(settings) else PATHS

    def reply_length(self) -> Callable[[EngineRequest, Random], int | None]:
        """Returns a function that sets the length of a text by the duration of its sound."""
        return self._length

    def _length(self, request: EngineRequest, rng: Random) -> int | None:
        tokens = self._lengths.get(request.request_id)
        if tokens is None:
            return None
        return max(1, round(tokens * rng.uniform(0.8, 1.2)))

    @cached_property
    def _lengths(self) -> LimitedDict[str, int]:
        from app.core.base.caches import LimitedDict

        return LimitedDict(MAX_LENGTHS_BYTES)

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the routes of transcriptions and translations."""
        return {"speech": late_routes(self._load, *[f"POST {path}" for path in PATHS])}

    def _load(self) -> list[Route]:
        from app.extensions.speech.routes import SpeechHandlers, routes

        settings = self.parts.settings
        model = _model_of(settings)
        assert model is not None
        handlers = SpeechHandlers(
            pipeline=self.parts.pipeline,
            model=model,
            default_seconds=settings.section(MediaSettings).media_duration,
            lengths=self._lengths,
        )
        return routes(handlers)


def _model_of(settings: AllSettings) -> SpeechModel | None:
    model = settings.model
    # The default model is none of the table, which takes milliseconds to read.
    if not model.generates or model.model == DEFAULT_MODEL and model.task == "generate":
        return None
    from app.extensions.speech.models import speech_model

    return speech_model(model.model, model.task)
