"""The index of a recording: finds the answer to a request, and follows a file that grows.

The file at the path is the recording. When it is replaced, moved away or cut, the index starts
anew.
"""

import fcntl
import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import BinaryIO
from weakref import WeakValueDictionary

from gevent.lock import BoundedSemaphore
from msgspec import Struct

from app.base.clock.pause import call_long, call_off_hub
from app.serving.recording import exchange as recordings
from app.serving.recording.lines import MOST_EXCHANGES, LineReader, Place, Progress
from app.serving.recording.shared_file import LOCK_LIMIT_S, lock_within

COMPARED_BYTES = 100
"""Comparing two requests takes as long as so many bytes: about 3 us."""
log = logging.getLogger(__name__)


class FileState(Struct, frozen=True):
    """The end of a reading. `identity` is the device and inode of the file; None without a file."""

    identity: tuple[int, int] | None = None
    size: int = 0
    progress: Progress = Progress()


class Tail(Struct, frozen=True):
    """The result of a reading: exchanges with their places, and the state after them."""

    state: FileState
    entries: Sequence[tuple[Place, recordings.RequestForm]] = ()
    is_new_file: bool = False
    """The file is another one than before, or was cut: nothing that was read before counts."""
    file: BinaryIO | None = None
    """The new file, open; None without one, and where the file is the same."""
    is_settled: bool = True
    """No process held the lock of the file."""
    warnings: Sequence[str] = ()


