"""Opens input files, which may be compressed by gzip."""

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from config import ConfigError

GZIP_MAGIC = b"\x1f\x8b"
"""First bytes of a compressed file."""


@contextmanager
def open_input(path: Path) -> Iterator[tuple[io.BufferedReader, io.BufferedReader | gzip.GzipFile]]:
    """Yields the file as stored, and a reader of its decompressed bytes.

    Raises:
        ConfigError: The file or, in the block, its text cannot be read.
    """
    try:
        with path.open("rb") as file:
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
