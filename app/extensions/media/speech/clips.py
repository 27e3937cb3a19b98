"""The clips of a sound, which are its prompts.

vLLM splits a long sound where it is quietest in the last second of each clip. Here, no sample is
decoded: each clip ends at the beginning of that second, as a clip of silence does.
"""

from __future__ import annotations

from msgspec import Struct

from app.core.server.http.errors import bad_request
from app.extensions.media.sound_headers import (
    FLAC,
    LongSoundError,
    SoundError,
    is_wave,
    read_sound,
)
from app.extensions.media.sounds import RATE

OVERLAP_SECONDS = 1
"""Seconds at the end of a clip where vLLM looks for a quiet place."""
MAX_FILE_BYTES = 25 << 20
"""Most bytes of a sound: vLLM's default of `VLLM_MAX_AUDIO_CLIP_FILESIZE_MB`."""


class Clip(Struct, frozen=True):
    """A part of a sound."""

    start_s: float
    seconds: float


def samples_of(data: bytes) -> int:
    """Returns the number of samples of a sound at `RATE`. May pause.

    Raises:
        ApiError: Status 400 for data that are no sound, or too long.
    """
    if len(data) > MAX_FILE_BYTES:
        size = len(data) / (1 << 20)
        raise bad_request("Maximum file size exceeded", "audio_filesize_mb", size)
    try:
        return read_sound(data, accepts_empty=True).resampled(RATE)
    except LongSoundError as error:
        raise bad_request(str(error)) from None
    except SoundError as error:
        message = str(error)
        # For all other formats, vLLM uses a second decoder, whose error has another text.
        if is_wave(data) or data.startswith(FLAC):
            message = "Invalid or unsupported audio file."
        raise bad_request(message) from None


def split(samples: int, clip_seconds: int | None) -> list[Clip]:
    """Returns the clips of a sound with so many samples."""
    limit = samples if clip_seconds is None else clip_seconds * RATE
    clips: list[Clip] = []
    start = 0
    while start + limit < samples:
        end = start + limit - OVERLAP_SECONDS * RATE
        clips.append(Clip(start / RATE, (end - start) / RATE))
        start = end
    clips.append(Clip(start / RATE, (samples - start) / RATE))
    return clips
