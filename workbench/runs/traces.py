"""Reads a load from a file, whose format is detected by its first bytes.

Traces of this project are CSV files (docs/simulate.md, "Traces"). Public traces are the Azure LLM
inference traces of 2023 and 2024, BurstGPT (both CSV), Mooncake, Bailian and Dynamo (JSON lines).
Spans of OpenTelemetry are read, too, and `benchmark_files` reads the results of benchmarks. A
specification of inference-perf, and the workload of a study, are drawn. Any file may be compressed
by gzip. Any mistake is a ConfigError, in one line with file, row and rule.
"""

import csv
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from msgspec import Struct

from config import ConfigError
from config.files import read_rest
from config.yaml_file import MAX_YAML_BYTES
from workbench.load.loads import MAX_TOKENS, ROWS_PER_PROGRESS, LoadTrace
from workbench.load.progress import Progress, ignore_progress
from workbench.load.workload import draw_workload, is_workload, read_workload
from workbench.runs.agent_traces import is_agent_trace, read_agent_traces
from workbench.runs.benchmark_files import recordings_of
from workbench.runs.column_traces import TraceColumns, read_column_trace
from workbench.runs.csv_rows import CsvRows, UnknownTraceError
from workbench.runs.exports import check_not_empty
from workbench.runs.hash_traces import is_dynamo, read_dynamo_trace, read_hash_trace
from workbench.runs.inference_perf import is_specification, read_specification
from workbench.runs.input_files import (
    InputFile,
    first_bytes,
    json_documents,
    open_input,
    text_lines,
)
from workbench.runs.json_rows import json_objects
from workbench.runs.measured_run import MeasuredRun
from workbench.runs.session_traces import SESSION_KEYS, read_session_trace
from workbench.runs.span_traces import is_span_trace, read_span_trace
from workbench.runs.trace_builder import start_at_zero
from workbench.runs.trace_kinds import unknown_trace

SPANS = re.compile(rb'\{\s*"(?:resourceSpans|resource_spans)"')
PLAIN_SPANS = (b'"spans"', b'"span_id"', b'"gen_ai.')
SESSIONS = tuple(f'"{key}"'.encode() for key in (*SESSION_KEYS, "output_length"))
"""Keys of rows with texts, which may be so long that the lengths are not in the head."""
DYNAMO = re.compile(rb'"dynamo\.\w+\.trace\.')


class TraceOptions(Struct, frozen=True):
    """How to read a trace, where its file does not determine that."""

    block_tokens: int | None = None
    """Tokens of a block to each hash; None for the size that follows from the rows."""
    columns: TraceColumns | None = None
    """Columns of a file in an unknown format."""
    max_tokens: int = MAX_TOKENS
    """Most tokens of a request that is drawn from a workload."""
    seed: int = 1
    """Seed of a draw from a workload."""


def read_trace(
    path: Path, progress: Progress = ignore_progress, options: TraceOptions | None = None
) -> LoadTrace:
    """Reads a trace. `progress` receives the number of bytes that were read.

    Raises:
        ConfigError: The file has a mistake; the message has file, row and rule.
    """
    options = options or TraceOptions()
    load = LoadTrace(str(path), rows="row", first_row=2)
    with open_input(path) as (stored, binary):
        head = first_bytes(binary)
        check_not_empty(str(path), binary)

        def report_progress() -> None:
            progress(stored.tell())

        if options.columns is not None:
            read_column_trace(binary, str(path), load, options.columns)
        elif is_agent_trace(head):
            return read_agent_traces(str(path), json_documents(binary, str(path)))
        elif head.startswith((b"{", b"[")):
            if not _read_json(path, binary, load, head, options.block_tokens, report_progress):
                return _load_of(path, recordings_of(str(path), binary, skips_failed=True))
        elif is_workload(head):
            return draw_workload(
                read_workload(path),
                str(path),
                seed=options.seed,
                max_tokens=options.max_tokens,
            )
        elif is_specification(head):
            text = read_rest(binary, str(path), MAX_YAML_BYTES).decode("utf-8-sig")
            return _with_requests(read_specification(path, text))
        else:
            _read_csv(text_lines(binary, str(path)), load, report_progress)
    if not load:
        raise ConfigError(f"{path} has no rows" + (" with tokens" if load.left_out else ""))
    return load


def _read_json(
    path: Path,
    binary: InputFile,
    load: LoadTrace,
    head: bytes,
    block_tokens: int | None,
    report_progress: Callable[[], None],
) -> bool:
    """Reads JSON objects in the format of the first one; returns False for a result of a run.

    The keys of a result may come after megabytes of times, but those of rows are in the head.
    """
    is_spans = SPANS.match(head.lstrip(b"[ \t\r\n")) is not None
    is_spans = is_spans or any(part in head for part in PLAIN_SPANS)
    is_hashes = b'"hash_ids"' in head or b'"input_length"' in head
    is_session = any(key in head for key in SESSIONS)
    if not (is_spans or is_hashes or is_session or DYNAMO.search(head) or head.startswith(b"[")):
        return False
    rows = json_objects(binary, str(path))
    first = next(rows, None)
    if first is None:
        return True
    rows = chain([first], rows)
    if is_span_trace(first[1]):
        read_span_trace(rows, load)
    elif is_dynamo(first[1]):
        read_dynamo_trace(rows, load, block_tokens, report_progress)
    elif SESSION_KEYS & first[1].keys():
        read_session_trace(rows, load, block_tokens, report_progress)
    elif is_hashes:
        read_hash_trace(rows, load, block_tokens, report_progress)
    else:
        raise ConfigError(unknown_trace(str(path), first[1]))
    return True


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
    number = 0
    try:
        rows = CsvRows(load, [name.strip() for name in next(lines, [])])
        for number, row in enumerate(lines, 1):
            rows.read(row)
            if not number % ROWS_PER_PROGRESS:
                report_progress()
    except UnicodeDecodeError:
        raise
    except UnknownTraceError as error:
        raise ConfigError(str(error)) from None
    except csv.Error as error:  # in the row after the last one
        raise ConfigError(f"{load.row(number)}: {error}") from None
    except ValueError as error:
        raise ConfigError(f"{load.row(number - 1)}: {error}") from None
    load.classes.extend(rows.classes)
    if rows.is_public:
        start_at_zero(load)
