"""Reads a load from a file, whose format is detected by its first bytes.

Traces of this project are CSV files (docs/simulate.md, "Traces"). Public traces are the Azure LLM
inference traces of 2023 and 2024, BurstGPT (both CSV), Mooncake (JSON lines), and the results of
benchmarks, which `benchmark_files` reads. A specification of inference-perf is drawn. Any file may
be compressed by gzip. Any mistake is a ConfigError, in one line with file, row and rule.
"""

import csv
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from app.extensions.lab.fidelity.agent_traces import is_agent_trace, read_agent_traces
from app.extensions.lab.fidelity.benchmark_files import recordings_of
from app.extensions.lab.fidelity.csv_rows import CsvRows
from app.extensions.lab.fidelity.exports import check_not_empty
from app.extensions.lab.fidelity.inference_perf import is_specification, read_specification
from app.extensions.lab.fidelity.input_files import (
    first_bytes,
    json_documents,
    open_input,
    text_lines,
)
from app.extensions.lab.fidelity.measured_run import MeasuredRun
from app.extensions.lab.load.loads import MAX_TOKENS, NO_GROUP, ROWS_PER_PROGRESS, LoadTrace
from app.extensions.lab.load.progress import Progress, ignore_progress
from config import ConfigError
from config.files import read_rest
from config.untrusted import decode_untrusted
from config.yaml_file import MAX_YAML_BYTES

MOONCAKE_BLOCK = 512
"""Tokens of a prompt to each of its `hash_ids`; the last one may have fewer."""

TokenCount = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]


def read_trace(path: Path, progress: Progress = ignore_progress) -> LoadTrace:
    """Reads a trace. `progress` receives the number of bytes that were read.

    Raises:
        ConfigError: The file has a mistake; the message has file, row and rule.
    """
    load = LoadTrace(str(path), rows="row", first_row=2)
    with open_input(path) as (stored, binary):
        head = first_bytes(binary)
        check_not_empty(str(path), binary)
        if is_agent_trace(head):
            return read_agent_traces(str(path), json_documents(binary, str(path)))
        is_mooncake = b'"hash_ids"' in head or b'"input_length"' in head
        if head.startswith(b"{") and not is_mooncake:
            return _load_of(path, recordings_of(str(path), binary))
        if is_specification(head):
            text = read_rest(binary, str(path), MAX_YAML_BYTES).decode("utf-8-sig")
            return _with_requests(read_specification(path, text))

        def report_progress() -> None:
            progress(stored.tell())

        lines = text_lines(binary, str(path))
        if head.startswith(b"{"):
            _read_mooncake(lines, load, report_progress)
        else:
            _read_csv(lines, load, report_progress)
    if not load:
        raise ConfigError(f"{path} has no rows" + (" with tokens" if load.left_out else ""))
    return load


def _with_requests(load: LoadTrace) -> LoadTrace:
    if not load:
        raise ConfigError(f"{load.origin}: the stages contain no requests")
    return load


def _load_of(path: Path, runs: Sequence[MeasuredRun]) -> LoadTrace:
    if len(runs) > 1:
        raise ConfigError(
            f"{path} contains {len(runs)} runs, but a load must consist of a single run"
        )
    return replace(runs[0].load, origin=str(path))


def _read_csv(file: Iterable[str], load: LoadTrace, report_progress: Callable[[], None]) -> None:
    lines = csv.reader(file, strict=True)
    rows = None
    try:
        rows = CsvRows(load, [name.strip() for name in next(lines, [])])
        for number, row in enumerate(lines, 1):
            rows.read(row)
            if not number % ROWS_PER_PROGRESS:
                report_progress()
    except UnicodeDecodeError:
        raise
    except (csv.Error, ValueError) as error:
        row_number = -1 if rows is None else len(load) + load.left_out
        raise ConfigError(f"{load.row(row_number)}: {error}") from None
    load.classes.extend(rows.classes)
    if rows.is_public:
        _start_at_zero(load)


class _MooncakeRow(Struct):
    timestamp: Annotated[float, Meta(ge=0)]
    """Milliseconds."""
    input_length: TokenCount
    output_length: TokenCount
    hash_ids: list[int] = []


def _read_mooncake(
    file: Iterable[str], load: LoadTrace, report_progress: Callable[[], None]
) -> None:
    """Reads JSON lines; equal leading `hash_ids` become one path of the prefix tree."""
    load.node_tokens = MOONCAKE_BLOCK
    load.first_row = 1
    decoder = msgspec.json.Decoder(_MooncakeRow)
    nodes: dict[tuple[int, int], int] = {}
    for number, line in enumerate(file):
        try:
            if not line.isspace():
                _append_mooncake_row(load, decode_untrusted(line, decoder=decoder), nodes)
        except ValueError as error:
            raise ConfigError(f"{load.row(number)}: {error}") from None
        if not number % ROWS_PER_PROGRESS:
            report_progress()
    _start_at_zero(load)


def _append_mooncake_row(
    load: LoadTrace, row: _MooncakeRow, nodes: dict[tuple[int, int], int]
) -> None:
    """Adds a row to the load.

    `nodes` has the node of the tree by parent and id, as an id may stand for a block or for all
    blocks up to it.
    """
    blocks = -(-row.input_length // MOONCAKE_BLOCK)
    if len(row.hash_ids) > blocks:
        raise ValueError(
            f"got {len(row.hash_ids)} hash_ids, but {row.input_length} tokens have at most {blocks}"
        )
    if not (row.input_length and row.output_length):
        load.left_out += 1
        return
    node = NO_GROUP
    for block in row.hash_ids:
        parent = node
        node = nodes.setdefault((parent, block), len(nodes))
        if node == len(load.parents):
            load.parents.append(parent)
    load.group.append(node)
    load.prefix_tokens.append(min(row.input_length, MOONCAKE_BLOCK * len(row.hash_ids)))
    load.arrival_s.append(row.timestamp / 1000)
    load.input_tokens.append(row.input_length)
    load.output_tokens.append(row.output_length)


def _start_at_zero(load: LoadTrace) -> None:
    """Sorts the requests of a public trace, and moves the first one to 0 s."""
    load.rows = "request"
    load.first_row = 1
    if any(earlier_s > later_s for earlier_s, later_s in pairwise(load.arrival_s)):
        order = sorted(range(len(load)), key=load.arrival_s.__getitem__)
        for name in ("arrival_s", "input_tokens", "output_tokens", "group", "prefix_tokens"):
            column = getattr(load, name)
            if column:
                setattr(load, name, array(column.typecode, map(column.__getitem__, order)))
    if load:
        first_s = load.arrival_s[0]
        load.arrival_s = array("d", (round(time_s - first_s, 6) for time_s in load.arrival_s))
