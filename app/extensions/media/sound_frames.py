"""Durations of sounds without an index: Ogg, AIFF, and the frames of AMR and AAC.

No sample is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from app.core.base.clock.pause import Slices

OGG = b"OggS"
GRANULE = slice(6, 14)
"""Bytes of a page with the number of samples up to its end."""
MAX_HEAD_BYTES = 64
"""Bytes of the first packet that have its codec and its rate."""
UNSET = 0xFFFF_FFFF_FFFF_FFFF
"""Number on pages on which no packet ends."""
OPUS_RATE = 48_000
FRAME_MS = 20
"""Duration of a frame of AMR."""
AMR_FORMATS = {
    b"#!AMR\n": (8_000, (13, 14, 16, 18, 20, 21, 27, 32, 6, 0, 0, 0, 0, 0, 0, 1)),
    b"#!AMR-WB\n": (16_000, (18, 24, 33, 37, 41, 47, 51, 59, 61, 6, 0, 0, 0, 0, 1, 1)),
}
"""First bytes -> samples per second, and bytes of a frame by its mode; 0 for an unknown one."""
AAC_SAMPLES = 1_024
"""Samples of a frame."""
AAC_RATES = (
    *(96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050),
    *(16_000, 12_000, 11_025, 8_000, 7_350, 0, 0, 0),
)
AAC_HEADER_BYTES = 7
MAX_FRAMES = 30_000
"""Frames that are counted: those of the longest sound that vLLM decodes."""
MAX_PARTS = 1_000
"""Chunks of AIFF, or pages of Ogg, that are visited."""


class FrameCount(NamedTuple):
    """Length of a sound; `samples` is 0 for data without samples."""

    samples: int
    rate: int
    """Samples per second."""


def read_ogg(data: bytes) -> FrameCount | None:
    """Returns the length of a sound in Ogg pages; None for data that are none."""
    start = 27 + data[26] if len(data) > 27 else len(data)
    head = data[start : start + MAX_HEAD_BYTES]
    skipped = 0
    if head.startswith(b"OpusHead"):
        rate = OPUS_RATE
        skipped = int.from_bytes(head[10:12], "little")
    elif head.startswith(b"\x01vorbis"):
        rate = int.from_bytes(head[12:16], "little")
    elif head.startswith(b"\x7fFLAC"):
        rate = int.from_bytes(head[27:30], "big") >> 4
    elif head.startswith(b"Speex   "):
        rate = int.from_bytes(head[36:40], "little")
    else:
        return None
    end = len(data)
    for _ in range(MAX_PARTS):
        end = data.rfind(OGG, 0, end)
        if end <= 0:
            return None
        page = data[end : end + GRANULE.stop]
        granule = int.from_bytes(page[GRANULE], "little")
        if len(page) == GRANULE.stop and granule != UNSET:
            return FrameCount(max(0, granule - skipped), rate)
    return None


def read_aiff(data: bytes) -> FrameCount | None:
    """Returns the length in an AIFF file; None for another file."""
    if data[8:12] not in (b"AIFF", b"AIFC"):
        return None
    place = 12
    for _ in range(MAX_PARTS):
        size = int.from_bytes(data[place + 4 : place + 8], "big")
        body = data[place + 8 : place + 26]
        if data[place : place + 4] == b"COMM" and len(body) == 18:
            exponent = int.from_bytes(body[8:10], "big") - 16_383 - 63
            mantissa = int.from_bytes(body[10:18], "big")
            if not -63 <= exponent <= 0:
                return None
            return FrameCount(int.from_bytes(body[2:6], "big"), mantissa >> -exponent)
        place += 8 + size + size % 2
        if place >= len(data):
            break
    return None


def read_amr(data: bytes) -> FrameCount | None:
    """Returns the length of an AMR file; None for another file. May pause."""
    for beginning, (rate, sizes) in AMR_FORMATS.items():
        if data.startswith(beginning):
            frames = sum(1 for _ in _amr_frames(data, len(beginning), sizes))
            return FrameCount(frames * FRAME_MS * rate // 1_000, rate)
    return None


def _amr_frames(data: bytes, place: int, sizes: tuple[int, ...]) -> Iterator[int]:
    slices = Slices()
    for _ in range(MAX_FRAMES):
        if place >= len(data):
            return
        slices.spend()
        size = sizes[data[place] >> 3 & 15]
        if not size or place + size > len(data):
            return
        yield place
        place += size


def is_aac(data: bytes) -> bool:
    """Returns true for data that begin as frames of AAC do (ADTS)."""
    return len(data) >= AAC_HEADER_BYTES and data[0] == 0xFF and data[1] & 0xF6 == 0xF0


def read_aac(data: bytes) -> FrameCount:
    """Returns the length of frames of AAC. May pause."""
    rate = AAC_RATES[data[2] >> 2 & 15]
    slices = Slices()
    place = 0
    frames = 0
    while is_aac(data[place : place + AAC_HEADER_BYTES]) and frames < MAX_FRAMES:
        slices.spend()
        size = int.from_bytes(data[place + 3 : place + 6], "big") >> 5 & 0x1FFF
        if size < AAC_HEADER_BYTES or place + size > len(data):
            break
        frames += 1
        place += size
    return FrameCount(frames * AAC_SAMPLES, rate)
