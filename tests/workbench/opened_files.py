"""A watch over the files that are opened, which fails a test."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def no_file_is_opened_in(folder: Path) -> Iterator[None]:
    """Fails if a file below the folder is opened."""
    opened: list[str] = []
    is_watching = True

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if is_watching and event == "open" and isinstance(arguments[0], str | os.PathLike):
            path = os.path.realpath(arguments[0])
            if path.startswith(str(folder)):
                opened.append(path)

    sys.addaudithook(note)
    try:
        yield
    finally:
        is_watching = False
    assert opened == []
