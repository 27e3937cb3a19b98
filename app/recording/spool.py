"""Long answers of a recording, taken apart when it was read: what is due is then read, and not parsed.

To parse a line of megabytes takes tens of milliseconds, in which nobody else would be served. The bytes of a
long answer are therefore put into a temporary file without a name, with a table of its pieces behind them.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

import msgspec
from msgspec import Raw, Struct

from app.clock.pause import call_off_hub
from app.recording.exchange import Answer, Chunk, bytes_of, read_chunk

QUICK_BYTES = 1 << 16
"""What is read or parsed at once."""
ENTRY = struct.Struct("<dQ")
"""Of the table: seconds after the request, and length in bytes."""
ENTRIES = 256
"""Of the table that are read at once."""

Reader = Callable[[int, int], bytes]
"""From where on, and how many bytes."""
Piece = tuple[float, Callable[[], bytes]]
"""The moment of a piece, in seconds after the request, and what reads it: nobody has to hold it before."""


class Pieces(Protocol):
    """The pieces of an answer."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Piece]: ...


class RecordedAnswer(Struct, frozen=True, weakref=True):
    """An answer whose `pieces` are read one by one, each when it is due. The chunks of its head are none."""

    head: Answer[Raw]
    pieces: Pieces


class ParsedPieces:
    """Pieces that are parsed as they are asked for."""

    def __init__(self, chunks: Sequence[Raw]) -> None:
        self._chunks = chunks

    def __len__(self) -> int:
        return len(self._chunks)

    def __iter__(self) -> Iterator[Piece]:
        for raw in self._chunks:
            chunk = read_chunk(raw)
            yield chunk.at_s, partial(bytes_of, chunk.data)


class SpooledAnswer(Struct, frozen=True):
    """Where an answer is in a spool: bytes from `start`, `count` entries at `table`, then `head` bytes."""

    start: int
    table: int
    count: int
    head: int


class Spool:
    """A temporary file of answers, which is made when the first one comes. OSError when there is no room."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(buffering=QUICK_BYTES)  # noqa: SIM115
        self._end = 0

    def add(self, answer: Answer[Chunk]) -> SpooledAnswer:
        """Keep `answer`. ValueError for base64 that is none."""
        start, table = self._end, bytearray()
        for chunk in answer.chunks:
            content = bytes_of(chunk.data)
            table += ENTRY.pack(chunk.at_s, len(content))
            self._end += self._file.write(content)
        head = msgspec.json.encode(msgspec.structs.replace(answer, chunks=()))
        place = SpooledAnswer(start, self._end, len(answer.chunks), len(head))
        self._end += self._file.write(table) + self._file.write(head)
        return place

    def ready(self) -> None:
        """All answers are there."""
        self._file.flush()

    def answer(self, place: SpooledAnswer) -> RecordedAnswer:
        """An answer that is there."""
        head = self.read(place.table + place.count * ENTRY.size, place.head)
        return RecordedAnswer(_read_head(head), SpooledPieces(self.read, place))

    def read(self, start: int, length: int) -> bytes:
        """Bytes of the file; while there are many to be read, others have their turn."""
        if length > QUICK_BYTES:
            return call_off_hub(os.pread, self._file.fileno(), length, start)
        return os.pread(self._file.fileno(), length, start)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


_read_head = msgspec.json.Decoder(Answer[Raw]).decode


class SpooledPieces:
    """Pieces that lie one behind the other, before a table of them."""

    def __init__(self, read: Reader, place: SpooledAnswer) -> None:
        self._read = read
        self._place = place

    def __len__(self) -> int:
        return self._place.count

    def __iter__(self) -> Iterator[Piece]:
        place, start = self._place, self._place.start
        for number in range(0, place.count, ENTRIES):
            size = min(ENTRIES, place.count - number) * ENTRY.size
            for at_s, length in ENTRY.iter_unpack(self._read(place.table + number * ENTRY.size, size)):
                yield at_s, partial(self._read, start, length)
                start += length
