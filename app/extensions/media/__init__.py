"""Images, sounds and films: their tokens, limits, errors and hashes, and the texts of speech."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from app.core.base.late_imports import import_modules
from app.core.extensions import Extension, Position, late_routes
from app.extensions.media.settings import MediaSettings
from config.settings import ModelSettings

if TYPE_CHECKING:
    from random import Random

    from app.core.api.chat.media import MediaReader
    from app.core.base.caches import LimitedDict
    from app.core.engine.profile import Profile
    from app.core.engine.request import EngineRequest
    from app.core.engine.scheduling_policy import MakePolicies
    from app.core.engine.step_cost import CostModel
    from app.core.server.http.route import Route
    from app.core.server.middleware.stack import Middleware
    from app.extensions.media.speech.models import SpeechModel
    from config import Settings as AllSettings

SPEECH_PATHS = ("/v1/audio/transcriptions", "/v1/audio/translations")
DEFAULT_MODEL = ModelSettings().model
MAX_LENGTHS_BYTES = 1 << 20
READER_MODULES = (
    "app.extensions.media.grids",
    "app.extensions.media.rules",
    "app.extensions.media.tiles",
    "app.extensions.media.videos",
    "app.extensions.media.video_headers",
    "app.extensions.media.pcm_headers",
    "app.extensions.media.sound_headers",
    "app.extensions.media.facts",
    "app.extensions.media.placing",
    "app.extensions.media.reader",
)
"""Modules of the reader, in the order of their imports: together they take 40 ms."""


class Media(Extension):
    """Reads the media of messages by the rules of the served model.

    A speech model has routes for forms with a sound (`app.extensions.media.speech`).
    """

    name = "media"
    order = -1  # a media header is added outside of the middleware of datasets
    Settings = MediaSettings
    _profile: Profile | None = None
    """Profile of the simulated engine; None where a plugin has the cost of steps."""
    _has_imported: bool = False
    """True after the first message with media."""

    @classmethod
    def prepare(cls, settings: AllSettings) -> None:
        """Checks the arguments of the model's processor, and the room for its largest item.

        Raises:
            ConfigError: The processor cannot use the arguments, or the item does not fit.
        """
        if settings.section(MediaSettings).mm_processor_kwargs is not None:
            from app.extensions.media.reader import model_of, rule_of

            rule_of(model_of(settings).facts, settings.section(MediaSettings))
        if settings.section(MediaSettings).disable_chunked_mm_input:
            from app.extensions.media.encoder import encoder_limits

            encoder_limits(settings)

    def media(self) -> Callable[[], MediaReader]:
        """Returns a function that returns the reader, which is made at its first use."""
        return self._imported_reader

    def step_cost(self, profile: Profile) -> CostModel | None:
        """Takes the profile with the encoder's costs, and leaves the cost of steps as it is."""
        self._profile = profile
        return None

    def middleware(self) -> Mapping[Position, Sequence[Middleware]]:
        """Returns the middleware that reports the sizes of media that are not loaded."""
        if not self._reads_media:
            return {}
        from app.extensions.media.sizes import SizeHeader

        return {Position.INNERMOST: [SizeHeader()]}

    @cached_property
    def _reads_media(self) -> bool:
        """True if the model is known to read media."""
        model = self.parts.settings.model
        if model.multimodal is not None:
            return model.multimodal
        from app.extensions.media.architectures import reads_media

        return reads_media(model.model) is True

    def step_policies(self) -> MakePolicies | None:
        """Returns what makes the encoder budget, for a model with rules for media."""
        settings = self.parts.settings
        if not settings.steps.shared or not self._reads_media:
            return None
        from app.extensions.media.encoder import encoder_limits, encoder_seconds, make_policies
        from app.shared.step_policies.encoder_budget import EncoderSeconds

        encoder = encoder_limits(settings)
        if encoder is None:
            return None
        seconds = EncoderSeconds()
        if self._profile is not None:
            seconds = encoder_seconds(self._profile)
        return make_policies(encoder, seconds)

    def _imported_reader(self) -> MediaReader:
        """Returns the reader. The first call pauses between the imports of its modules."""
        if not self._has_imported:
            import_modules(*READER_MODULES)
            self._has_imported = True
        return self._reader

    @cached_property
    def _reader(self) -> MediaReader:
        from app.extensions.media.reader import Reader, model_of  # few messages have media

        parts = self.parts
        section = parts.settings.section(MediaSettings)
        model = model_of(parts.settings)
        return Reader(model, section, parts.tokenizer, recorder=parts.recorder)

    @classmethod
    def paths_of_other_models(cls, settings: AllSettings) -> Collection[str]:
        """Returns the routes of speech models for other ones."""
        return SPEECH_PATHS if _speech_model(settings) is None else ()

    def reply_length(self) -> Callable[[EngineRequest, Random], int | None] | None:
        """Returns a function that sets the length of a text by the duration of its sound."""
        return None if _speech_model(self.parts.settings) is None else self._text_length

    def _text_length(self, request: EngineRequest, rng: Random) -> int | None:
        tokens = self._text_lengths.get(request.request_id)
        if tokens is None:
            return None
        return max(1, round(tokens * rng.uniform(0.8, 1.2)))

    @cached_property
    def _text_lengths(self) -> LimitedDict[str, int]:
        from app.core.base.caches import LimitedDict

        return LimitedDict(MAX_LENGTHS_BYTES)

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the routes of a speech model."""
        if _speech_model(self.parts.settings) is None:
            return {}
        operations = [f"POST {path}" for path in SPEECH_PATHS]
        return {"speech": late_routes(self._load_speech, *operations)}

    def _load_speech(self) -> list[Route]:
        from app.extensions.media.speech.routes import SpeechHandlers, routes

        settings = self.parts.settings
        model = _speech_model(settings)
        assert model is not None
        handlers = SpeechHandlers(
            pipeline=self.parts.pipeline,
            model=model,
            lengths=self._text_lengths,
        )
        return routes(handlers)


def _speech_model(settings: AllSettings) -> SpeechModel | None:
    """Returns the facts of a simulated model that transcribes; None for another one."""
    model = settings.model
    if not model.generates or settings.engine.is_real:
        return None
    # The default model is none of the table, which takes milliseconds to read.
    if model.model == DEFAULT_MODEL and model.task == "generate":
        return None
    from app.extensions.media.speech.models import speech_model

    return speech_model(model.model, model.task)
