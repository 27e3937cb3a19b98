"""Tracks in the elements of Matroska and WebM files (RFC 9559).

A file of a live recorder, such as that of a browser, has no duration: its last block has the time.
No frame is decoded. Start reading at `read_matroska`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from app.core.base.clock.pause import Slices
from app.extensions.media.tracks import SOUND, VIDEO, MovieTrack

EBML = b"\x1aE\xdf\xa3"
MAX_ELEMENTS = 4_000
"""Elements that are visited from the beginning of a file, and again of its last cluster."""
CLUSTER_ID = b"\x1fC\xb6u"
MAX_ID_BYTES = 4
NANOSECONDS = 1_000_000_000
DEFAULT_SCALE_NS = 1_000_000
SEGMENT = 0x18538067
INFO = 0x1549A966
SCALE = 0x2AD7B1
DURATION = 0x4489
TRACKS = 0x1654AE6B
TRACK = 0xAE
NUMBER = 0xD7
KIND = 0x83
FRAME_DURATION = 0x23E383
VIDEO_FIELDS = 0xE0
WIDTH = 0xB0
HEIGHT = 0xBA
CLUSTER = 0x1F43B675
TIMESTAMP = 0xE7
SIMPLE_BLOCK = 0xA3
BLOCK_GROUP = 0xA0
BLOCK = 0xA1
CONTAINERS = frozenset((SEGMENT, INFO, TRACKS, TRACK, VIDEO_FIELDS, CLUSTER, BLOCK_GROUP))
"""Elements that contain elements."""
UNKNOWN_LEVELS = frozenset((SEGMENT, CLUSTER))
"""Elements whose size may be unknown: they last until the end of the file."""
MAX_DEPTH = 4
KINDS = {1: VIDEO, 2: SOUND}


class MatroskaReader:
    """Collects the tracks of a file, within a limit of elements. Pauses between them."""

    def __init__(self, data: bytes) -> None:
        self.tracks: list[MovieTrack] = []
        self._content = data
        self._data = memoryview(data)
        self._elements = 0
        self._slices = Slices()
        self._scale_ns = DEFAULT_SCALE_NS
        self._duration = 0.0
        """Duration of the file in units of the scale."""
        self._frame_durations: dict[int, int] = {}
        """Nanoseconds of a frame by track."""
        self._cluster_time = 0
        self._ends: dict[int, int] = {}
        """Time of the last block by track, in units of the scale."""
        self._counts: dict[int, int] = {}
        """Blocks by track."""

    def read(self) -> None:
        """Reads the file; of a long one, the beginning and the last cluster."""
        self._read(0, len(self._data), depth=0)
        if self._elements >= MAX_ELEMENTS:
            self._read_end()
        for track in self.tracks:
            self._finish(track)

    def _read_end(self) -> None:
        """Reads the last cluster; the blocks before it came as often as at the beginning."""
        start = self._content.rfind(CLUSTER_ID)
        if start < 0:
            return
        ends = dict(self._ends)
        counts = dict(self._counts)
        self._elements = 0
        self._read(start, len(self._data), depth=1)
        for number, end in ends.items():
            if end:
                self._counts[number] = counts[number] * self._ends[number] // end

    def _finish(self, track: MovieTrack) -> None:
        track.samples = self._counts.get(track.number, 0)
        frame_ns = self._frame_durations.get(track.number, 0)
        end_ns = self._ends.get(track.number, 0) * self._scale_ns + frame_ns
        if track.kind == VIDEO and frame_ns:
            end_ns = track.samples * frame_ns
        elif self._duration and not frame_ns:
            end_ns = round(self._duration * self._scale_ns)
        elif not frame_ns and track.samples > 1:
            end_ns = end_ns * track.samples // (track.samples - 1)
        track.timescale = NANOSECONDS
        track.duration = end_ns if track.samples else 0

    def _read(self, start: int, end: int, depth: int) -> None:
        for kind, body, element_end in self._elements_in(start, end):
            if kind == TRACK:
                self.tracks.append(MovieTrack())
            if kind in CONTAINERS and depth < MAX_DEPTH:
                self._read(body, element_end, depth + 1)
            else:
                self._read_field(kind, body, element_end)

    def _elements_in(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yields the kind, the first byte of the body, and the end of each element."""
        while start < end and self._elements < MAX_ELEMENTS:
            self._elements += 1
            self._slices.spend()
            kind, place = self._variable(start, keeps_marker=True)
            size, body = self._variable(place, keeps_marker=False)
            if not kind or body > end:
                return
            element_end = min(body + size, end)
            if size == (1 << 7 * (body - place)) - 1:  # an unknown size
                if kind not in UNKNOWN_LEVELS:
                    return
                element_end = end
                if kind == CLUSTER:
                    element_end = body  # its elements follow as if they were beside it
            yield kind, body, element_end
            start = element_end

    def _read_field(self, kind: int, body: int, end: int) -> None:
        if kind in (SIMPLE_BLOCK, BLOCK):
            self._read_block(body)
        elif kind == TIMESTAMP:
            self._cluster_time = self._number(body, end)
        elif kind == SCALE:
            self._scale_ns = self._number(body, end)
        elif kind == DURATION:
            self._duration = self._real(body, end)
        elif self.tracks:
            self._read_track_field(self.tracks[-1], kind, self._number(body, end))

    def _read_block(self, body: int) -> None:
        number, place = self._variable(body, keeps_marker=False)
        offset = int.from_bytes(self._data[place : place + 2], "big", signed=True)
        time = self._cluster_time + offset
        self._ends[number] = max(time, self._ends.get(number, 0))
        self._counts[number] = self._counts.get(number, 0) + 1

    def _read_track_field(self, track: MovieTrack, kind: int, value: int) -> None:
        if kind == NUMBER:
            track.number = value
        elif kind == KIND:
            track.kind = KINDS.get(value, b"")
        elif kind == FRAME_DURATION:
            self._frame_durations[track.number] = value
        elif kind == WIDTH:
            track.width = value
        elif kind == HEIGHT:
            track.height = value

    def _variable(self, place: int, *, keeps_marker: bool) -> tuple[int, int]:
        """Returns a number whose first byte has its length, and the byte behind it."""
        if place >= len(self._data):
            return 0, place + 1
        first = self._data[place]
        size = 9 - first.bit_length()
        number = int.from_bytes(self._data[place : place + size], "big")
        if size > 8 or (keeps_marker and size > MAX_ID_BYTES):
            return 0, len(self._data) + 1
        if not keeps_marker:
            number &= (1 << 7 * size) - 1
        return number, place + size

    def _number(self, body: int, end: int) -> int:
        return int.from_bytes(self._data[body : min(end, body + 8)], "big")

    def _real(self, body: int, end: int) -> float:
        data = self._data[body:end]
        form = {4: ">f", 8: ">d"}.get(len(data))
        if form is None:
            return 0.0
        number: float = struct.unpack(form, data)[0]
        return number if 0 < number < 1e15 else 0.0  # also not a number


def read_matroska(data: bytes) -> list[MovieTrack]:
    """Returns the tracks of a Matroska file. May pause."""
    reader = MatroskaReader(data)
    reader.read()
    return reader.tracks
