"""Index of a recording: finds the exchange for a request, and reads its answer from the file when needed."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import BinaryIO
from weakref import WeakValueDictionary

import msgspec
from msgspec import Raw, Struct

from app.base.clock.pause import Slices, call_off_hub
from app.serving.recording.exchange import (
    MOST_LINE_BYTES,
    Answer,
    Asked,
    Exchange,
    RecordingError,
    bytes_of,
    check_header,
    read_answered,
    read_asked,
    read_exchange,
)
from app.serving.recording.matching import Likeness, RequestForm, form_of

SLICE = 1_500
"""Candidates compared between two pauses: about 4 ms of work."""
QUICK_BYTES = 1 << 16
"""Longest line read in place, in bytes; a thread reads longer lines, because a disk may be slow."""
MOST_EXCHANGES = 100_000
"""Most exchanges in a file; their index takes about 50 MB."""
MOST_LIKENESS_BYTES = 256 << 20
"""Most memory for comparing similar requests, in bytes."""
log = logging.getLogger(__name__)


class Place(Struct, frozen=True):
    """Position of an exchange in the file: first byte, length and line number."""

    start: int
    length: int
    number: int
    at_s: float


class Candidate(Struct, frozen=True):
    """A recorded request to compare with similar requests."""

    likeness: Likeness
    key: bytes


class Recording:
    """The exchanges of the file at `path`. With `alike`, similar requests match, too.

    RecordingError for an invalid file, another version of the format, or an unreadable line.
    A cut-off last line and too long lines are skipped with a warning.
    """

    def __init__(self, path: str, alike: bool = False) -> None:
        self.path = path
        self.alike = alike
        self.given: dict[int, int] = {}
        """Number of answers given, by line number."""
        self._equal: dict[bytes, list[Place]] = {}
        self._next: dict[bytes, int] = {}
        self._likeness_bytes = 0
        self._candidates: dict[bytes, list[Candidate]] = {}
        self._answers: WeakValueDictionary[int, Answer[Raw]] = WeakValueDictionary()
        """Answers being sent, by position; requests with the same answer share one copy."""
        self._slices = Slices(SLICE)
        self._file = opened(path)
        try:
            for place, asked, _ in exchanges(path, self._file):
                self._add(place, asked)
        except RecordingError:
            self.close()
            raise
        for places in self._equal.values():
            places.sort(key=lambda place: place.at_s)

    def __len__(self) -> int:
        return sum(map(len, self._equal.values()))

    def _add(self, place: Place, asked: Asked) -> None:
        request = asked.request
        content_type = next((value for name, value in request.headers if name.lower() == "content-type"), "")
        form = form_of(request.method, request.target, content_type, bytes_of(request.body), self.alike)
        if form.likeness is not None and form.key not in self._equal:
            self._likeness_bytes += form.likeness.size_bytes
            if self._likeness_bytes > MOST_LIKENESS_BYTES:
                raise RecordingError(f"{self.path}: is too large for replay-match nearest")
            self._candidates.setdefault(form.place, []).append(Candidate(form.likeness, form.key))
        self._equal.setdefault(form.key, []).append(place)

    def find(self, form: RequestForm) -> bytes | None:
        """Returns the key of equal requests, else of the most similar ones; None without a match."""
        return form.key if form.key in self._equal else self._most_alike(form)

    def next_answer(self, key: bytes) -> Answer[Raw]:
        """Returns the recorded answers of equal requests in order, then repeats the last.

        RecordingError: the file has changed.
        """
        places, turn = self._equal[key], self._next.get(key, 0)
        self._next[key] = turn + 1
        place = places[min(turn, len(places) - 1)]
        self.given[place.number] = self.given.get(place.number, 0) + 1
        return self._answer(place)

    def _most_alike(self, form: RequestForm) -> bytes | None:
        likeness, best, found = form.likeness, None, None
        if likeness is None:
            return None
        for candidate in self._candidates.get(form.place, ()):
            self._slices.spend()
            if candidate.likeness.stream == likeness.stream:
                rank = candidate.likeness.rank(likeness)
                if best is None or rank > best:
                    best, found = rank, candidate.key
        return found

    def _answer(self, place: Place) -> Answer[Raw]:
        known = self._answers.get(place.start)
        if known is not None:
            return known
        where = self._file.fileno(), place.length, place.start
        try:
            line = os.pread(*where) if place.length <= QUICK_BYTES else call_off_hub(os.pread, *where)
            answer = self._answers[place.start] = read_answered(line).answer
        except msgspec.MsgspecError:
            raise RecordingError(f"{self.path}: line {place.number} has changed") from None
        return answer

    def close(self) -> None:
        self._file.close()


def check(path: str) -> None:
    """Validates the whole file. Raises the errors of `Recording`."""
    with opened(path) as file:
        for place, _, line in exchanges(path, file):
            whole(path, place, line)


def opened(path: str) -> BinaryIO:
    """Opens the file. RecordingError when it cannot be read."""
    try:
        return open(path, "rb")
    except OSError as error:
        raise RecordingError(f"{path}: cannot be read: {error.strerror or error}") from None


def exchanges(path: str, file: BinaryIO) -> Iterator[tuple[Place, Asked, bytes]]:
    """Yields position, request and line of each exchange. Raises the errors of `Recording`."""
    check_header(file.readline(MOST_LINE_BYTES), path)
    number, count = 1, 0
    while True:
        start, number = file.tell(), number + 1
        line = file.readline(MOST_LINE_BYTES)
        if not line:
            return
        if not line.endswith(b"\n"):
            if len(line) < MOST_LINE_BYTES:
                log.warning("%s: line %d is cut off, and left out", path, number)
                return
            _skip_line(file)
            log.warning(
                "%s: line %d is longer than %d MiB, and left out", path, number, MOST_LINE_BYTES >> 20
            )
            continue
        count += 1
        if count > MOST_EXCHANGES:
            raise RecordingError(f"{path}: has more than {MOST_EXCHANGES} exchanges")
        try:
            asked = read_asked(line)
            bytes_of(asked.request.body)
        except (msgspec.MsgspecError, ValueError) as error:
            raise RecordingError(f"{path}: line {number} is no exchange: {error}") from None
        yield Place(start, len(line), number, asked.at_s), asked, line


def whole(path: str, place: Place, line: bytes) -> Exchange:
    """Decodes the exchange of a line. RecordingError for an invalid line."""
    try:
        exchange = read_exchange(line)
        for chunk in exchange.answer.chunks:
            if not isinstance(chunk.data, str):
                bytes_of(chunk.data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise RecordingError(f"{path}: line {place.number} is no exchange: {error}") from None
    return exchange


def recorded(path: str) -> Iterator[tuple[int, Exchange]]:
    """Yields line numbers and exchanges of a recording, in the order of arrival."""
    with opened(path) as file:
        places = sorted((place for place, *_ in exchanges(path, file)), key=lambda place: place.at_s)
        for place in places:
            file.seek(place.start)
            yield place.number, whole(path, place, file.read(place.length))


def _skip_line(file: BinaryIO) -> None:
    while (rest := file.readline(1 << 20)) and not rest.endswith(b"\n"):
        pass
