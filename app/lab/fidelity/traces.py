"""Reads a load from a file, packed by gzip or not, whose format is recognised by its first bytes.

Own traces are CSV files (docs/fidelity.md, "Traces"). Public ones are the Azure LLM inference
traces of 2023 and 2024, BurstGPT (both CSV), Mooncake (JSON lines), and the results of benchmarks,
which `benchmark_files` reads. Any mistake is a ConfigError, in one line with file, row and rule.
"""

import csv
import io
import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain, pairwise
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from app.lab.fidelity.benchmark_files import opened, read_recordings
from app.lab.load.loads import (
    COLUMNS,
    MOST_TOKENS,
    NO_GROUP,
    SESSION_COLUMNS,
    TELL_EVERY,
    LoadTrace,
)
from config import ConfigError

PREFIX_COLUMNS = ("prefix_group", "prefix_tokens")
CLASS = "class"
MOST_THINK_S = 1e9
MOONCAKE_BLOCK = 512
"""Tokens of a prompt to each of its `hash_ids`; the last one may have fewer."""
_BLANK = b"\xef\xbb\xbf \t\r\n"


def read_trace(path: Path, progress: Callable[[int], None] = lambda bytes_read: None) -> LoadTrace:
    """Reads a trace; `progress` receives the bytes read.

    Raises ConfigError with the file, row and rule.
    """
    load = LoadTrace(str(path), rows="row", first_row=2)
    with opened(path) as (packed, binary):
        if not (head := binary.peek(4096).lstrip(_BLANK)):
            raise ConfigError(f"{path}: it is empty")
        is_mooncake = b'"hash_ids"' in head or b'"input_length"' in head
        if head.startswith(b"{") and not is_mooncake:
            runs = read_recordings(str(path))
            if len(runs) > 1:
                raise ConfigError(f"{path}: it has {len(runs)} runs, and a load is one")
            return replace(runs[0].load, origin=str(path))
        read = _read_mooncake if head.startswith(b"{") else _read_csv
        with io.TextIOWrapper(binary, encoding="utf-8-sig", newline="") as file:
            read(file, load, lambda: progress(packed.tell()))
    if not load:
        raise ConfigError(f"{path}: it has no rows" + (" with tokens" if load.left_out else ""))
    return load


def _seconds(name: str, text: str, most: float = 1e300) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= most:
        raise ValueError(f"{name} {text[:40]!r} must be a number of seconds from 0 to {most:g}")
    return seconds


def _utc_s(name: str, text: str) -> float:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{name} {text[:40]!r} must be a date and a time") from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _tokens(name: str, text: str, least: int = 1) -> int:
    digits = text.strip()
    if (
        not (digits.isascii() and digits.isdecimal())
        or not least <= int(digits[:20]) <= MOST_TOKENS
    ):
        raise ValueError(
            f"{name} {text[:40]!r} must be a whole number from {least} to {MOST_TOKENS}"
        )
    return int(digits)


PUBLIC: Mapping[tuple[str, ...], Callable[[str, str], float]] = {
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"): _utc_s,
    ("Timestamp", "Request tokens", "Response tokens"): _seconds,
}
"""Columns of time, prompt and answer tokens, and how to read a time: of Azure, whose times have
seven digits and no zone (2023) or six and one (2024), and of BurstGPT."""


def _read_csv(file: Iterable[str], load: LoadTrace, progress: Callable[[], None]) -> None:
    lines, rows = csv.reader(file, strict=True), None
    try:
        rows = _CsvRows(load, [name.strip() for name in next(lines, [])])
        for number, row in enumerate(lines, 1):
            rows.add(row)
            if not number % TELL_EVERY:
                progress()
    except UnicodeDecodeError:
        raise
    except (csv.Error, ValueError) as error:
        raise ConfigError(
            f"{load.row(-1 if rows is None else len(load) + load.left_out)}: {error}"
        ) from None
    load.classes.extend(rows.kinds)
    if not rows.are_own:
        _from_zero(load)


