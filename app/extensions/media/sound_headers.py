"""Durations of sounds, read from the headers of their files.

No sample is decoded. Start reading at `read_sound`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from app.extensions.media.pcm_headers import AU, CAF, WAVE64, read_au, read_caf, read_wave64
from app.extensions.media.sound_frames import (
    AMR_FORMATS,
    OGG,
    FrameCount,
    is_aac,
    read_aac,
    read_aiff,
    read_amr,
    read_ogg,
)
from app.extensions.media.tracks import SOUND, MovieTrack
from app.extensions.media.video_headers import is_container, read_tracks

MAX_CHUNKS = 1_000
"""Chunks of a WAV file that are skipped."""
FLAC = b"fLaC"
"""First bytes of a FLAC file."""
FLAC_HEADER_BYTES = 42
MP3_BITRATES = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0)
"""Kilobits per second of layer 3 of MPEG 1, by their index."""
LOW_MP3_BITRATES = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0)
"""The same of MPEG 2 and 2.5."""
MP3_RATES = (44_100, 48_000, 32_000)
"""Samples per second of MPEG 1, by their index; MPEG 2 has half these rates, and 2.5 a quarter."""
XING_BYTES = 12
"""Bytes of a Xing header up to its number of frames."""
READERS: Mapping[bytes, Callable[[bytes], FrameCount | None]] = {
    OGG: read_ogg,
    b"FORM": read_aiff,
    AU: read_au,
    CAF: read_caf,
    WAVE64: read_wave64,
    **dict.fromkeys(AMR_FORMATS, read_amr),
}
"""First bytes of other formats."""
MILLISECONDS = 1_000
"""Rate of the length of a sound in a container."""
MAX_SECONDS = 600
"""Longest sound that vLLM decodes."""
CORRUPTED = (
    "Invalid or corrupted audio data. Ensure the input is a valid audio or video file (e.g. a "
    "complete WAV, MP3, or MP4)."
)


class SoundError(ValueError):
    """The data are no sound that can be read; the message is the one of vLLM."""


class LongSoundError(SoundError):
    """The sound is too long."""


class SoundHeader(Struct, frozen=True):
    """Fields of the header of a sound file."""

    samples: int
    rate: int
    """Samples per second."""

    def resampled(self, rate: int) -> int:
        """Returns the number of samples at another rate."""
        return -(-self.samples * rate // self.rate)


def is_wave(data: bytes) -> bool:
    """Returns true for data that begin as WAV files do."""
    return data.startswith(b"RIFF") and data[8:12] == b"WAVE"


def read_sound(data: bytes, *, accepts_empty: bool = False) -> SoundHeader:
    """Returns the length of a sound. May pause.

    `accepts_empty`: a file without samples has a length of 0.

    Raises:
        SoundError: The data are no sound, or too long a sound.
    """
    if is_container(data):
        seconds = _seconds_of_tracks(read_tracks(data))
        if seconds > MAX_SECONDS:
            raise LongSoundError(_too_long(f"metadata reports {seconds:.1f}s"))
        return SoundHeader(max(1, round(seconds * MILLISECONDS)), MILLISECONDS)
    length = _read_length(data)
    if length is None or not length.rate or not (length.samples or accepts_empty):
        raise SoundError(CORRUPTED)
    seconds = length.samples / length.rate
    if seconds > MAX_SECONDS:
        raise LongSoundError(_too_long(f"file contains {seconds:.1f}s at {length.rate}Hz"))
    return SoundHeader(length.samples, length.rate)


def _seconds_of_tracks(tracks: Sequence[MovieTrack]) -> float:
    """Returns the duration of the longest sound. Raises SoundError if there is none."""
    durations = [track.seconds for track in tracks if track.kind == SOUND]
    if not tracks:
        raise SoundError(CORRUPTED)
    if not durations:
        raise SoundError("No audio stream found.")
    if not max(durations):
        raise SoundError("No audio found in the input.")
    return max(durations)


def _too_long(reason: str) -> str:
    return (
        f"Audio exceeds maximum allowed duration of {MAX_SECONDS}s ({reason}). Set "
        "VLLM_MAX_AUDIO_DECODE_DURATION_S to increase this limit."
    )


def _read_length(data: bytes) -> FrameCount | None:
    """Returns samples and rate of a sound without tracks; None for data that are none."""
    view = memoryview(data)
    if is_wave(data):
        return _wav(view)
    if data.startswith(FLAC):
        return _flac(view)
    for beginning, read in READERS.items():
        if data.startswith(beginning):
            return read(data)
    if is_aac(data):
        return read_aac(data)
    return _mp3(view)


def _wav(data: memoryview) -> FrameCount | None:
    rate = 0
    frame_bytes = 0
    place = 12
    for _ in range(MAX_CHUNKS):
        kind = bytes(data[place : place + 4])
        size = int.from_bytes(data[place + 4 : place + 8], "little")
        place += 8
        if kind == b"fmt ":
            rate = int.from_bytes(data[place + 4 : place + 8], "little")
            frame_bytes = int.from_bytes(data[place + 12 : place + 14], "little")
        elif kind == b"data":
            if not frame_bytes:
                return None
            present_bytes = max(min(size, len(data) - place), 0)
            return FrameCount(present_bytes // frame_bytes, rate)
        place += size + size % 2
        if place >= len(data):
            break
    return None


def _flac(data: memoryview) -> FrameCount | None:
    if len(data) < FLAC_HEADER_BYTES:
        return None
    bits = int.from_bytes(data[18:26], "big")
    return FrameCount(bits & (1 << 36) - 1, bits >> 44)


def _mp3(data: memoryview) -> FrameCount | None:
    start = 0
    if bytes(data[:3]) == b"ID3" and len(data) > 10:
        size = 0
        for byte in data[6:10]:  # seven bits each
            size = size << 7 | byte & 0x7F
        start = 10 + size
    frame = bytes(data[start : start + 4])
    if len(frame) < 4 or frame[0] != 0xFF or frame[1] & 0xE0 != 0xE0:
        return None
    version = frame[1] >> 3 & 3
    rate_index = frame[2] >> 2 & 3
    if version == 1 or frame[1] >> 1 & 3 != 1 or rate_index == 3:
        return None
    is_first = version == 3
    bitrates = MP3_BITRATES if is_first else LOW_MP3_BITRATES
    bitrate = bitrates[frame[2] >> 4] * 1_000
    rate = MP3_RATES[rate_index] >> (0 if is_first else 1 if version == 2 else 2)
    frame_samples = 1_152 if is_first else 576
    body = bytes(data[start : start + 200])
    for tag in (b"Xing", b"Info"):
        place = body.find(tag)
        header = body[place : place + XING_BYTES]
        if place > 0 and len(header) == XING_BYTES and header[7] & 1:
            frames = int.from_bytes(header[8:], "big")
            return FrameCount(frames * frame_samples, rate)
    if not bitrate:
        return None
    return FrameCount((len(data) - start) * 8 * rate // bitrate, rate)
