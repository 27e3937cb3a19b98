"""A load as columns: arrival times and token counts of requests, read from a trace file."""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from config import ConfigError

COLUMNS = ("arrival_s", "input_tokens", "output_tokens")
PREFIX_COLUMNS = ("prefix_group", "prefix_tokens")
MOST_TOKENS = 1 << 30
NO_GROUP = -1
TELL_EVERY = 1 << 14
"""Requests between two progress calls."""
_GZIP = b"\x1f\x8b"


@dataclass(slots=True)
class LoadTrace:
    """Requests in order of arrival, as columns for millions of rows. Without groups two are empty."""

    origin: str
    """Name of the source, with which error messages begin."""
    arrival_s: array[float] = field(default_factory=lambda: array("d"))
    input_tokens: array[int] = field(default_factory=lambda: array("i"))
    output_tokens: array[int] = field(default_factory=lambda: array("i"))
    group: array[int] = field(default_factory=lambda: array("i"))
    prefix_tokens: array[int] = field(default_factory=lambda: array("i"))
    rows: str = "request"
    first_row: int = 1
    """Word for a row and number of the first one, in error messages."""

    def __len__(self) -> int:
        return len(self.arrival_s)

    def row(self, number: int) -> str:
        return f"{self.origin}, {self.rows} {number + self.first_row}"


def read_trace(path: Path, progress: Callable[[int], None] = lambda bytes_read: None) -> LoadTrace:
    """Reads a CSV file, packed by gzip or not. Raises ConfigError with the file, the row and the rule."""
    load = LoadTrace(str(path), rows="row", first_row=2)
    try:
        with path.open("rb") as packed:
            is_packed = packed.peek(2)[:2] == _GZIP
            binary = gzip.GzipFile(fileobj=packed) if is_packed else packed
            with io.TextIOWrapper(binary, encoding="utf-8-sig", newline="") as file:
                _read_rows(file, load, lambda: progress(packed.tell()))
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: it is neither text in UTF-8 nor such text packed by gzip") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ConfigError(f"{path}: it cannot be unpacked: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    if not load:
        raise ConfigError(f"{path}: it has no rows")
    return load


def _read_rows(file: TextIO, load: LoadTrace, progress: Callable[[], None]) -> None:
    rows = csv.reader(file, strict=True)
    try:
        header = next(rows, [])
    except csv.Error as error:
        raise ConfigError(f"{load.row(-1)}: {error}") from None
    names = [name.strip() for name in header]
    has_groups = any(name in names for name in PREFIX_COLUMNS)
    wanted = COLUMNS + PREFIX_COLUMNS if has_groups else COLUMNS
    for name in wanted:
        if names.count(name) != 1:
            what = "twice" if name in names else "missing"
            raise ConfigError(
                f"{load.origin}, row 1: column {name} is {what}; needed are {', '.join(wanted)}"
            )
    arrival, tokens_in, tokens_out, *prefix = places = [names.index(name) for name in wanted]
    before_s, width = 0.0, max(places) + 1
    groups: dict[str, int] = {}
    try:
        for row in rows:
            if len(row) < width:
                raise ValueError("is empty" if not any(row) else f"has {len(row)} fields, and lacks some")
            at_s = _moment(row[arrival])
            if at_s < before_s:
                raise ValueError(f"arrival_s {row[arrival]} is before that of the row above")
            count_in = _tokens(COLUMNS[1], row[tokens_in])
            count_out = _tokens(COLUMNS[2], row[tokens_out])
            if prefix:
                group, text = row[prefix[0]].strip(), row[prefix[1]]
                shared = _tokens(PREFIX_COLUMNS[1], text, 0) if group else 0
                if shared > count_in:
                    raise ValueError(f"prefix_tokens {shared} must not exceed input_tokens {count_in}")
                load.group.append(NO_GROUP if not shared else groups.setdefault(group, len(groups)))
                load.prefix_tokens.append(shared)
            load.input_tokens.append(count_in)
            load.output_tokens.append(count_out)
            load.arrival_s.append(at_s)
            before_s = at_s
            if not len(load) % TELL_EVERY:
                progress()
    except UnicodeDecodeError:
        raise
    except (csv.Error, ValueError) as error:
        raise ConfigError(f"{load.row(len(load))}: {error}") from None


def _moment(text: str) -> float:
    try:
        at_s = float(text)
    except ValueError:
        at_s = math.nan
    if not 0 <= at_s < math.inf:
        raise ValueError(f"arrival_s {text[:40]!r} must be a number of seconds from 0 on")
    return at_s


def _tokens(name: str, text: str, least: int = 1) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdecimal()) or not least <= int(digits[:20]) <= MOST_TOKENS:
        raise ValueError(f"{name} {text[:40]!r} must be a whole number from {least} to {MOST_TOKENS}")
    return int(digits)
