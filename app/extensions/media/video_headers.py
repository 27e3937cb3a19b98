"""Sizes and durations of films and sounds, from the headers of MP4, Matroska and AVI files.

No frame is decoded. Start reading at `read_film`.
"""

from __future__ import annotations

from app.extensions.media.avi import is_avi, read_avi
from app.extensions.media.matroska import EBML, read_matroska
from app.extensions.media.mp4 import is_mp4, read_mp4
from app.extensions.media.tracks import VIDEO, Film, MovieTrack

MAX_SIDE = 1 << 16
MAX_FRAMES = 1 << 24


class FilmError(ValueError):
    """The data are no film that can be read; the message is the one of vLLM."""


def is_container(data: bytes) -> bool:
    """Returns true for data that begin as files with tracks do."""
    return is_mp4(data) or data.startswith(EBML) or is_avi(data)


def read_tracks(data: bytes) -> list[MovieTrack]:
    """Returns the tracks of a file; none of another format. May pause."""
    if is_mp4(data):
        return read_mp4(data)
    if data.startswith(EBML):
        return read_matroska(data)
    if is_avi(data):
        return read_avi(data)
    return []


def read_film(data: bytes) -> Film | None:
    """Returns size and length of a film; None for another format. May pause.

    Raises:
        FilmError: The file has no frames that can be shown.
    """
    if data and not is_container(data):
        return None
    for track in read_tracks(data):
        if track.kind != VIDEO or not track.seconds:
            continue
        is_sized = 0 < track.width <= MAX_SIDE and 0 < track.height <= MAX_SIDE
        if is_sized and 0 < track.samples <= MAX_FRAMES:
            fps = track.samples / track.seconds
            return Film(track.width, track.height, track.samples, fps)
    raise FilmError("Could not open video stream")
