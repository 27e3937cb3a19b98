"""Reads recorded runs from the files of benchmarks, whose kind is detected by content.

Supported files:

* results of `vllm bench serve --save-result --save-detailed` (vLLM 0.15 to 0.23, also appended);
* reports of GuideLLM (0.3 to 0.6);
* `profile_export.jsonl` of AIPerf (0.8 to 0.13);
* CSV files of `understudy record`.

Any mistake in a file is an error, in one line with file,
place and rule: a fit to a part of a load would be wrong.
"""

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path

from config import ConfigError
from workbench.runs.exports import (
    AIPERF,
    GUIDELLM,
    VLLM,
    UnknownExportError,
    check_not_empty,
    read_exports,
)
from workbench.runs.input_files import (
    InputFile,
    first_bytes,
    open_input,
    text_lines,
)
from workbench.runs.measured_run import (
    MeasuredRequest,
    MeasuredRun,
    make_run,
    read_request,
)
from workbench.runs.tool_requests import Export, ToolRequest
from workbench.runs.trace_kinds import unknown_trace

TOOLS = (VLLM, GUIDELLM, AIPERF)
"""Load tools whose exports have the times of tokens and the numbers of tokens."""


def read_recordings(path: str) -> list[MeasuredRun]:
    """Returns the runs in a file. Raises ConfigError, in one line, for any mistake."""
    with open_input(Path(path)) as (_, file):
        return recordings_of(path, file)


def recordings_of(path: str, file: InputFile, skips_failed: bool = False) -> list[MeasuredRun]:
    """Returns the runs in an open file, as `read_recordings` does.

    `skips_failed` counts requests that failed, which are a mistake without it.
    """
    check_not_empty(path, file)
    if not first_bytes(file).startswith(b"{"):
        return [make_run(path, "", _read_csv(path, text_lines(file, path)))]
    try:
        exports = read_exports(path, file, tools=TOOLS)
    except UnknownExportError as error:
        if skips_failed:
            raise ConfigError(unknown_trace(path, error.names)) from None
        raise
    return [_measured_run(path, export, skips_failed) for export in exports]


def _measured_run(path: str, export: Export, skips_failed: bool) -> MeasuredRun:
    """Makes a recording of an export, without the requests that the end of the run cut off.

    Raises:
        ConfigError: A request failed, unless `skips_failed`, or has no times or tokens.
    """
    requests = [*export.requests, *export.never_sent]
    measured = []
    cut_off = 0
    failed = 0
    for request in requests:
        if request.is_cut_off:
            cut_off += 1
        elif skips_failed and (request.error or 0 in (request.input_tokens, request.output_tokens)):
            failed += 1
        else:
            measured.append(_measured(request))
    notes = []
    if cut_off:
        notes = [f"{cut_off} requests that the end of the run cut off are left out"]
    in_flight = export.in_flight
    return make_run(path, export.part, measured, in_flight=in_flight, notes=notes, failed=failed)


def _measured(request: ToolRequest) -> MeasuredRequest:
    place = request.place
    if request.error:
        raise ConfigError(f"{place} failed ({request.error}), but all requests must succeed")
    if request.first_s is None or request.last_s is None:
        raise ConfigError(
            f"{place} has no times for its first and last tokens; run the load tool with streaming"
        )
    if request.input_tokens is None or request.output_tokens is None:
        raise ConfigError(f"{place} has no numbers of input and output tokens")
    measured = MeasuredRequest(
        arrival_s=request.send_s,
        send_s=request.send_s,
        first_s=request.first_s,
        last_s=request.last_s,
        input_tokens=request.input_tokens,
        output_tokens=request.output_tokens,
    )
    measured.check(place)
    return measured


def _read_csv(path: str, text: Iterable[str]) -> Iterator[MeasuredRequest]:
    """Yields the rows of a CSV file, which may lack one of arrival and send."""
    lines = csv.reader(text)
    last_arrival_s = 0.0
    try:
        header = [name.strip() for name in next(lines)]
        required = ["input_tokens", "output_tokens", "first_s", "last_s"]
        if "send_s" not in header:
            required.insert(0, "arrival_s")
        for name in required:
            if name not in header:
                raise ConfigError(f"{path}: line 1: missing column {name}")
        for cells in filter(None, lines):
            location = f"{path}: line {lines.line_num}"
            if len(cells) != len(header):
                raise ConfigError(
                    f"{location} has {len(cells)} cells, but the header has {len(header)}"
                )
            request = read_request(location, dict(zip(header, cells, strict=True)))
            if request.arrival_s < last_arrival_s:
                raise ConfigError(f"{location}: rows must be in order of arrival")
            last_arrival_s = request.arrival_s
            yield request
    except csv.Error as error:
        raise ConfigError(f"{path}: line {lines.line_num}: {error}") from None
