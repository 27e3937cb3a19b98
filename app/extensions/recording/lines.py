"""Reads the lines of a recording one by one, and continues where an earlier reading ended.

A crash, a full disk or another program may leave part of a line in the file. Such a line costs
no other line: it is skipped with one warning, and every whole line around it is read.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from operator import attrgetter
from typing import BinaryIO

from msgspec import Struct

from app.core.server.middleware.masking import is_valid_json
from app.extensions.recording.exchange import (
    MAX_LINE_BYTES,
    Exchange,
    RecordingError,
    open_recording,
    read_exchange,
    read_header,
)

MAX_EXCHANGES = 100_000
"""Most exchanges in a file; their index takes about 50 MB."""
NEWLINE = b"\n"
log = logging.getLogger(__name__)


class ExchangePosition(Struct, frozen=True):
    """Position of an exchange in the file: first byte, length in bytes and line number."""

    start: int
    length: int
    number: int
    at_s: float


class Progress(Struct, frozen=True):
    """The end of a reading: the first byte that was not read, and the number of its line."""

    start: int = 0
    number: int = 1
    warned_number: int = 0
    """Line without an end that a warning has named; 0 without one."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How a `LineReader` handles lines that are not exchanges.

    Attributes:
        is_tolerant: Skips JSON that is not an exchange, lines that are too long, and all lines
            after the first `MAX_EXCHANGES`; without it, they raise RecordingError.
        is_settled: No process is writing now, so a last line without its newline is complete or
            lost; otherwise it is left for the next reading.
        warn: Receives the warnings.
    """

    is_tolerant: bool = False
    is_settled: bool = True
    warn: Callable[[str], None] = log.warning


class LineReader:
    """Iterates over the exchanges between `progress` and the byte `end` of an open file.

    A line that is not JSON is skipped with a warning. Another format or version always raises
    RecordingError.
    """

    def __init__(
        self,
        path: str,
        file: BinaryIO,
        end: int,
        progress: Progress | None = None,
        options: ReadOptions | None = None,
    ) -> None:
        """`path` is for messages."""
        self.progress = progress or Progress()
        self._path = path
        self._file = file
        self._end = end
        self._options = options or ReadOptions()

    def __iter__(self) -> Iterator[tuple[ExchangePosition, Exchange]]:
        self._go_to_next_line()
        while self.progress.start < self._end:
            if self.progress.number > MAX_EXCHANGES + 1:
                if self._options.is_tolerant:
                    return
                raise RecordingError(f"{self._path}: has more than {MAX_EXCHANGES} exchanges")
            progress = self.progress
            line = self._file.readline(MAX_LINE_BYTES)
            exchange = self._exchange_of(line)
            if exchange is not None:
                position = ExchangePosition(
                    start=progress.start,
                    length=len(line),
                    number=progress.number,
                    at_s=exchange.at_s,
                )
                yield position, exchange
            elif self.progress.start == progress.start:
                return  # a last line that may still be completed

    def _go_to_next_line(self) -> None:
        """Reads the header, or a newline that an earlier reading's last line did not have yet."""
        if self.progress.start == 0:
            self._file.seek(0)
            read_header(self._path, self._file)
            self.progress = Progress(self._file.tell(), number=2)
        start = self.progress.start
        self._file.seek(start - 1)
        previous = self._file.read(1)
        if previous != NEWLINE and self._file.read(1) == NEWLINE:
            start += 1
        self._file.seek(start)
        self.progress = Progress(start, self.progress.number, self.progress.warned_number)

    def _exchange_of(self, line: bytes) -> Exchange | None:
        """Decodes a line, and advances to the next one.

        Returns None for a line that is skipped or not complete.
        """
        has_end = line.endswith(NEWLINE)
        if not has_end and not self._options.is_settled:
            return None
        if not has_end and len(line) == MAX_LINE_BYTES:
            self._skip_long_line(len(line))
            return None
        try:
            exchange = read_exchange(line)
        except ValueError as error:
            self._skip(line, error)
            return None
        self._advance(len(line))
        return exchange

    def _skip(self, line: bytes, error: ValueError) -> None:
        """Skips a line.

        Raises:
            RecordingError: the line may not be skipped.
        """
        number = self.progress.number
        if not line.endswith(NEWLINE):
            self._warn_of_cut_line()
            return
        reason = f"line {number} is not an exchange: {error}"
        if not self._options.is_tolerant and (not line.strip() or is_valid_json(line)):
            raise RecordingError(f"{self._path}: {reason}")
        if number != self.progress.warned_number:
            self._options.warn(f"{self._path}: {reason}; the line is skipped")
        self._advance(len(line))

    def _skip_long_line(self, length: int) -> None:
        """Skips the remainder of a line after its first `length` bytes.

        Raises:
            RecordingError: the line may not be skipped.
        """
        reason = f"line {self.progress.number} is longer than {MAX_LINE_BYTES >> 20} MiB"
        if not self._options.is_tolerant:
            raise RecordingError(f"{self._path}: {reason}")
        part = b""
        while not part.endswith(NEWLINE):
            part = self._file.readline(MAX_LINE_BYTES)
            length += len(part)
            if not part:
                self._warn_of_cut_line()
                return
        self._options.warn(f"{self._path}: {reason}; the line is skipped")
        self._advance(length)

    def _warn_of_cut_line(self) -> None:
        """Leaves the line unread, because another process may still complete it."""
        progress = self.progress
        if progress.number != progress.warned_number:
            self._options.warn(f"{self._path}: line {progress.number} is cut off, and left out")
        self.progress = Progress(progress.start, progress.number, warned_number=progress.number)

    def _advance(self, length: int) -> None:
        self.progress = Progress(self.progress.start + length, self.progress.number + 1)


def recorded(path: str) -> Iterator[tuple[int, Exchange]]:
    """Yields each exchange of a file and its line number, in the order of the requests."""
    with closing(open_recording(path)) as file:
        end = file.seek(0, 2)
        positions = [position for position, _ in LineReader(path, file, end)]
        for position in sorted(positions, key=attrgetter("at_s")):
            file.seek(position.start)
            yield position.number, read_exchange(file.read(position.length))
