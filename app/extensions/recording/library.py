"""The index of a recording: finds the answer to a request, and follows a file that grows.

Start with `Recording`. The file at the path is the recording. When it is replaced, moved away or
cut, the index is rebuilt.
"""

import fcntl
import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from copy import copy
from typing import BinaryIO
from weakref import WeakValueDictionary

from gevent.lock import BoundedSemaphore
from msgspec import Struct

from app.core.base.clock.pause import call_long, call_off_hub
from app.extensions.recording.exchange import (
    MAX_HEADER_BYTES,
    Exchange,
    RecordedAnswer,
    RecordingError,
    bytes_of,
    header_of,
    is_cut_header,
    read_exchange,
)
from app.extensions.recording.lines import (
    MAX_EXCHANGES,
    ExchangePosition,
    LineReader,
)
from app.extensions.recording.request_form import RequestForm, SimilarityFeatures, request_form
from app.extensions.recording.shared_file import LOCK_TIMEOUT_S, lock_within
from config.files import open_file

MAX_CLIENTS = 100
COMPARISON_BYTES = 100
"""Comparing two requests takes as long as this number of bytes: about 3 us."""
Entry = tuple[ExchangePosition, RequestForm]
Candidate = tuple[SimilarityFeatures, bytes]
"""Features of a request, and its key."""
log = logging.getLogger(__name__)


class FileTail(Struct, frozen=True):
    """The result of a reading: exchanges with their positions, and the reader after them.

    `file` is the open file; None without one. Another file than before voids all earlier entries.
    """

    reader: LineReader
    file: BinaryIO | None = None
    size: int = 0
    """Size of the file, which is read to its end; 0 where a process held the lock of the file."""
    is_settled: bool = True
    """No process held the lock of the file."""
    entries: Sequence[Entry] = ()
    warnings: Sequence[str] = ()


