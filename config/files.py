"""Reads files that users name, within limits: start with `read_whole`.

A path may name anything: a device without an end, a pipe without a writer, a line of
gigabytes. Commands also read pipes, such as `/dev/stdin` and `<(zcat trace.gz)`, so that pipes are
read with limits, too, instead of being rejected. `config.lines` reads files of any size.
"""

import errno
import io
import os
import stat
from collections.abc import Mapping
from typing import Protocol

from config.declaration import ConfigError

MAX_FILE_SETTING = "max-file-size-mb"
MAX_FILE_VARIABLE = "SIM_MAX_FILE_SIZE_MB"
"""The variable of the setting: commands without settings read it, too."""
DEFAULT_MAX_FILE_MIB = 64
LARGEST_MAX_FILE_MIB = 16_384


class Readable(Protocol):
    """A binary file, or its decompressed content."""

    def read(self, size: int, /) -> bytes:
        """Returns the next `size` bytes; fewer at the end."""


def max_file_bytes() -> int:
    """Returns the size of the largest file, or response, that is read whole: `max-file-size-mb`.

    Raises:
        ConfigError: the setting is not a number in its range.
    """
    text = os.environ.get(MAX_FILE_VARIABLE) or str(DEFAULT_MAX_FILE_MIB)
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= LARGEST_MAX_FILE_MIB):
        raise ConfigError(
            f"setting {MAX_FILE_SETTING}: must be a whole number from 1 to {LARGEST_MAX_FILE_MIB}"
            f" (MiB), got {text[:40]!r}"
        )
    return int(text) << 20


def limit_files(flags: Mapping[str, object]) -> None:
    """Applies the setting of a command line, before the files that other settings name are read."""
    if MAX_FILE_SETTING in flags:
        os.environ[MAX_FILE_VARIABLE] = str(flags[MAX_FILE_SETTING])


def read_whole(
    path: str | os.PathLike[str], max_bytes: int | None = None, accepts_pipes: bool = True
) -> bytes:
    """Returns the content of a file of at most `max_bytes`, by default `max_file_bytes`.

    Raises:
        OSError: the file cannot be read, or is larger; `strerror` is the reason.
    """
    with open_file(path, accepts_pipes) as file:
        return read_rest(file, os.fspath(path), max_bytes)


def read_rest(file: Readable, path: str, max_bytes: int | None = None, start: bytes = b"") -> bytes:
    """Returns an open file, whose `start` was read before, as `read_whole` does."""
    if max_bytes is None:
        max_bytes = max_file_bytes()
    # The size of most files is known before they are read, or take memory.
    size = 0
    if isinstance(file, io.BufferedReader):
        size = os.fstat(file.fileno()).st_size
    content = start
    if size <= max_bytes:
        content += file.read(max(0, max_bytes - len(start)) + 1)
    if max(size, len(content)) > max_bytes:
        raise OSError(errno.EFBIG, _too_large(max_bytes), path)
    return content


def read_text(path: str | os.PathLike[str], max_bytes: int | None = None) -> str:
    """Returns the text of a file, as `read_whole` does.

    Raises:
        OSError: as `read_whole`.
        UnicodeDecodeError: the file is not UTF-8.
    """
    return read_whole(path, max_bytes).decode("utf-8")


def open_file(path: str | os.PathLike[str], accepts_pipes: bool = True) -> io.BufferedReader:
    """Opens a file for reading, without waiting for the writer of a pipe.

    Raises:
        OSError: the file cannot be opened, or is a pipe and `accepts_pipes` is false.
    """
    name = os.fspath(path)
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # no file can have this name
        raise OSError(errno.EINVAL, str(error), name) from None
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        if stat.S_ISREG(mode):
            return open(descriptor, "rb")
        if not accepts_pipes:
            raise OSError(errno.EINVAL, "must be a regular file", name)
        from config.streams import Stream  # few files are none

        return io.BufferedReader(Stream(descriptor, name))
    except BaseException:
        os.close(descriptor)
        raise


def _too_large(max_bytes: int) -> str:
    reason = f"larger than {mebibytes(max_bytes)}"
    if max_bytes == max_file_bytes():
        reason += f", the setting {MAX_FILE_SETTING} ({MAX_FILE_VARIABLE})"
    return reason


def mebibytes(size: int) -> str:
    """Returns a size as text."""
    return f"{size / (1 << 20):g} MiB"
