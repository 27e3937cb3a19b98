"""Inputs of scores that consist of parts, such as a text and an image."""

from __future__ import annotations

from functools import cached_property

from msgspec import UnsetType

from app.core.server.http.errors import bad_request
from app.extensions.pooling import protocol as wire
from config.settings import ModelSettings

NO_MEDIA = "Scores of images and videos are not simulated: only texts are compared"


class ScoreParts:
    """Reads the parts of inputs as the served model does."""

    def __init__(self, settings: ModelSettings, release: str) -> None:
        """`release` is the version of vLLM whose registry knows the model, such as 0.32.0."""
        self._settings = settings
        self._release = release

    def text_of(self, item: wire.ScoreInput | UnsetType) -> str:
        """Returns the text of an input.

        Raises:
            ApiError: 400 for parts, if the model reads only texts, and for a part that is no text.
        """
        if isinstance(item, str):
            return item
        if self._refusal:
            raise bad_request(self._refusal)
        text = None
        if isinstance(item, wire.MixedInput):
            text = item.text()
        if text is None:
            raise bad_request(NO_MEDIA)
        return text

    @cached_property
    def _refusal(self) -> str:
        """VLLM's error for a model that reads only texts; empty for a multimodal model."""
        from vllm_facts.model_choice import choose_model  # few requests have parts

        model = choose_model(self._settings.model, skips_check=True, version=self._release)
        reads_media = self._settings.multimodal
        if reads_media is None:
            reads_media = model.kind.reads_media
        if reads_media:
            return ""
        architecture = model.facts.architecture or self._settings.model
        return f"MultiModalParam is not supported for {architecture}"
