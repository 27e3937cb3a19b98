"""Traces whose columns the user names: CSV, or JSON objects (`--trace-columns`)."""

import csv
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

from config import ConfigError
from config.untrusted import UntrustedDataError, decode_untrusted, python_json
from workbench.load.loads import LoadTrace
from workbench.runs.input_files import InputFile, first_bytes, text_lines
from workbench.runs.json_rows import Json, json_objects
from workbench.runs.row_values import UNITS, is_missing, read_moment
from workbench.runs.trace_builder import TraceBuilder, TraceRow

REQUIRED = ("time", "input", "output")
OPTIONAL = ("end", "session")
EXAMPLE = "time=ts,input=prompt_tokens,output=completion_tokens"


class TraceColumns(Struct, frozen=True):
    """Columns of a file, or dotted paths of JSON objects, by their contents.

    Attributes:
        unit: Unit of the times; empty for one that follows from the numbers.
    """

    names: dict[str, str]
    unit: str = ""


def parse_columns(text: str) -> TraceColumns:
    """Parses the flag: `time=ts,input=prompt_tokens,output=completion_tokens`.

    A time may have a unit, as in `time=ts:ms`. Raises ValueError.
    """
    names: dict[str, str] = {}
    for part in text.split(","):
        key, equals, name = part.partition("=")
        key = key.strip()
        if not equals or key not in (*REQUIRED, *OPTIONAL) or not name.strip() or key in names:
            raise ValueError(
                f"must consist of NAME=COLUMN, not {part[:60]!r}, and NAME must be one of"
                f" {', '.join((*REQUIRED, *OPTIONAL))}, each at most once"
            )
        names[key] = name.strip()
    missing = [key for key in REQUIRED if key not in names]
    if missing:
        raise ValueError(f"must also have {', '.join(missing)}, as in {EXAMPLE}")
    column, colon, unit = names["time"].rpartition(":")
    if colon and unit in UNITS:
        return TraceColumns({**names, "time": column}, unit)
    return TraceColumns(names)


def read_column_trace(file: InputFile, path: str, load: LoadTrace, columns: TraceColumns) -> None:
    """Reads a file of rows in any order; rows without tokens are failed requests.

    Raises:
        ConfigError: A column is missing, or a row is wrong.
    """
    builder = TraceBuilder(load)
    names = (columns.names["input"], columns.names["output"])
    has_rows = False
    present: set[str] = set()
    first: Json = {}
    for place, row in _unwrapped(_rows(file, path), columns, path):
        first = first or row
        present |= {key for key in REQUIRED if _has(row, columns.names[key])}
        has_rows = True
        try:
            builder.add(_row_of(row, columns), names)
        except ValueError as error:
            raise ConfigError(f"{path}, {place}: {error}") from None
    missing = [columns.names[key] for key in REQUIRED if key not in present]
    if has_rows and missing:
        raise ConfigError(
            f"{path} has no column {missing[0]}; its columns are {', '.join(first)[:400]}"
        )
    builder.finish()


def _rows(file: InputFile, path: str) -> Iterator[tuple[str, Json]]:
    if first_bytes(file)[:1] in (b"{", b"["):
        yield from json_objects(file, path)
        return
    yield from _csv_rows(text_lines(file, path), path)


def _unwrapped(
    rows: Iterable[tuple[str, Json]], columns: TraceColumns, path: str
) -> Iterator[tuple[str, Json]]:
    """Yields the rows of answers of APIs, such as Langfuse's, which have them in a list `data`.

    Raises:
        ConfigError: An item of the list is not an object.
    """
    for place, row in rows:
        items = row.get("data")
        if not isinstance(items, list) or _has(row, columns.names["time"]):
            yield place, row
            continue
        for number, item in enumerate(items, 1):
            if not isinstance(item, dict):
                raise ConfigError(f"{path}, {place}: item {number} of data is not a JSON object")
            yield f"{place}, item {number} of data", item


def _csv_rows(text: Iterable[str], path: str) -> Iterator[tuple[str, Json]]:
    lines = csv.reader(text, strict=True)
    try:
        header = [name.strip() for name in next(lines, [])]
        for cells in lines:
            if any(cell.strip() for cell in cells):
                yield f"line {lines.line_num}", dict(zip(header, cells, strict=False))
    except csv.Error as error:
        raise ConfigError(f"{path}, line {lines.line_num}: {error}") from None


def _row_of(row: Json, columns: TraceColumns) -> TraceRow:
    names = columns.names
    time = _value(row, names["time"])
    input_tokens = _value(row, names["input"])
    output_tokens = _value(row, names["output"])
    arrival_s = 0.0
    if not is_missing(input_tokens) and not is_missing(output_tokens):
        arrival_s = read_moment(names["time"], time, columns.unit)
    conversation = ""
    end_s = None
    if "session" in names and not is_missing(_value(row, names["session"])):
        conversation = str(_value(row, names["session"]))
    if "end" in names and not is_missing(_value(row, names["end"])):
        end_s = read_moment(names["end"], _value(row, names["end"]), columns.unit)
    return TraceRow(
        arrival_s=arrival_s,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        conversation=conversation,
        end_s=end_s,
    )


def _has(row: Json, name: str) -> bool:
    return name in row or name.partition(".")[0] in row


def _value(row: Any, name: str) -> object:
    """Returns the value at a column or a dotted path, which may lead into a cell with JSON.

    None stands for no value.
    """
    if isinstance(row, str) and row.lstrip().startswith("{"):
        try:
            row = decode_untrusted(row, decoder=python_json)
        except UntrustedDataError:
            return None
    if not isinstance(row, dict):
        return None
    if name in row:
        value: object = row[name]
        return value
    start, dot, rest = name.partition(".")
    return _value(row.get(start), rest) if dot else None
