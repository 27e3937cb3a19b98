"""Files that are there whole, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from config import ConfigError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Where to write a file that gets the name `path` when the block ends well, and vanishes otherwise."""
    part = path.with_name(path.name + ".part")
    try:
        yield part
        os.replace(part, path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)


def check_target(path: Path | None) -> None:
    """ConfigError when there is no folder for a file; better now than after hours."""
    if path is not None and not path.parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {path.parent}")
    if path is not None and path.is_dir():
        raise ConfigError(f"{path}: is a folder")