class _CsvRows:
    """Checks the rows of a CSV file, and adds each to `load`."""

    def __init__(self, load: LoadTrace, names: Sequence[str]) -> None:
        """Raises ValueError for columns that are missing, or there twice."""
        self._columns = next((columns for columns in PUBLIC if {*columns} <= {*names}), COLUMNS)
        self._seconds, self.are_own = PUBLIC.get(self._columns, _seconds), self._columns is COLUMNS
        optional = (PREFIX_COLUMNS, SESSION_COLUMNS, (CLASS,)) if self.are_own else ()
        parts = [part if any(name in names for name in part) else () for part in optional]
        wanted = [*self._columns, *chain(*parts)]
        for name in wanted:
            if names.count(name) != 1:
                what = "twice" if name in names else "missing"
                raise ValueError(f"column {name} is {what}; needed are {', '.join(wanted)}")
        self.kinds: dict[str, int] = {}
        self._load, self._groups = load, dict[str, int]()
        self._turns: dict[str, int] = {}
        """Latest turn of each session."""
        self._places = [names.index(name) for name in self._columns]
        places = ([names.index(name) for name in part] for part in parts)
        self._prefix, self._session, self._class = places if parts else ([], [], [])
        self._width = max(map(names.index, wanted)) + 1
        self._before_s = 0.0

    def add(self, row: Sequence[str]) -> None:
        """Raises ValueError with the rule that `row` breaks."""
        load, (at, tokens_in, tokens_out) = self._load, self._places
        if len(row) < self._width:
            raise ValueError(
                "is empty" if not any(row) else f"has {len(row)} fields, and lacks some"
            )
        if not self.are_own and "0" in (row[tokens_in], row[tokens_out]):  # a request that failed
            load.left_out += 1
            return
        before = self._turn_before(row) if self._session else None
        name, name_in, name_out = self._columns
        if before is None:
            before_s, self._before_s = self._before_s, self._seconds(name, row[at])
            if self._before_s < before_s and self.are_own:
                raise ValueError(f"arrival_s {row[at]} is before that of the row above")
        count_in, count_out = _tokens(name_in, row[tokens_in]), _tokens(name_out, row[tokens_out])
        if before is not None and count_in < (
            told := load.input_tokens[before] + load.output_tokens[before]
        ):
            raise ValueError(
                f"input_tokens {count_in} must hold the conversation so far, {told} tokens"
            )
        if self._prefix:
            self._share_prefix(row, count_in, before)
        if self._class:
            if not (name := row[self._class[0]].strip()):
                raise ValueError(f"{CLASS} is empty")
            load.kind.append(self.kinds.setdefault(name, len(self.kinds)))
        load.input_tokens.append(count_in)
        load.output_tokens.append(count_out)
        load.arrival_s.append(self._before_s)

    def _turn_before(self, row: Sequence[str]) -> int | None:
        """Returns the number of the turn that this one follows; None for a first one."""
        load, turns = self._load, self._turns
        name, think = (row[place].strip() for place in self._session)
        before = turns.get(name) if name else None
        load.think_s.append(
            0.0 if before is None else _seconds(SESSION_COLUMNS[1], think, MOST_THINK_S)
        )
        known = len(turns) if before is None else load.session[before]
        load.session.append(known if name else NO_GROUP)
        if name:
            turns[name] = len(load)
        return before

    def _share_prefix(self, row: Sequence[str], count_in: int, before: int | None) -> None:
        """Notes the shared beginning; that of a later turn is that of its conversation."""
        load, (group, text) = self._load, (row[place].strip() for place in self._prefix)
        shared = _tokens(PREFIX_COLUMNS[1], text, 0) if group else 0
        if shared > count_in:
            raise ValueError(f"prefix_tokens {shared} must not exceed input_tokens {count_in}")
        number = self._groups.setdefault(group, len(self._groups)) if shared else NO_GROUP
        load.group.append(number if before is None else load.group[before])
        load.prefix_tokens.append(shared if before is None else load.prefix_tokens[before])


_Tokens = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]


class _MooncakeRow(Struct):
    timestamp: Annotated[float, Meta(ge=0)]
    """Milliseconds."""
    input_length: _Tokens
    output_length: _Tokens
    hash_ids: list[int] = []


def _read_mooncake(file: Iterable[str], load: LoadTrace, progress: Callable[[], None]) -> None:
    """Reads JSON lines; equal leading `hash_ids` become one path of the prefix tree."""
    load.node_tokens, load.first_row, decoder = (
        MOONCAKE_BLOCK,
        1,
        msgspec.json.Decoder(_MooncakeRow),
    )
    nodes: dict[tuple[int, int], int] = {}
    """Node of the tree by parent and id, as an id may stand for a block or for all blocks up to it.
    """
    for number, line in enumerate(file):
        try:
            if not line.isspace():
                _add_mooncake(load, decoder.decode(line), nodes)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise ConfigError(f"{load.row(number)}: {error}") from None
        if not number % TELL_EVERY:
            progress()
    _from_zero(load)


def _add_mooncake(load: LoadTrace, row: _MooncakeRow, nodes: dict[tuple[int, int], int]) -> None:
    count_in, ids = row.input_length, row.hash_ids
    if len(ids) > (blocks := -(-count_in // MOONCAKE_BLOCK)):
        raise ValueError(
            f"{len(ids)} hash_ids are more than the {blocks} blocks of {count_in} tokens"
        )
    if not (count_in and row.output_length):
        load.left_out += 1
        return
    node = NO_GROUP
    for block in ids:
        parent, node = node, nodes.setdefault((node, block), len(nodes))
        if node == len(load.parents):
            load.parents.append(parent)
    load.group.append(node)
    load.prefix_tokens.append(min(count_in, MOONCAKE_BLOCK * len(ids)))
    load.arrival_s.append(row.timestamp / 1000)
    load.input_tokens.append(count_in)
    load.output_tokens.append(row.output_length)


def _from_zero(load: LoadTrace) -> None:
    """Sorts the requests of a public trace, which may be out of order; the first one arrives at 0
    s.
    """
    load.rows, load.first_row = "request", 1
    if any(before_s > at_s for before_s, at_s in pairwise(load.arrival_s)):
        order = sorted(range(len(load)), key=load.arrival_s.__getitem__)
        for name in ("arrival_s", "input_tokens", "output_tokens", "group", "prefix_tokens"):
            if column := getattr(load, name):
                setattr(load, name, array(column.typecode, map(column.__getitem__, order)))
    if load:
        first_s = load.arrival_s[0]
        load.arrival_s = array("d", (round(at_s - first_s, 6) for at_s in load.arrival_s))
