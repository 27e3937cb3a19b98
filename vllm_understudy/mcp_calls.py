"""The file with the calls of MCP servers: one line of JSON for each, appended by several processes.

All methods need the lock of the folder (`ScriptFolder`), so that no other process writes meanwhile.
A process that was killed may still have left half a line, which costs no other line.
"""

from __future__ import annotations

import json
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, Any

NEWLINE = b"\n"


class CallLog:
    """Appends calls, and counts the uses of their rules.

    Each process reads a line once, so a call costs the same after thousands of calls.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        """The file that was read, which stays open so that a new file cannot have its inode."""
        self._end = 0
        """Bytes of whole lines that were read."""
        self._line_count = 0
        self._uses: Counter[int | None] = Counter()

    def append(self, entry: Mapping[str, Any]) -> None:
        """Adds a call in one write, on a new line."""
        line = json.dumps(entry).encode() + NEWLINE
        descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != NEWLINE:
                line = NEWLINE + line
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def uses(self) -> Mapping[int | None, int]:
        """Returns the number of calls by the id of the rule that decided them."""
        self._uses.update(call["rule"] for call in self._new_calls())
        return self._uses

    def clear(self) -> None:
        """Removes all calls. Other processes notice it by the new file."""
        with suppress(FileNotFoundError):
            self._path.unlink()

    def calls(self) -> list[dict[str, Any]]:
        """Returns all calls, from the first to the last."""
        with closing(CallLog(self._path)) as log:
            return [*log._new_calls()]

    def close(self) -> None:
        """Closes the file, and forgets what was read."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._end = 0
        self._line_count = 0
        self._uses.clear()

    def _new_calls(self) -> Iterator[dict[str, Any]]:
        """Yields the calls that were added since the last time; all calls of a new file."""
        file = self._current_file()
        if file is None:
            return
        file.seek(self._end)
        for line in file:
            number = self._line_count + 1
            is_whole = line.endswith(NEWLINE)
            if is_whole:
                self._end += len(line)
                self._line_count = number
            call = _call_of(line)
            if call is not None and is_whole:
                yield call
            elif line.strip():
                warnings.warn(
                    f"{self._path}: line {number} is cut off, and left out",
                    RuntimeWarning,
                    stacklevel=2,
                )

    def _current_file(self) -> IO[bytes] | None:
        """Returns the open file, after forgetting one that was removed; None without a file."""
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            status = None
        if self._file is not None:
            is_same = status is not None and os.path.samestat(status, os.fstat(self._file.fileno()))
            if is_same:
                return self._file
            self.close()
        if status is not None:
            self._file = self._path.open("rb")
        return self._file


def _call_of(line: bytes) -> dict[str, Any] | None:
    """Returns the call of a line; None for a line that was cut off."""
    try:
        call = json.loads(line)
    except ValueError:
        return None
    if not isinstance(call, dict) or "rule" not in call:
        return None
    return call
