"""Tracks of containers with films and sounds, whatever the format of the file."""

from __future__ import annotations

from msgspec import Struct

VIDEO = b"vide"
SOUND = b"soun"


class MovieTrack(Struct):
    """A track of a film; zero or empty where the file has no value."""

    kind: bytes = b""
    """`VIDEO` or `SOUND`."""
    number: int = 0
    """Number by which other parts of the file name the track."""
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
