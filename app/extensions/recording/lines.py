"""Reads the lines of a recording one by one, and continues where an earlier reading ended.

A crash, a full disk or another program may leave part of a line in the file. Such a line costs
no other line: it is skipped with one warning, and every whole line around it is read.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from operator import attrgetter
from typing import BinaryIO

from msgspec import Struct

from app.extensions.recording.exchange import (
    Exchange,
    RecordingError,
    open_recording,
    read_exchange,
    read_header,
)
from config.lines import MAX_LINE_BYTES
from config.untrusted import is_valid_json

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


class LineReader:
    """Reads the exchanges of a file, and continues where its last reading has ended.

    A line that is not JSON is skipped with a warning. Another format or version always raises
    RecordingError.

    Attributes:
        start: The first byte that was not read.
        number: The number of its line.
        warn: Receives the warnings.
    """

    def __init__(self, path: str, is_tolerant: bool = False) -> None:
        """`path` is for messages.

        `is_tolerant` skips JSON that is not an exchange, lines that are too long, and all lines
        after the first `MAX_EXCHANGES`; without it, they raise RecordingError.
        """
        self.start = 0
        self.number = 1
        self.warn: Callable[[str], None] = log.warning
        self._warned_number = 0
        """Line without an end that a warning has named; 0 without one."""
        self._path = path
        self._is_tolerant = is_tolerant
        self._file: BinaryIO
        self._is_settled = True

    def read(
        self, file: BinaryIO, end: int, is_settled: bool = True
    ) -> Iterator[tuple[ExchangePosition, Exchange]]:
        """Yields the exchanges up to the byte `end` of the open file, with their positions.

        `is_settled`: no process is writing now, so a last line without its newline is complete or
        lost; otherwise it is left for the next reading.
        """
        self._file = file
        self._is_settled = is_settled
        self._go_to_next_line()
        while self.start < end:
            if self.number > MAX_EXCHANGES + 1:
                if self._is_tolerant:
                    return
                raise RecordingError(f"{self._path} exceeds {MAX_EXCHANGES} exchanges")
            start = self.start
            number = self.number
            line = file.readline(MAX_LINE_BYTES)
            exchange = self._exchange_of(line)
            if exchange is not None:
                yield ExchangePosition(start, len(line), number, exchange.at_s), exchange
            elif self.start == start:
                return  # a last line that may still be completed

    def _go_to_next_line(self) -> None:
        """Reads the header, or a newline that an earlier reading's last line did not have yet."""
        if self.start == 0:
            self._file.seek(0)
            read_header(self._path, self._file)
            self._advance(self._file.tell())
        self._file.seek(self.start - 1)
        previous = self._file.read(1)
        if previous != NEWLINE and self._file.read(1) == NEWLINE:
            self.start += 1
        self._file.seek(self.start)

    def _exchange_of(self, line: bytes) -> Exchange | None:
        """Decodes a line, and advances to the next one.

        Returns None for a line that is skipped or not complete.
        """
        has_end = line.endswith(NEWLINE)
        if not has_end and not self._is_settled:
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
        if not line.endswith(NEWLINE):
            self._warn_of_cut_line()
            return
        reason = f"line {self.number} is not an exchange: {error}"
        if not self._is_tolerant and (not line.strip() or is_valid_json(line)):
            raise RecordingError(f"{self._path}: {reason}")
        if self.number != self._warned_number:
            self.warn(f"{self._path}: {reason}; the line is skipped")
        self._advance(len(line))

    def _skip_long_line(self, length: int) -> None:
        """Skips the remainder of a line after its first `length` bytes.

        Raises:
            RecordingError: the line may not be skipped.
        """
        reason = f"line {self.number} is longer than {MAX_LINE_BYTES >> 20} MiB"
        if not self._is_tolerant:
            raise RecordingError(f"{self._path}: {reason}")
        part = b""
        while not part.endswith(NEWLINE):
            part = self._file.readline(MAX_LINE_BYTES)
            length += len(part)
            if not part:
                self._warn_of_cut_line()
                return
        self.warn(f"{self._path}: {reason}; the line is skipped")
        self._advance(length)

    def _warn_of_cut_line(self) -> None:
        """Leaves the line unread, because another process may still complete it."""
        if self.number != self._warned_number:
            self.warn(f"{self._path}: line {self.number} is cut off, and left out")
        self._warned_number = self.number

    def _advance(self, length: int) -> None:
        self.start += length
        self.number += 1


def recorded(path: str) -> Iterator[tuple[int, Exchange]]:
    """Yields each exchange of a file and its line number, in the order of the requests.

    Raises:
        RecordingError: the file cannot be read, or is not a recording.
    """
    with closing(open_recording(path)) as file:
        try:
            end = file.seek(0, 2)
            positions = [position for position, _ in LineReader(path).read(file, end)]
        except OSError as error:
            raise RecordingError(f"{path} cannot be read: {error.strerror or error}") from None
        for position in sorted(positions, key=attrgetter("at_s")):
            file.seek(position.start)
            yield position.number, read_exchange(file.read(position.length))
