"""Facts of models that transcribe, by their architecture (`models.json`)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from app.extensions.media.architectures import architecture_of

FILE = Path(__file__).with_name("models.json")
WHISPER = "WhisperForConditionalGeneration"


class SpeechModel(Struct, frozen=True, kw_only=True):
    """Facts about sounds that the models of some architectures share."""

    architectures: tuple[str, ...] = ()
    prompt: Literal["marks", "instruction", "sound"] = "marks"
    """Whisper's marks, a chat with a sound and an instruction, or a chat with the sound alone."""
    clip_seconds: int | None = None
    """Longest sound of a prompt; longer ones are split. None for no limit."""
    has_segments: bool = False
    """`verbose_json` is supported."""
    detects_language: bool = False
    """A request without a language computes one token for it first."""
    counts_frames: bool = False
    """The usage of a stream counts each 10 ms of the sound as a prompt token."""


@cache
def speech_models() -> Mapping[str, SpeechModel]:
    """Returns the facts by architecture."""
    table = msgspec.json.decode(FILE.read_bytes(), type=list[SpeechModel])
    return {name: model for model in table for name in model.architectures}


def speech_model(name: str, task: str) -> SpeechModel | None:
    """Returns the facts of a model; None for one that does not transcribe.

    A model of the `task` transcription whose architecture is unknown is a Whisper.
    """
    model = speech_models().get(architecture_of(name))
    if model is None and task == "transcription":
        return speech_models()[WHISPER]
    return model
