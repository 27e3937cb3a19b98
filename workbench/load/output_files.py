"""Output files of commands: checks of their paths, atomic files, and CSV."""

import csv
import gzip
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from config import ConfigError, UsageError

STDOUT = Path("-")
"""Value of `--json` for the standard output."""
PARTIAL_SUFFIX = ".part"
"""Suffix of a file that is not complete yet."""
PICTURE_SUFFIXES = (".png", ".svg")


def write_rows(path: Path, header: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    """Writes a CSV file; one whose name ends in .gz is compressed, always to the same bytes."""
    with path.open("wb") as raw:
        is_compressed = path.name.removesuffix(PARTIAL_SUFFIX).endswith(".gz")
        binary = gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if is_compressed else raw
        with io.TextIOWrapper(binary, encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(header)
            writer.writerows(rows)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yields a temporary path, which replaces `path` if the block succeeds, and is removed if not.

    Raises:
        ConfigError: The file cannot be written.
    """
    target = os.path.realpath(path)  # a link stays a link
    partial = Path(target).with_name(path.name + PARTIAL_SUFFIX)
    try:
        yield partial
        os.replace(partial, target)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def write_results(json_path: Path | None, figures: object, text: str) -> Iterator[ExitStack]:
    """Yields a stack for output files: either all files are written, or none.

    Afterwards prints the text, or the figures as JSON if their path is `STDOUT`.
    """
    document = json_document(figures)
    with ExitStack() as files:
        yield files
        if json_path is not None and json_path != STDOUT:
            files.enter_context(atomic_file(json_path)).write_bytes(document)
    if json_path == STDOUT:
        print(document.decode(), end="")
    else:
        print(text)


def json_document(figures: object) -> bytes:
    """Returns figures as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(figures)) + b"\n"


def check_output_paths(
    outputs: Iterable[Path | None], inputs: Iterable[str | Path | None] = ()
) -> None:
    """Checks that the output files can be written.

    Raises:
        ConfigError: A folder is missing, or a path is a folder or a device.
        UsageError: A file is given twice.
    """
    paths = [path for path in outputs if path is not None]
    targets = [os.path.realpath(path) for path in (*paths, *inputs) if path is not None]
    for path, target in zip(paths, map(Path, targets), strict=False):
        if not target.parent.is_dir():
            raise ConfigError(f"{path}: folder not found: {target.parent}")
        if target.is_dir():
            raise ConfigError(f"{path} is a folder, not a file")
        if target.exists() and not target.is_file():
            raise ConfigError(f"{path} is not a regular file")
        if targets.count(str(target)) > 1:
            raise UsageError(f"{path} is specified twice")


def check_picture_path(path: Path | None) -> None:
    """Checks the suffix of a picture's path.

    Raises:
        ConfigError: The suffix is not that of a picture.
    """
    if path is not None and path.suffix.lower() not in PICTURE_SUFFIXES:
        raise ConfigError(
            f"{path}: the name of an image file must end with {' or '.join(PICTURE_SUFFIXES)}"
        )
