"""Opens input files, which may be compressed by gzip, and splits them into lines or documents."""

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TypeAlias

from config import ConfigError
from config.files import max_file_bytes, open_file, read_rest
from config.lines import check_json, read_lines
from config.untrusted import UntrustedDataError, decode_untrusted, is_valid_json, python_json

InputFile: TypeAlias = io.BufferedReader | gzip.GzipFile
"""A reader of the decompressed bytes of a file."""
BOM = b"\xef\xbb\xbf"
"""Byte order mark of UTF-8."""
BLANK = BOM + b" \t\r\n"
"""White space and the byte order mark."""
GZIP_MAGIC = b"\x1f\x8b"
"""First bytes of a compressed file."""


@contextmanager
def open_input(path: Path) -> Iterator[tuple[io.BufferedReader, InputFile]]:
    """Yields the file as stored, and a reader of its decompressed bytes.

    Raises:
        ConfigError: The file or, in the block, its text cannot be read.
    """
    try:
        with open_file(path) as file:
            if file.peek(2)[:2] == GZIP_MAGIC:
                yield file, gzip.GzipFile(fileobj=file)
            else:
                yield file, file
    except UnicodeDecodeError:
        raise ConfigError(f"{path} must be UTF-8 text, optionally compressed with gzip") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ConfigError(f"{path} cannot be decompressed: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None


def first_bytes(file: InputFile) -> bytes:
    """Returns the first bytes of a file that are not blank, without reading them; some 4 KB."""
    return file.peek(4096).lstrip(BLANK)


def read_document(file: InputFile, path: str) -> bytes:
    """Returns the remainder of a file that is one JSON document.

    Raises:
        OSError: The document is too large.
    """
    content = read_rest(file, path).removeprefix(BOM)
    check_json(content, path)
    return content


def text_lines(file: InputFile, path: str) -> Iterator[str]:
    """Yields the lines of a text file with their ends.

    Raises:
        OSError: A line is too long.
        UnicodeDecodeError: The file is not UTF-8.
    """
    mark = BOM
    for line in read_lines(file, path):
        yield line.removeprefix(mark).decode()
        mark = b""


def json_documents(file: InputFile, path: str) -> Iterator[tuple[int, bytes]]:
    """Yields the JSON documents of a file with the numbers of their lines.

    The only document of a file has the number 0. Where each line is a document, the file may have
    any size; a single document is limited by `max-file-size-mb`.

    Raises:
        OSError: A line or the document is too large.
    """
    number = 0
    first_line = b""
    while not first_line.strip(BLANK):
        number += 1
        first_line = file.readline(max_file_bytes() + 1).removeprefix(BOM)
        if not first_line:
            return
    if not _is_json(first_line):
        # The document has several lines, or the first line is wrong.
        content = read_rest(file, path, start=first_line)
        if _is_json(content):
            check_json(content, path)
            yield 0, content
            return
        for offset, line in enumerate(content.splitlines()):
            if line.strip(BLANK):
                yield number + offset, line
        return
    following = ((number + offset, line) for offset, line in enumerate(read_lines(file, path), 1))
    lines = ((line_number, line) for line_number, line in following if line.strip(BLANK))
    second = next(lines, None)
    check_json(first_line, path)
    if second is None:
        yield 0, first_line
        return
    yield number, first_line
    for line_number, line in chain([second], lines):
        check_json(line, path)
        yield line_number, line


def _is_json(data: bytes) -> bool:
    """Returns whether the data is one JSON value, perhaps with the NaN that Python writes."""
    if is_valid_json(data):
        return True
    if b"NaN" not in data and b"Infinity" not in data:
        return False
    try:
        decode_untrusted(data, decoder=python_json)
    except UntrustedDataError:
        return False
    return True
