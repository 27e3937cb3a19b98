"""Tracks in the boxes of MP4 and QuickTime files (ISO/IEC 14496-12).

Players of live streams write fragments: their `moov` has no durations, and each `moof` has the
durations of its samples. No frame is decoded. Start reading at `read_mp4`.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from app.core.base.clock.pause import Slices
from app.extensions.media.tracks import MovieTrack

MAX_BOXES = 5_000
"""Boxes of a file that are visited: ten minutes of fragments of a second."""
MAX_SAMPLES = 30_000
"""Samples of fragments whose durations are added up."""
CONTAINERS = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"mvex", b"moof", b"traf")
"""Boxes that contain boxes."""
MAX_DEPTH = 5
FIRST_BOXES = (b"ftyp", b"styp", b"moov", b"moof", b"wide", b"mdat", b"free", b"skip")
SAMPLE_DURATION = 0x8
"""Flag of `tfhd`: the box has the duration of a sample."""
RUN_FIELDS = (0x100, 0x200, 0x400, 0x800)
"""Flags of `trun`: each sample has a field; that of the duration is the first."""


class Fragment(Struct):
    """A part of a track in a `moof`."""

    track: MovieTrack
    sample_duration: int
    """Duration of samples that have no duration of their own."""


class MovieReader:
    """Collects the tracks of a file, within a limit of boxes. Pauses between them."""

    def __init__(self, data: bytes) -> None:
        self.tracks: list[MovieTrack] = []
        self._data = memoryview(data)
        self._boxes = 0
        self._samples = 0
        self._slices = Slices()
        self._sample_durations: dict[int, int] = {}
        """Default duration of a sample by the number of its track (`trex`)."""
        self._numbered: dict[int, MovieTrack] = {}
        self._fragment: Fragment | None = None

    def read(self, start: int, end: int, depth: int = 0) -> None:
        """Reads the boxes in a range of bytes, and the boxes inside each."""
        for kind, body, box_end in self._boxes_in(start, end):
            if kind == b"trak":
                self.tracks.append(MovieTrack())
            if kind in CONTAINERS and depth < MAX_DEPTH:
                self.read(body, box_end, depth + 1)
            elif kind in (b"trex", b"tfhd", b"trun"):
                self._read_fragment(kind, body, box_end)
            elif self.tracks:
                self._read_field(kind, body, box_end, self.tracks[-1])

    def _boxes_in(self, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
        """Yields the kind, the first byte of the body, and the end of each box."""
        while start + 8 <= end and self._boxes < MAX_BOXES:
            self._boxes += 1
            self._slices.spend()
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
        if kind == b"hdlr" and not track.kind:  # a second one describes the data
            track.kind = bytes(self._data[body + 8 : body + 12])
        elif kind == b"tkhd" and end - body >= 84:
            number = self._number(body + (20 if is_long else 12), 4)
            self._numbered.setdefault(number, track)
            track.width = self._number(end - 8, 4) >> 16
            track.height = self._number(end - 4, 4) >> 16
        elif kind == b"mdhd":
            place = body + (20 if is_long else 12)
            track.timescale = self._number(place, 4)
            track.duration = self._number(place + 4, 8 if is_long else 4)
        elif kind == b"stsz":
            track.samples = self._number(body + 8, 4)

    def _read_fragment(self, kind: bytes, body: int, end: int) -> None:
        """Adds the duration and the samples of a fragment to its track."""
        flags = self._number(body + 1, 3)
        if kind == b"trex":
            self._sample_durations[self._number(body + 4, 4)] = self._number(body + 12, 4)
        elif kind == b"tfhd":
            number = self._number(body + 4, 4)
            duration = self._sample_durations.get(number, 0)
            if flags & SAMPLE_DURATION:
                place = body + 8
                place += 8 if flags & 1 else 0
                place += 4 if flags & 2 else 0
                duration = self._number(place, 4)
            track = self._numbered.get(number)
            self._fragment = None if track is None else Fragment(track, duration)
        elif self._fragment is not None:
            self._read_run(self._fragment, flags, body=body, end=end)

    def _read_run(self, fragment: Fragment, flags: int, *, body: int, end: int) -> None:
        count = self._number(body + 4, 4)
        track = fragment.track
        track.samples += count
        if not flags & RUN_FIELDS[0]:
            track.duration += count * fragment.sample_duration
            return
        size = sum(4 for flag in RUN_FIELDS if flags & flag)
        place = body + 8
        place += 4 if flags & 1 else 0
        place += 4 if flags & 4 else 0
        count = min(count, max(0, end - place) // size, MAX_SAMPLES - self._samples)
        self._samples += count
        for sample in range(count):
            self._slices.spend()
            track.duration += self._number(place + sample * size, 4)

    def _number(self, place: int, size: int) -> int:
        return int.from_bytes(self._data[place : place + size], "big")


def is_mp4(data: bytes) -> bool:
    """Returns true for data that begin as MP4 and QuickTime files do."""
    return data[4:8] in FIRST_BOXES


def read_mp4(data: bytes) -> list[MovieTrack]:
    """Returns the tracks of an MP4 file. May pause."""
    reader = MovieReader(data)
    reader.read(0, len(data))
    return reader.tracks
