"""Traces with hashes of prompt blocks: those of Mooncake, Alibaba's Bailian, and Dynamo.

Mooncake has times in milliseconds and blocks of 512 tokens, Bailian seconds and 16 tokens. Requests
of Dynamo (`dynamo.request.trace.v1`) name their block size.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

from config import ConfigError
from workbench.load.loads import ROWS_PER_PROGRESS, LoadTrace
from workbench.runs.json_rows import Json
from workbench.runs.row_values import read_block_ids, read_moment
from workbench.runs.session_traces import SESSION_KEYS
from workbench.runs.trace_builder import TraceBuilder, TraceRow

BAILIAN_KEYS = frozenset(("chat_id", "parent_chat_id"))
BAILIAN_BLOCK = 16
DYNAMO_SCHEMA = re.compile(r"dynamo\.(?:request|agent)\.trace\.")
MAX_BLOCK = 1 << 20


def read_hash_trace(
    rows: Iterable[tuple[str, Json]],
    load: LoadTrace,
    block_tokens: int | None,
    report_progress: Callable[[], None],
) -> None:
    """Reads rows of Mooncake's form; equal leading `hash_ids` are one path of the prefix tree.

    Raises:
        ConfigError: A row is wrong; the message has file, row and rule.
    """
    unit = "ms"
    builder: TraceBuilder | None = None
    for number, (place, row) in enumerate(rows, 1):
        if builder is None:
            if BAILIAN_KEYS & row.keys():
                unit = "s"
                block_tokens = block_tokens or BAILIAN_BLOCK
            builder = TraceBuilder(load, block_tokens)
        try:
            builder.add(_hash_row(row, unit), ("input_length", "output_length"))
        except ValueError as error:
            raise ConfigError(f"{load.origin}, {place}: {error}") from None
        if not number % ROWS_PER_PROGRESS:
            report_progress()
    _finish(builder, load)


def _finish(builder: TraceBuilder | None, load: LoadTrace) -> None:
    try:
        if builder is not None:
            builder.finish()
    except ValueError as error:
        raise ConfigError(f"{load.origin}, {error}") from None


def _hash_row(row: Json, unit: str) -> TraceRow:
    for name in SESSION_KEYS:
        if name in row:
            raise ValueError(f"{name} must also be in the first row, or in no row")
    return TraceRow(
        arrival_s=read_moment("timestamp", _required(row, "timestamp"), unit),
        input_tokens=_required(row, "input_length"),
        output_tokens=_required(row, "output_length"),
        block_ids=read_block_ids("hash_ids", row.get("hash_ids")),
    )


def _required(row: Json, name: str) -> Any:
    if name not in row:
        raise ValueError(f"{name} is missing")
    return row[name]


def is_dynamo(row: Json) -> bool:
    """Returns whether an object is a record of Dynamo's request traces, perhaps in an envelope."""
    record = _record(row)
    return isinstance(record, dict) and DYNAMO_SCHEMA.match(str(record.get("schema"))) is not None


def _record(row: Json) -> Any:
    return row["event"] if "schema" not in row and "event" in row else row


def read_dynamo_trace(
    rows: Iterable[tuple[str, Json]],
    load: LoadTrace,
    block_tokens: int | None,
    report_progress: Callable[[], None],
) -> None:
    """Reads the requests of Dynamo's request traces; other records have no load.

    Raises:
        ConfigError: A record is wrong; the message has file, line and rule.
    """
    builder: TraceBuilder | None = None
    for number, (place, row) in enumerate(rows, 1):
        record = _record(row)
        try:
            if not is_dynamo(row):
                raise ValueError("the schema must begin with dynamo.request.trace.")
            if record.get("event_type", "request_end") != "request_end":
                continue
            request = record.get("request")
            if not isinstance(request, dict):
                raise ValueError("request is missing")
            replay = request.get("replay") or {}
            size = _block_size(replay)
            if builder is None:
                block_tokens = block_tokens or size
                builder = TraceBuilder(load, block_tokens)
            elif size not in (None, block_tokens):
                raise ValueError(
                    f"trace_block_size {size} must be the same as before ({block_tokens})"
                )
            builder.add(_dynamo_row(record, request, replay), ("input_length", "output_tokens"))
        except (ValueError, AttributeError) as error:
            raise ConfigError(f"{load.origin}, {place}: {error}") from None
        if not number % ROWS_PER_PROGRESS:
            report_progress()
    _finish(builder, load)


def _block_size(replay: Json) -> int | None:
    size = replay.get("trace_block_size")
    if size is None:
        return None
    if not isinstance(size, int) or not 1 <= size <= MAX_BLOCK:
        raise ValueError(f"trace_block_size must be from 1 to {MAX_BLOCK}")
    return size


def _dynamo_row(record: Json, request: Json, replay: Json) -> TraceRow:
    received = request.get("request_received_ms")
    if received is None:  # the time of the event is that of the end
        end_s = read_moment("event_time_unix_ms", record.get("event_time_unix_ms"), "ms")
        duration_s = read_moment("total_time_ms", request.get("total_time_ms", 0), "ms")
        arrival_s = max(0.0, end_s - duration_s)
    else:
        arrival_s = read_moment("request_received_ms", received, "ms")
    return TraceRow(
        arrival_s=arrival_s,
        input_tokens=replay.get("input_length", request.get("input_tokens")),
        output_tokens=request.get("output_tokens"),
        block_ids=read_block_ids("input_sequence_hashes", replay.get("input_sequence_hashes")),
    )
