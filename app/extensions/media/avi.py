"""Tracks in the headers of AVI files. No frame is decoded."""

from __future__ import annotations

from collections.abc import Iterator

from app.extensions.media.tracks import SOUND, VIDEO, MovieTrack

MAX_CHUNKS = 1_000
"""Chunks of a file that are visited; the headers are at its beginning."""
LIST_BYTES = 12
HEADER_BYTES = 48
"""Bytes of the header of a stream that are read."""
LISTS = (b"hdrl", b"strl")
KINDS = {b"vids": VIDEO, b"auds": SOUND}


def is_avi(data: bytes) -> bool:
    """Returns true for data that begin as AVI files do."""
    return data.startswith(b"RIFF") and data[8:12] == b"AVI "


def read_avi(data: bytes) -> list[MovieTrack]:
    """Returns the tracks of an AVI file."""
    view = memoryview(data)
    tracks: list[MovieTrack] = []
    size = (0, 0)
    for kind, body in _chunks(view):
        if kind == b"avih":
            size = (_number(view, body + 32), _number(view, body + 36))
        elif kind == b"strh" and body + HEADER_BYTES <= len(view):
            track = MovieTrack(kind=KINDS.get(bytes(view[body : body + 4]), b""))
            length = _number(view, body + 32)
            track.duration = length * _number(view, body + 20)
            track.timescale = _number(view, body + 24)
            if track.kind == VIDEO:
                track.width, track.height = size
                track.samples = length
            tracks.append(track)
    return tracks


def _chunks(view: memoryview) -> Iterator[tuple[bytes, int]]:
    """Yields the kind and the first byte of each chunk of the headers."""
    place = LIST_BYTES
    for _ in range(MAX_CHUNKS):
        if place + 8 > len(view):
            return
        kind = bytes(view[place : place + 4])
        size = _number(view, place + 4)
        body = place + 8
        if kind == b"LIST" and bytes(view[body : body + 4]) in LISTS:
            place = body + 4
            continue
        yield kind, body
        place = body + size + size % 2


def _number(view: memoryview, place: int) -> int:
    return int.from_bytes(view[place : place + 4], "little")
