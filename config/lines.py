"""Reads files line by line, so that they may have any size, and checks the size of JSON."""

import errno
import re
from collections.abc import Iterator
from typing import Protocol

from config.files import MAX_FILE_SETTING, MAX_FILE_VARIABLE, max_file_bytes, mebibytes

MAX_LINE_BYTES = 16 << 20
"""Longest line of a file that is read line by line."""
SMALL_JSON_BYTES = 4 << 20
"""JSON of this size takes at most some 100 MB when it is decoded."""
STRING_BYTES = 50
VALUE_BYTES = {b"{": 200, b"[": 60, b",": 32}
"""Memory of a string, an object, a list and another value, as CPython has them."""
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.S)


class LineReader(Protocol):
    """A binary file, or its decompressed content."""

    def readline(self, size: int, /) -> bytes:
        """Returns a line with its end, or its first `size` bytes."""


def read_lines(file: LineReader, path: str, max_bytes: int = MAX_LINE_BYTES) -> Iterator[bytes]:
    """Yields the lines of an open file with their ends. The file itself may have any size.

    Raises:
        OSError: a line is longer than `max_bytes`, or the file cannot be read.
    """
    number = 1
    line = file.readline(max_bytes + 1)
    while line:
        if len(line) > max_bytes:
            raise OSError(errno.EFBIG, f"line {number} is longer than {mebibytes(max_bytes)}", path)
        yield line
        number += 1
        line = file.readline(max_bytes + 1)


def check_json(data: bytes, path: str) -> None:
    """Checks that decoded JSON takes at most twice the memory of the largest file.

    A list of empty objects takes 20 times the memory of its text.

    Raises:
        OSError: it would take more.
    """
    if len(data) < SMALL_JSON_BYTES:
        return
    max_bytes = 2 * max_file_bytes()
    structure, string_count = _STRING.subn(b"", data)
    size = string_count * STRING_BYTES + len(data)
    for mark, mark_bytes in VALUE_BYTES.items():
        size += structure.count(mark) * mark_bytes
    if size > max_bytes:
        raise OSError(
            errno.EFBIG,
            f"the decoded JSON would take more than {mebibytes(max_bytes)}, twice the setting"
            f" {MAX_FILE_SETTING} ({MAX_FILE_VARIABLE})",
            path,
        )
