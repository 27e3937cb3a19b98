"""Answers of rules with `times`, counted together by the workers of all ranks, without locks.

The arbiter creates a private folder. Each count is a file there, and its size in bytes is the
number of answers. To claim an answer, a worker appends a byte: the system orders the appends of all
processes, so the position after the byte is the number of the answer. A worker that is stopped or
killed at any point delays no other worker, and loses at most the answer that it has claimed.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp

log = logging.getLogger(__name__)
DIGEST_DIGITS = 16
"""Hexadecimal digits of a file's name."""
GROUP_DIGITS = 2
"""Leading digits that the counts of scopes in one folder share."""
MAX_GROUP_FILES = 64
"""Most counts of scopes in one of the 256 folders. Clients can invent scopes."""
KEPT_GENERATIONS = 2
"""Folders that a reload keeps: those of the old workers, which may still answer, and the new."""


class UsesFolders:
    """The folders of an arbiter, one for each set of workers. Its process removes them at exit."""

    def __init__(self) -> None:
        """Raises `OSError`."""
        self._root = Path(mkdtemp(prefix="understudy-uses-"))
        self._generation = 0
        atexit.register(self._remove, os.getpid())

    def new(self) -> Path:
        """Returns an empty folder for new workers. Raises `OSError`."""
        outdated = self._root / str(self._generation - KEPT_GENERATIONS + 1)
        shutil.rmtree(outdated, ignore_errors=True)
        self._generation += 1
        folder = self._root / str(self._generation)
        folder.mkdir()
        return folder

    def _remove(self, owner_pid: int) -> None:
        if os.getpid() == owner_pid:  # forked workers inherit exit hooks
            shutil.rmtree(self._root, ignore_errors=True)


class SharedUses:
    """The counts in a folder, which may be used by several processes at a time.

    `identity` names a rule. `scope` is None for its own count, which is kept until it is removed.
    Each other scope has a separate count. The least recently changed counts of scopes are evicted.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._has_failed = False

    def count(self, identity: str, scope: str | None = None) -> int:
        """Returns the number of answers. A limit may be exceeded by refused claims."""
        try:
            return os.stat(self._path(identity, scope)).st_size
        except OSError:  # usually no answer yet; otherwise `take` logs the error
            return 0

    def take(self, identity: str, limit: int, scope: str | None = None) -> bool:
        """Claims an answer, and returns False if there were `limit` answers, or on an error."""
        path = self._path(identity, scope)
        try:
            number = _append(path, limit)
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                log.error("rules with `times` do not answer, because %s", error)
            return False
        if number == 1 and scope is not None:
            _evict_oldest(os.path.dirname(path), path)
        return number <= limit

    def remove(self, identity: str) -> None:
        """Forgets the answers of a rule, without those in other scopes."""
        with suppress(OSError):
            os.unlink(self._path(identity, None))

    def clear(self) -> None:
        """Forgets all answers."""
        for folder, _, names in os.walk(self._folder):
            for name in names:
                with suppress(OSError):
                    os.unlink(os.path.join(folder, name))

    def _path(self, identity: str, scope: str | None) -> str:
        if scope is None:
            return f"{self._folder}/{_digest(identity)}"
        name = _digest(f"{identity} in {scope}")
        return f"{self._folder}/{name[:GROUP_DIGITS]}/{name}"


def _append(path: str, limit: int) -> int:
    """Appends a byte, and returns the new size; a larger size than `limit` if that is reached.

    Raises `OSError`.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileNotFoundError:
        # The parent of `path` is the folder of all counts, which exists, or a group's folder.
        with suppress(FileExistsError):
            os.mkdir(os.path.dirname(path), 0o700)
        descriptor = os.open(path, flags, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        if size >= limit:
            return size + 1
        os.write(descriptor, b"\0")
        return os.lseek(descriptor, 0, os.SEEK_CUR)
    finally:
        os.close(descriptor)


def _evict_oldest(folder: str, new_path: str) -> None:
    """Deletes the count that was changed longest ago if a folder has too many; not the new one."""
    with suppress(OSError):  # another process may have deleted a file
        files = [entry for entry in os.scandir(folder) if entry.path != new_path]
        if len(files) >= MAX_GROUP_FILES:
            oldest = min(files, key=_changed_ns)
            os.unlink(oldest)


def _changed_ns(file: os.DirEntry[str]) -> int:
    return file.stat().st_mtime_ns


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:DIGEST_DIGITS]