class Recording:
    """The exchanges of a file. RecordingError for a file that cannot be read (`LineReader`).

    `grows`: processes append to the file. It may then be missing or empty, and lines that cannot be
    read are skipped. `warns` logs each skipped line. `alike` also indexes what is compared to find
    similar requests.
    """

    def __init__(
        self,
        path: str,
        alike: bool = False,
        grows: bool = False,
        warns: bool = True,
    ) -> None:
        self.path = path
        self.alike = alike
        self.given: Counter[int] = Counter()
        """Number of times that each line was the answer."""
        self._grows = grows
        self._warns = warns
        self._equal: dict[bytes, list[Place]] = {}
        self._next: Counter[bytes] = Counter()
        self._alike: dict[tuple[bytes, bool], list[tuple[recordings.Likeness, bytes]]] = {}
        """Requests to compare with similar ones and their keys, by route and `stream`."""
        self._answers: WeakValueDictionary[int, recordings.RecordedAnswer] = WeakValueDictionary()
        """Answers being sent, by position; requests with the same answer share one copy."""
        self._state = FileState()
        self._file: BinaryIO | None = None
        self._reading = BoundedSemaphore(1)
        self._lock_limit_s = LOCK_LIMIT_S
        self._complaint = ""
        """The last error of a reading, so that it is logged once."""
        self._read()

    def __len__(self) -> int:
        return sum(map(len, self._equal.values()))

    @property
    def is_full(self) -> bool:
        return self._state.progress.number > MOST_EXCHANGES + 1

    def read_on(self) -> None:
        """Adds what any process has appended to the file since the last time.

        A file that cannot be read changes nothing, and is logged once.
        """
        try:
            self._read()
            self._complaint = ""
        except recordings.RecordingError as error:
            if self._complaint != str(error):
                self._complaint = str(error)
                self._warn(str(error))

    def reload(self) -> None:
        """Reads the file from its beginning, after it was changed in place."""
        self._state = FileState()
        self.read_on()

    def _read(self) -> None:
        with self._reading:
            tail = call_off_hub(self._read_tail)
            if tail is None:
                return
            if tail.is_new_file:
                self._forget()
                self._file = tail.file
            # A lock that was not free is not waited for again: all requests would queue for it.
            self._lock_limit_s = LOCK_LIMIT_S if tail.is_settled else 0.0
            for warning in tail.warnings:
                self._warn(warning)
            for place, form in sorted(tail.entries, key=lambda entry: entry[0].at_s):
                self._add(place, form)
            self._state = tail.state

    def _read_tail(self) -> Tail | None:
        """Reads what is new, in a native thread. None if nothing is. Raises RecordingError."""
        state = self._state
        with ExitStack() as resources:
            try:
                file = resources.enter_context(open(self.path, "rb"))
            except OSError as error:
                if self._grows and isinstance(error, FileNotFoundError):
                    return Tail(FileState(), is_new_file=True)
                reason = error.strerror or error
                raise recordings.RecordingError(f"{self.path}: cannot be read: {reason}") from None
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino)
            is_new_file = state.identity != identity or status.st_size < state.progress.start
            if is_new_file:
                state = FileState(identity)
            elif status.st_size == state.size:
                return None
            size, is_settled = self._settled_size(file)
            warnings: list[str] = []
            reader = LineReader(
                self.path,
                file,
                size,
                state.progress,
                is_tolerant=self._grows,
                is_settled=is_settled,
                warn=warnings.append,
            )
            entries = [] if self._has_no_header_yet(file) else [*self._entries(reader)]
            if is_new_file:
                resources.pop_all()  # answers are read from it later
            return Tail(
                FileState(identity, size if is_settled else 0, reader.progress),
                entries,
                is_new_file=is_new_file,
                file=file if is_new_file else None,
                is_settled=is_settled,
                warnings=warnings,
            )

    def _settled_size(self, file: BinaryIO) -> tuple[int, bool]:
        """Returns the size of the file, and whether no process was writing a line then.

        Only the size is read under the lock: reading a large file would stop the other processes.
        Before that size, nothing changes any more.
        """
        if not self._grows:
            return os.fstat(file.fileno()).st_size, True
        try:
            is_locked = lock_within(file.fileno(), fcntl.LOCK_SH, self._lock_limit_s)
        except OSError:  # a file system without locks
            is_locked = False
        size = os.fstat(file.fileno()).st_size
        if is_locked:
            fcntl.flock(file, fcntl.LOCK_UN)
        return size, is_locked

    def _has_no_header_yet(self, file: BinaryIO) -> bool:
        """Returns True for a file that grows and has no whole header yet."""
        if not self._grows:
            return False
        start = os.pread(file.fileno(), recordings.MOST_HEADER_BYTES, 0)
        return recordings.is_cut_header(start)

    def _entries(self, reader: LineReader) -> Iterator[tuple[Place, recordings.RequestForm]]:
        for place, exchange in reader:
            request = exchange.request
            content_type = recordings.header_of(request.headers, "content-type")
            body = recordings.bytes_of(request.body)
            form = recordings.form_of(
                request.method, request.target, content_type, body, self.alike
            )
            yield place, form

    def _warn(self, text: str) -> None:
        if self._warns:
            log.warning("%s", text)

    def _forget(self) -> None:
        self._equal.clear()
        self._next.clear()
        self._alike.clear()
        self._answers.clear()
        self.given.clear()
        self.close()

    def _add(self, place: Place, form: recordings.RequestForm) -> None:
        if form.likeness is not None and form.key not in self._equal:
            route = (form.place, form.likeness.stream)
            self._alike.setdefault(route, []).append((form.likeness, form.key))
        self._equal.setdefault(form.key, []).append(place)

    def find(self, form: recordings.RequestForm, alike: bool = True) -> bytes | None:
        """Returns the key of equal requests, else of the most similar ones; None without a match."""
        if form.key in self._equal:
            return form.key
        likeness = form.likeness
        if likeness is None or not alike:
            return None
        candidates = self._alike.get((form.place, likeness.stream), ())

        def most_similar() -> tuple[recordings.Likeness, bytes] | None:
            return max(candidates, key=lambda candidate: candidate[0].rank(likeness), default=None)

        nearest = call_long(len(candidates) * COMPARED_BYTES, most_similar)
        return None if nearest is None else nearest[1]

    def next_answer(self, key: bytes) -> recordings.RecordedAnswer:
        """Returns the next answer to equal requests, or the last again.

        RecordingError: a changed file.
        """
        file = self._file
        places = self._equal.get(key)
        if not places or file is None:
            raise recordings.RecordingError(f"{self.path}: was replaced by another file")
        place = places[min(self._next[key], len(places) - 1)]
        self._next[key] += 1
        self.given[place.number] += 1
        answer = self._answers.get(place.start)
        if answer is None:
            line = os.pread(file.fileno(), place.length, place.start)
            try:
                answer = call_long(place.length, recordings.read_exchange, line).answer
            except ValueError:
                raise recordings.RecordingError(
                    f"{self.path}: line {place.number} has changed"
                ) from None
            if self._file is file:  # not replaced meanwhile
                self._answers[place.start] = answer
        return answer

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
