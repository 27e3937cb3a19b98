"""Reads recorded runs from the files of benchmarks, whose kind is detected by content.

Supported files:

* results of `vllm bench serve --save-result --save-detailed` (vLLM 0.15 to 0.23, also appended);
* reports of GuideLLM (0.3 to 0.6);
* `profile_export.jsonl` of AIPerf (0.8 to 0.13);
* CSV files of `python -m app record`.

Any mistake in a file is an error, in one line with file,
place and rule: a fit to a part of a load would be wrong.
"""

import csv
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from app.extensions.lab.fidelity.benchmark_formats import (
    Document,
    read_aiperf,
    read_guidellm,
    read_vllm,
)
from app.extensions.lab.fidelity.input_files import (
    InputFile,
    first_bytes,
    json_documents,
    open_input,
    text_lines,
)
from app.extensions.lab.fidelity.measured_run import (
    MeasuredRequest,
    MeasuredRun,
    location_of,
    make_run,
    read_request,
)
from app.extensions.lab.fidelity.trace_kinds import unknown_trace
from config import ConfigError
from config.untrusted import UntrustedDataError, decode_untrusted, python_json


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
    documents = read_documents(path, file)
    first_part, first = next(documents)
    documents = chain([(first_part, first)], documents)
    if "benchmarks" in first:
        return read_guidellm(path, first, skips_failed)
    if "metrics" in first and "metadata" in first:
        return [read_aiperf(path, documents, skips_failed)]
    if "ttfts" in first or "total_output_tokens" in first:
        return [read_vllm(path, part, document, skips_failed) for part, document in documents]
    if "input_config" in first or "aiperf_version" in first:
        raise ConfigError(
            f"{path} is an AIPerf summary; use profile_export.jsonl, which contains the requests"
        )
    if skips_failed:
        raise ConfigError(unknown_trace(path, first))
    raise ConfigError(f"{path} is not a result file of vllm bench serve, GuideLLM, or AIPerf")


def check_not_empty(path: str, file: InputFile) -> None:
    """Raises ConfigError for a file without text."""
    if not first_bytes(file):
        raise ConfigError(f"{path} is empty")


def read_documents(path: str, file: InputFile) -> Iterator[tuple[str, Document]]:
    """Yields JSON objects with their lines; the only object of a file has no line."""
    for number, text in json_documents(file, path):
        part = ""
        if number:
            part = f"line {number}"
        try:
            # Python's JSON has NaN, the mean of no values.
            document = decode_untrusted(text, decoder=python_json)
        except UntrustedDataError as error:
            raise ConfigError(f"{location_of(path, part)} is not a JSON object: {error}") from None
        if not isinstance(document, dict):
            raise ConfigError(f"{location_of(path, part)} is not a JSON object")
        yield part, document


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
