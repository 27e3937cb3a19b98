"""Durations of sounds with samples of equal size: AU, CAF and Wave64. No sample is decoded."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator

from app.extensions.media.sound_frames import FrameCount

AU = b".snd"
AU_HEADER_BYTES = 24
AU_SAMPLE_BYTES = {1: 1, 2: 1, 3: 2, 4: 3, 5: 4, 6: 4, 7: 8, 27: 1}
"""Bytes of a sample by the number of its encoding."""
AU_UNKNOWN_SIZE = 0xFFFF_FFFF
CAF = b"caff"
CAF_HEADER_BYTES = 8
CAF_FORMAT_BYTES = 24
"""Bytes of the description of the samples that are read."""
CAF_EDIT_BYTES = 4
"""Bytes of the data before the first sample."""
WAVE64 = b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00"
WAVE64_HEADER_BYTES = 40
WAVE64_KIND_BYTES = 16
WAVE64_CHUNK_BYTES = 24
MAX_CHUNKS = 1_000
"""Chunks of a file that are visited."""
MAX_RATE = 1 << 24
"""Samples per second."""


def read_au(data: bytes) -> FrameCount | None:
    """Returns the length of an AU file; None for a file with an unknown encoding."""
    if len(data) < AU_HEADER_BYTES:
        return None
    start, size, encoding, rate, channels = struct.unpack_from(">5I", data, 4)
    frame_bytes = AU_SAMPLE_BYTES.get(encoding, 0) * channels
    if not frame_bytes:
        return None
    present_bytes = max(0, len(data) - start)
    if size != AU_UNKNOWN_SIZE:
        present_bytes = min(present_bytes, size)
    return FrameCount(present_bytes // frame_bytes, rate)


def read_caf(data: bytes) -> FrameCount | None:
    """Returns the length of a CAF file; None for a file without packets of equal size."""
    rate = 0
    packet_bytes = 0
    packet_frames = 0
    for kind, body, size in _caf_chunks(data):
        if kind == b"desc" and body + CAF_FORMAT_BYTES <= len(data):
            fields = struct.unpack_from(">d4sIII", data, body)
            exact_rate, _, _, packet_bytes, packet_frames = fields
            if math.isfinite(exact_rate) and 0 < exact_rate <= MAX_RATE:
                rate = round(exact_rate)
        elif kind == b"data" and packet_bytes:
            present_bytes = len(data) - body
            if size >= 0:
                present_bytes = min(present_bytes, size)
            packets = max(0, present_bytes - CAF_EDIT_BYTES) // packet_bytes
            return FrameCount(packets * packet_frames, rate)
    return None


def _caf_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yields the kind, the first byte and the size of each chunk; a negative size is unknown."""
    place = CAF_HEADER_BYTES
    for _ in range(MAX_CHUNKS):
        if place + 12 > len(data):
            return
        kind, size = struct.unpack_from(">4sq", data, place)
        place += 12
        yield kind, place, size
        place += max(0, size)


def read_wave64(data: bytes) -> FrameCount | None:
    """Returns the length of a Wave64 file; None for a file without a format."""
    rate = 0
    frame_bytes = 0
    place = WAVE64_HEADER_BYTES
    for _ in range(MAX_CHUNKS):
        if place + WAVE64_CHUNK_BYTES > len(data):
            break
        kind = data[place : place + 4]
        size = int.from_bytes(
            data[place + WAVE64_KIND_BYTES : place + WAVE64_CHUNK_BYTES], "little"
        )
        body = place + WAVE64_CHUNK_BYTES
        if kind == b"fmt " and body + 14 <= len(data):
            rate, _, frame_bytes = struct.unpack_from("<IIH", data, body + 4)
        elif kind == b"data":
            if not frame_bytes:
                return None
            present_bytes = max(0, min(size - WAVE64_CHUNK_BYTES, len(data) - body))
            return FrameCount(present_bytes // frame_bytes, rate)
        place += -(-max(size, WAVE64_CHUNK_BYTES) // 8) * 8
    return None
