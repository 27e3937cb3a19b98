"""Reads files line by line, so that they may have any size, and checks the size of JSON."""

import errno
from collections.abc import Iterator
from typing import Protocol

from config.files import MAX_FILE_SETTING, MAX_FILE_VARIABLE, max_file_bytes, mebibytes

MAX_LINE_BYTES = 16 << 20
"""Longest line of a file that is read line by line."""
SMALL_JSON_BYTES = 1 << 20
"""JSON of this size takes some 30 MB at most when it is decoded."""
MARK_BYTES = {b"{": 200, b"[": 60, b",": 32, b'"': 25}
"""Memory of an object, a list, another value, and half of a string, as CPython has them."""
ESCAPED_QUOTE = b'\\"'


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
    """Checks that decoded JSON takes at most about twice the memory of the largest file.

    A list of empty objects takes 20 times the memory of its text. Brackets and commas in strings
    count, too: telling them apart would take as long as decoding.

    Raises:
        OSError: it would take more.
    """
    if len(data) < SMALL_JSON_BYTES:
        return
    max_bytes = 2 * max_file_bytes()
    size = len(data) - MARK_BYTES[b'"'] * data.count(ESCAPED_QUOTE)
    for mark, mark_bytes in MARK_BYTES.items():
        size += mark_bytes * data.count(mark)
    if size > max_bytes:
        raise OSError(
            errno.EFBIG,
            f"the decoded JSON could take more than {mebibytes(max_bytes)}, twice the setting"
            f" {MAX_FILE_SETTING} ({MAX_FILE_VARIABLE})",
            path,
        )
