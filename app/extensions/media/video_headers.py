"""Sizes and durations of films and sounds, read from the boxes of MP4 files (ISO/IEC 14496-12).

No frame is decoded. Start reading at `read_movie`.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

MAX_BOXES = 1_000
"""Boxes of a file that are visited."""
MAX_SIDE = 1 << 16
MAX_FRAMES = 1 << 24
CONTAINERS = (b"moov", b"trak", b"mdia", b"minf", b"stbl")
"""Boxes that contain boxes, each inside of the one before."""


class MovieTrack(Struct):
    """A track of a film; zero or empty where the file has no value."""

    kind: bytes = b""
    """`vide` or `soun`."""
    width: int = 0
    height: int = 0
    """Pixels."""
    timescale: int = 0
    """Units of the duration in a second."""
    duration: int = 0
    samples: int = 0
    """Frames of a film."""

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return self.duration / self.timescale if self.timescale else 0.0


class Film(Struct, frozen=True):
    """Size and length of a film."""

    width: int
    height: int
    frames: int
    fps: float
    """Frames per second."""


class MovieReader:
    """Collects the tracks of a file, within a limit of boxes."""

    def __init__(self, data: bytes) -> None:
        self.tracks: list[MovieTrack] = []
        self._data = memoryview(data)
        self._boxes = 0

    def read(self, start: int, end: int, depth: int = 0) -> None:
        """Reads the boxes in a range of bytes, and the boxes inside each."""
        for kind, body, box_end in self._boxes_in(start, end):
            if kind == b"trak":
                self.tracks.append(MovieTrack())
            if kind in CONTAINERS and depth < len(CONTAINERS):
                self.read(body, box_end, depth + 1)
            elif self.tracks:
                self._read_field(kind, body, box_end, self.tracks[-1])

    def _boxes_in(self, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
        """Yields the kind, the first byte of the body, and the end of each box."""
        while start + 8 <= end and self._boxes < MAX_BOXES:
            self._boxes += 1
            size = self._number(start, 4)
            kind = bytes(self._data[start + 4 : start + 8])
            body = start + 8
            if size == 1:
                size = self._number(body, 8)
                body += 8
            box_end = end if size == 0 else min(start + size, end)
            if box_end < body:
                return
            yield kind, body, box_end
            start = box_end

    def _read_field(self, kind: bytes, body: int, end: int, track: MovieTrack) -> None:
        is_long = self._number(body, 1) == 1
        if kind == b"hdlr":
            track.kind = bytes(self._data[body + 8 : body + 12])
        elif kind == b"tkhd" and end - body >= 84:
            track.width = self._number(end - 8, 4) >> 16
            track.height = self._number(end - 4, 4) >> 16
        elif kind == b"mdhd":
            place = body + (20 if is_long else 12)
            track.timescale = self._number(place, 4)
            track.duration = self._number(place + 4, 8 if is_long else 4)
        elif kind == b"stsz":
            track.samples = self._number(body + 8, 4)

    def _number(self, place: int, size: int) -> int:
        return int.from_bytes(self._data[place : place + size], "big")


def is_mp4(data: bytes) -> bool:
    """Returns true for data that begin as MP4 and QuickTime files do."""
    return data[4:8] in (b"ftyp", b"moov", b"wide", b"mdat")


def read_tracks(data: bytes) -> list[MovieTrack]:
    """Returns the tracks of an MP4 file."""
    reader = MovieReader(data)
    reader.read(0, len(data))
    return reader.tracks


def read_film(data: bytes) -> Film | None:
    """Returns size and length of the film in an MP4 file; None without one."""
    for track in read_tracks(data):
        if track.kind != b"vide" or not track.seconds:
            continue
        is_sized = 0 < track.width <= MAX_SIDE and 0 < track.height <= MAX_SIDE
        if is_sized and 0 < track.samples <= MAX_FRAMES:
            fps = track.samples / track.seconds
            return Film(track.width, track.height, track.samples, fps)
    return None


def read_sound_seconds(data: bytes) -> float:
    """Returns the duration of the sound in an MP4 file, in seconds; 0 without one."""
    return max((track.seconds for track in read_tracks(data) if track.kind == b"soun"), default=0)