class Recording:
    """The exchanges of a file.

    Attributes:
        finds_similar: The index also has what is compared to find similar requests.
        by_turn: Requests at the same position of a conversation are equal.
        use_counts: Number of times that each line was the answer.
        clients: The recorded clients, such as `codex_exec/0.169.0`; at most `MAX_CLIENTS`.

    Raises:
        RecordingError: the file cannot be read (`LineReader`).
    """

    def __init__(
        self,
        path: str,
        finds_similar: bool = False,
        grows: bool = False,
        warns: bool = True,
        by_turn: bool = False,
    ) -> None:
        """Reads the file, and keeps it open.

        `grows`: processes append to the file. It may then be missing or empty, and lines that
        cannot be read are skipped. `warns` logs each skipped line.
        """
        self.path = path
        self.finds_similar = finds_similar
        self.by_turn = by_turn
        self.clients: set[str] = set()
        self.use_counts: Counter[int] = Counter()
        self._grows = grows
        self._warns = warns
        self._positions: dict[bytes, list[ExchangePosition]] = {}
        """Positions of exchanges with equal requests, by key."""
        self._next: Counter[bytes] = Counter()
        """Number of answers so far, by key."""
        self._candidates: dict[tuple[bytes, bool], list[Candidate]] = {}
        """Requests to compare with similar ones, by route and `stream`."""
        self._answers: WeakValueDictionary[int, RecordedAnswer] = WeakValueDictionary()
        """Answers being sent, by position; requests with the same answer share one copy."""
        self._reader = LineReader(path)
        self._file: BinaryIO | None = None
        self._size = 0
        self._reading = BoundedSemaphore(1)
        self._lock_timeout_s = LOCK_TIMEOUT_S
        self._last_error = ""
        """The last error of a reading, so that it is logged once."""
        self._read()

    def __len__(self) -> int:
        return sum(map(len, self._positions.values()))

    @property
    def is_full(self) -> bool:
        """True if the file has as many exchanges as are read."""
        return self._reader.number > MAX_EXCHANGES + 1

    def read_on(self) -> None:
        """Adds what any process has appended to the file since the last time.

        A file that cannot be read changes nothing, and is logged once.
        """
        try:
            self._read()
            self._last_error = ""
        except RecordingError as error:
            if self._last_error != str(error):
                self._last_error = str(error)
                self._warn(str(error))

    def reload(self) -> None:
        """Reads the file from its beginning, after it was changed in place."""
        self._reader = LineReader(self.path)
        self.read_on()

    def _read(self) -> None:
        with self._reading:
            tail = call_off_hub(self._read_tail)
            if tail is None:
                return
            if tail.file is None or tail.file is not self._file:
                self._clear()
                self._file = tail.file
            # A lock that was not free is not waited for again: all requests would queue for it.
            self._lock_timeout_s = LOCK_TIMEOUT_S if tail.is_settled else 0.0
            for warning in tail.warnings:
                self._warn(warning)
            for position, form in sorted(tail.entries, key=_arrival_s):
                self._add(position, form)
            self._reader = tail.reader
            self._size = tail.size

    def _read_tail(self) -> FileTail | None:
        """Reads what is new, in a native thread. Returns None if nothing is.

        Raises:
            RecordingError: the file cannot be read.
        """
        with ExitStack() as resources:
            try:
                file = resources.enter_context(open_file(self.path, accepts_pipes=False))
            except OSError as error:
                if self._grows and isinstance(error, FileNotFoundError):
                    return FileTail(LineReader(self.path))
                reason = error.strerror or error
                raise RecordingError(f"{self.path} cannot be read: {reason}") from None
            status = os.fstat(file.fileno())
            indexed_file: BinaryIO = file
            reader = LineReader(self.path, is_tolerant=self._grows)
            if self._continues(status):
                if status.st_size == self._size:
                    return None
                assert self._file is not None
                indexed_file = self._file
                reader = copy(self._reader)
            size, is_settled = self._settled_size(file)
            warnings: list[str] = []
            reader.warn = warnings.append
            entries: list[Entry] = []
            start = os.pread(file.fileno(), MAX_HEADER_BYTES, 0)
            if not self._grows or not is_cut_header(start):
                entries = list(self._entries(reader.read(file, size, is_settled)))
            if indexed_file is file:
                resources.pop_all()  # answers are read from it later
            return FileTail(
                reader,
                indexed_file,
                size=size if is_settled else 0,
                is_settled=is_settled,
                entries=entries,
                warnings=warnings,
            )

    def _continues(self, status: os.stat_result) -> bool:
        """Returns True for the file that was read before, if it was not cut since then."""
        if self._file is None or not 0 < self._reader.start <= status.st_size:
            return False
        return os.path.samestat(os.fstat(self._file.fileno()), status)

    def _settled_size(self, file: BinaryIO) -> tuple[int, bool]:
        """Returns the size of the file, and whether no process was writing a line then.

        Only the size is read under the lock: reading a large file would stop the other processes.
        Bytes before that size do not change any more.
        """
        if not self._grows:
            return os.fstat(file.fileno()).st_size, True
        try:
            is_locked = lock_within(file.fileno(), fcntl.LOCK_SH, self._lock_timeout_s)
        except OSError:  # a file system without locks
            is_locked = False
        size = os.fstat(file.fileno()).st_size
        if is_locked:
            fcntl.flock(file, fcntl.LOCK_UN)
        return size, is_locked

    def _entries(self, exchanges: Iterable[tuple[ExchangePosition, Exchange]]) -> Iterator[Entry]:
        for position, exchange in exchanges:
            request = exchange.request
            form = request_form(
                request.method,
                request.target,
                content_type=header_of(request.headers, "content-type"),
                body=bytes_of(request.body),
                with_features=self.finds_similar,
                by_turn=self.by_turn,
            )
            if len(self.clients) < MAX_CLIENTS:
                self.clients.add(client_of(header_of(request.headers, "user-agent")))
            yield position, form

    def _warn(self, text: str) -> None:
        if self._warns:
            log.warning("%s", text)

    def _clear(self) -> None:
        self._positions.clear()
        self._next.clear()
        self._candidates.clear()
        self._answers.clear()
        self.use_counts.clear()
        self.close()

    def _add(self, position: ExchangePosition, form: RequestForm) -> None:
        if form.features is not None and form.key not in self._positions:
            route = (form.route, form.features.stream)
            self._candidates.setdefault(route, []).append((form.features, form.key))
        self._positions.setdefault(form.key, []).append(position)

    def find(self, form: RequestForm, allow_similar: bool = True) -> bytes | None:
        """Returns the key of equal requests, else of the most similar ones; None without a match.

        `allow_similar` is required for similar ones.
        """
        if form.key in self._positions:
            return form.key
        features = form.features
        if features is None or not allow_similar:
            return None
        candidates = self._candidates.get((form.route, features.stream))
        if candidates is None:
            return None
        return call_long(
            len(candidates) * COMPARISON_BYTES, _most_similar_key, candidates, features
        )

    def next_answer(self, key: bytes) -> RecordedAnswer:
        """Returns the next answer to equal requests, or the last one again.

        Raises:
            RecordingError: the file has changed.
        """
        file = self._file
        positions = self._positions.get(key)
        if not positions or file is None:
            raise RecordingError(f"{self.path} was replaced by a different file")
        position = positions[min(self._next[key], len(positions) - 1)]
        self._next[key] += 1
        self.use_counts[position.number] += 1
        answer = self._answers.get(position.start)
        if answer is None:
            line = os.pread(file.fileno(), position.length, position.start)
            try:
                answer = call_long(position.length, read_exchange, line).answer
            except ValueError:
                raise RecordingError(f"{self.path}: line {position.number} has changed") from None
            if self._file is file:  # not replaced meanwhile
                self._answers[position.start] = answer
        return answer

    def start(self) -> None:
        """Does nothing: the file was read when it was opened."""

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def client_of(user_agent: str) -> str:
    """Returns the product and the version in a User-Agent, such as `codex_exec/0.169.0`."""
    return user_agent.partition(" ")[0]


def _arrival_s(entry: Entry) -> float:
    return entry[0].at_s


def _most_similar_key(candidates: Iterable[Candidate], features: SimilarityFeatures) -> bytes:
    """Returns the key of the candidate that is most similar to `features`; the first of several."""

    def rank(candidate: Candidate) -> tuple[bool, int, float]:
        return candidate[0].rank(features)

    _, key = max(candidates, key=rank)
    return key
