"""The file of a growing recording. Several processes may append to it, each under its lock (flock).

All methods block: call them in a native thread. No method waits for the lock longer than its
timeout.
"""

import fcntl
import io
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from gevent import monkey

from app.extensions.recording.exchange import (
    FORMAT,
    MAX_HEADER_BYTES,
    VERSION,
    Header,
    create_private,
    is_cut_header,
    line_of,
    read_header,
)

LOCK_TIMEOUT_S = 1.0
"""Longest wait for the lock in seconds. A process holds it for one write, of at most 40 MiB."""
POLL_S = 0.005
"""Seconds between two attempts to lock.

flock itself has no timeout, and a blocked thread cannot be ended.
"""
MAX_REOPENINGS = 3
"""Most times that a file may be replaced while one lock is taken."""


class FileLockedError(Exception):
    """Another process has held the lock for the whole timeout."""


def lock_within(descriptor: int, operation: int, timeout_s: float = LOCK_TIMEOUT_S) -> bool:
    """Locks a file (LOCK_EX or LOCK_SH).

    Returns False if another process holds its lock for `timeout_s`.

    Raises:
        OSError: the file system has no locks.
    """
    sleep = monkey.get_original("time", "sleep")  # gevent's would need a loop in this thread
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                return False
        sleep(POLL_S)


class SharedFile:
    """Appends whole lines to the recording at `path`, and creates it if it is missing or empty.

    A file that is moved away or replaced is noticed under the lock, and its successor is written
    to. `target` and `now` (monotonic seconds) are for the header of a new file.
    """

    def __init__(self, path: Path, target: str, now: Callable[[], float], is_new: bool) -> None:
        """Opens the file.

        Raises:
            FileExistsError: the file must be new (`is_new`), and exists.
            OSError: the file cannot be written.
            RecordingError: the file is not a recording.
        """
        self.path = path
        self.began_s = now()
        """Start of the recording, in monotonic seconds; arrivals of requests count from it."""
        self._target = target
        self._now = now
        self._has_header = False
        self._file = self._open(os.O_EXCL if is_new else 0)
        try:
            with suppress(FileLockedError), self._locked(LOCK_TIMEOUT_S):
                pass  # the header is written now, or RecordingError is raised
        except BaseException:
            self._file.close()
            raise

    def append(self, line: bytes, began_s: float, timeout_s: float = LOCK_TIMEOUT_S) -> bool:
        """Appends the whole line, or nothing.

        Returns False, without writing, if the file has been replaced by one that did not begin at
        `began_s`.

        Raises:
            FileLockedError: another process holds the lock.
            OSError: the file cannot be written.
            RecordingError: the file was replaced by one that is not a recording.
        """
        with self._locked(timeout_s):
            if self.began_s != began_s:
                return False
            end = self._file.seek(0, os.SEEK_END)
            if os.pread(self._file.fileno(), 1, end - 1) != b"\n":
                line = b"\n" + line  # a last line that was cut off must not spoil this one
            try:
                if self._file.write(line) != len(line):
                    raise OSError("there is no space left for the exchange")
            except OSError:
                with suppress(OSError):
                    self._file.truncate(end)
                raise
            return True

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    @contextmanager
    def _locked(self, timeout_s: float) -> Iterator[None]:
        """Holds the lock of the file that has the path now, and that begins with a header."""
        self._lock(timeout_s)
        try:
            size = os.fstat(self._file.fileno()).st_size
            if size == 0 or not self._has_header:
                self._ensure_header(size)
            yield
        finally:
            with suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def _lock(self, timeout_s: float) -> None:
        for _ in range(MAX_REOPENINGS):
            if not lock_within(self._file.fileno(), fcntl.LOCK_EX, timeout_s):
                raise FileLockedError
            if self._has_path():
                return
            replaced = self._file
            self._file = self._open()
            self._has_header = False
            replaced.close()
        raise FileLockedError

    def _has_path(self) -> bool:
        """Returns False when the open file was moved away, deleted or replaced."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return False

    def _open(self, flags: int = 0) -> io.FileIO:
        def opener(path: str, _: int) -> int:
            return create_private(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | flags)

        return io.FileIO(str(self.path), "ab+", opener=opener)

    def _ensure_header(self, size: int) -> None:
        """Writes the header of a new file, or reads the header of another one."""
        start = os.pread(self._file.fileno(), MAX_HEADER_BYTES, 0)
        if size < MAX_HEADER_BYTES and is_cut_header(start):
            self._write_header()
        else:
            header = read_header(str(self.path), io.BytesIO(start))
            self.began_s = self._now()
            with suppress(ValueError):  # an edited moment
                self.began_s -= time.time() - datetime.fromisoformat(header.began).timestamp()
        self._has_header = True

    def _write_header(self) -> None:
        began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        header = Header(FORMAT, VERSION, self._target, began)
        line = line_of(header)
        self._file.truncate(0)
        self.began_s = self._now()
        if self._file.write(line) != len(line):
            self._file.truncate(0)
            raise OSError("there is no space left for the header")
