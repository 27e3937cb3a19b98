"""Reads recorded runs from the files of benchmarks, whose kind is detected by content.

Supported are results of `vllm bench serve --save-result --save-detailed` (vLLM 0.15 to 0.23; appended ones,
too), guidellm's report (0.3 to 0.6), aiperf's `profile_export.jsonl` (0.8 to 0.13), and CSV files of
`python -m app record`. Any mistake in a file is an error, in one line with file, place and rule: a fit to a
part of a load would be wrong.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from app.lab.fidelity.fitting import MeasuredRun
from config import ConfigError

MOST_BYTES = 1 << 30
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}
TOKENS = ("input_tokens", "output_tokens")
MOMENTS = ("arrival_s", "send_s", "first_s", "last_s")
TYPE = TypeVar("TYPE", bound=Struct)


class Row(Struct):
    """A request of a file; `place` is its place, for error messages."""

    place: str
    arrival_s: float
    send_s: float
    first_s: float
    last_s: float
    input_tokens: int
    output_tokens: int

    @property
    def flaw(self) -> str:
        """The rule that the row breaks; "" if none."""
        moments = (self.arrival_s, self.send_s, self.first_s, self.last_s)
        tokens, sent = (self.input_tokens, self.output_tokens), f"sent at {self.send_s:g} s"
        if not all(map(math.isfinite, moments)):
            return "moments must be finite numbers"
        if min(moments) < 0:
            return "moments must not be negative"
        if min(tokens) < 1:
            return f"a request has at least one token in and out, not {tokens[0]} and {tokens[1]}"
        if self.arrival_s > self.send_s + 1e-6:
            return f"{sent}, before its arrival at {self.arrival_s:g} s"
        if not self.send_s < self.first_s <= self.last_s + 1e-9:
            ends = f"first token at {self.first_s:g} s, last at {self.last_s:g} s"
            return f"{sent}, {ends}: they must follow each other"
        return ""


def read_recordings(path: str) -> list[MeasuredRun]:
    """Returns the runs in a file. Raises ConfigError, in one line, for any mistake."""
    text = _text(path)
    if not text.lstrip().startswith("{"):
        return [_csv(path, text)]
    documents = list(_documents(path, text))
    first = documents[0][1]
    if "benchmarks" in first:
        return _guidellm(path, first)
    if "metrics" in first and "metadata" in first:
        return [_aiperf(path, documents)]
    if "ttfts" in first or "total_output_tokens" in first:
        return [_vllm(path, document, place) for place, document in documents]
    if "input_config" in first or "aiperf_version" in first:
        raise ConfigError(f"{path}: is aiperf's summary; the requests are in profile_export.jsonl beside it")
    raise ConfigError(f"{path}: is no file of vllm bench serve, guidellm or aiperf that is known here")


def _text(path: str) -> str:
    try:
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
            content = file.read(MOST_BYTES + 1)
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8") from None
    except (OSError, EOFError) as error:
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > MOST_BYTES:
        raise ConfigError(f"{path}: must not be larger than {MOST_BYTES >> 20} MiB")
    if not text.strip():
        raise ConfigError(f"{path}: is empty")
    return text


def _documents(path: str, text: str) -> Iterator[tuple[str, dict[str, object]]]:
    """Yields place and content of the JSON object, or of each line's object."""
    lines: Sequence[tuple[str, str]] = [("", text)]
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except msgspec.DecodeError:
        numbered = enumerate(text.splitlines(), 1)
        lines = [(f"line {number}", line) for number, line in numbered if line.strip()]
    for place, line in lines:
        try:
            yield place, msgspec.json.decode(line, type=dict[str, object])
        except msgspec.DecodeError as error:
            raise _wrong(path, place, f"is not a JSON object: {error}") from None


def _wrong(path: str, place: str, rule: str) -> ConfigError:
    return ConfigError(": ".join(filter(None, (path, place, rule))))


def _request(part: str, number: int) -> str:
    """Returns the place of a request in a file that may have several parts."""
    return f"{part}, request {number}" if part else f"request {number}"


def _as(path: str, place: str, document: object, type: type[TYPE]) -> TYPE:
    try:
        return msgspec.convert(document, type)
    except msgspec.ValidationError as error:
        raise _wrong(path, place, str(error)) from None


def _recording(
    path: str, rows: list[Row], in_flight: int | None = None, part: str = "", notes: Sequence[str] = ()
) -> MeasuredRun:
    """Checks rows, and sorts them by arrival; the first arrives at 0."""
    if not rows:
        raise _wrong(path, part, "has no requests")
    for row in rows:
        if flaw := row.flaw:
            raise _wrong(path, row.place, flaw)
    if all(row.output_tokens == 1 for row in rows):
        raise _wrong(path, part, "no request has more than one output token, so none has an ITL")
    rows = sorted(rows, key=lambda row: row.arrival_s)
    start_s = rows[0].arrival_s
    return MeasuredRun(
        name=Path(path).name.partition(".")[0] + (f" {part}" if part else ""),
        **{name: [getattr(row, name) - start_s for row in rows] for name in MOMENTS},
        **{name: [getattr(row, name) for row in rows] for name in TOKENS},
        in_flight=in_flight,
        notes=list(notes),
    )


def _csv(path: str, text: str) -> MeasuredRun:
    """Reads the CSV of `python -m app record`, which may lack one of arrival and send."""
    lines = csv.reader(io.StringIO(text))
    try:
        header = [name.strip() for name in next(lines)]
        missing = [name for name in (*TOKENS, "first_s", "last_s") if name not in header]
        if "arrival_s" not in header and "send_s" not in header:
            missing.insert(0, "arrival_s or send_s")
        if missing:
            raise _wrong(path, "line 1", f"there is no column {missing[0]}")
        rows: list[Row] = []
        for cells in filter(None, lines):
            row = _csv_row(path, f"line {lines.line_num}", header, cells)
            if rows and row.arrival_s < rows[-1].arrival_s:
                raise _wrong(path, row.place, "rows must be in order of arrival")
            rows.append(row)
    except csv.Error as error:
        raise _wrong(path, f"line {lines.line_num}", str(error)) from None
    return _recording(path, rows)


def _csv_row(path: str, place: str, header: Sequence[str], cells: Sequence[str]) -> Row:
    if len(cells) != len(header):
        raise _wrong(path, place, f"has {len(cells)} cells, the header {len(header)}")
    given, moments = dict(zip(header, cells, strict=True)), {}
    for name in MOMENTS:
        if name in given:
            try:
                moments[name] = float(given[name])
            except ValueError:
                raise _wrong(path, place, f"{name} {given[name]!r} must be a number") from None
    for name in TOKENS:
        if not (given[name].isascii() and given[name].isdecimal()):
            raise _wrong(path, place, f"{name} {given[name]!r} must be a whole number")
    send_s = moments.get("send_s", moments.get("arrival_s", 0.0))
    arrival_s = moments.get("arrival_s", send_s)
    counts = (int(given[name]) for name in TOKENS)
    return Row(place, arrival_s, send_s, moments["first_s"], moments["last_s"], *counts)


class _Vllm(Struct):
    input_lens: list[int]
    output_lens: list[int]
    ttfts: list[float]
    itls: list[list[float]]
    start_times: list[float]
    errors: list[str | None] = []
    max_concurrency: int | None = None


VLLM_LACKS = {
    "ttfts": "has no single requests: vllm bench serve wants --save-detailed for them",
    "start_times": "has no start_times: vllm bench serve writes them from vLLM 0.15 on",
    **{name: f"has no {name}" for name in ("input_lens", "output_lens", "itls")},
}


def _vllm(path: str, document: dict[str, object], part: str) -> MeasuredRun:
    """Reads a result of vllm bench serve; `start_times` are on its own clock, `itls` between chunks."""
    for name, rule in VLLM_LACKS.items():
        if name not in document:
            raise _wrong(path, part, rule)
    it = _as(path, part, document, _Vllm)
    columns = (it.start_times, it.ttfts, it.itls, it.input_lens, it.output_lens)
    if len({len(column) for column in columns}) != 1:
        raise _wrong(path, part, "start_times, ttfts, itls, input_lens and output_lens differ in length")
    for number, failure in enumerate(it.errors, 1):
        if failure:
            short = " ".join(failure.split())[:100]
            raise _wrong(path, part, f"request {number}: has failed ({short}); all must have succeeded")
    rows = []
    for number, (start_s, ttft_s, itls, tokens, output) in enumerate(zip(*columns, strict=True), 1):
        first_s = start_s + ttft_s
        moments = start_s, start_s, first_s, first_s + sum(itls)
        rows.append(Row(_request(part, number), *moments, tokens, output))
    return _recording(path, rows, it.max_concurrency, part)


class _Timings(Struct, frozen=True):
    request_start: float | None = None
    first_token_iteration: float | None = None
    last_token_iteration: float | None = None
    first_iteration: float | None = None
    last_iteration: float | None = None


class _Info(Struct):
    timings: _Timings = _Timings()
    request_timings: _Timings = _Timings()


class _GuidellmRequest(Struct):
    """A request with times in `info.timings`: of tokens from 0.5 on, of iterations in 0.4; flat in 0.3."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    info: _Info | None = None
    scheduler_info: _Info | None = None
    start_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None


class _GuidellmRequests(Struct):
    successful: list[_GuidellmRequest]
    incomplete: list[object] = []
    errored: list[object] = []


class _GuidellmBenchmark(Struct):
    requests: _GuidellmRequests


class _Guidellm(Struct):
    benchmarks: list[_GuidellmBenchmark]


def _guidellm(path: str, document: dict[str, object]) -> list[MeasuredRun]:
    benchmarks = _as(path, "", document, _Guidellm).benchmarks
    if not benchmarks:
        raise ConfigError(f"{path}: has no benchmarks")
    recordings = []
    for number, benchmark in enumerate(benchmarks, 1):
        part = f"benchmark {number}" if len(benchmarks) > 1 else ""
        requests = benchmark.requests
        if requests.errored:
            failed = f"{len(requests.errored)} requests have failed; all must have succeeded"
            raise _wrong(path, part, failed)
        rows = [
            _guidellm_row(path, _request(part, place), request)
            for place, request in enumerate(requests.successful, 1)
        ]
        cut = len(requests.incomplete)
        notes = [f"{cut} requests that the end of the run cut off are left out"] if cut else []
        recordings.append(_recording(path, rows, None, part, notes))
    return recordings


def _guidellm_row(path: str, place: str, request: _GuidellmRequest) -> Row:
    send_s, first_s, last_s = request.start_time, request.first_token_time, request.last_token_time
    info = request.info or request.scheduler_info
    if info is not None:
        timings = info.timings if info.timings.request_start is not None else info.request_timings
        send_s = timings.request_start
        first_s = timings.first_token_iteration or timings.first_iteration
        last_s = timings.last_token_iteration or timings.last_iteration
    if send_s is None or first_s is None or last_s is None:
        raise _wrong(path, place, "has no moments of its first and last token; guidellm must stream")
    if request.prompt_tokens is None or request.output_tokens is None:
        raise _wrong(path, place, "has no numbers of tokens")
    return Row(place, send_s, send_s, first_s, last_s, request.prompt_tokens, request.output_tokens)


class _Value(Struct):
    value: float
    unit: str = ""


class _Metadata(Struct):
    request_start_ns: int
    benchmark_phase: str = "profiling"
    was_cancelled: bool = False


class _Aiperf(Struct):
    metadata: _Metadata
    metrics: dict[str, object]
    error: object = None


AIPERF_METRICS = ("time_to_first_token", "request_latency", "input_sequence_length", "output_sequence_length")


def _aiperf(path: str, documents: Sequence[tuple[str, dict[str, object]]]) -> MeasuredRun:
    rows = []
    for number, (given, document) in enumerate(documents, 1):
        place = given or f"line {number}"
        record = _as(path, place, document, _Aiperf)
        if record.metadata.benchmark_phase != "profiling":
            continue
        if record.error is not None or record.metadata.was_cancelled:
            raise _wrong(path, place, "the request has failed; all must have succeeded")
        ttft_s, latency_s, tokens, output = (_metric(path, place, record, name) for name in AIPERF_METRICS)
        send_s = record.metadata.request_start_ns / 1e9
        rows.append(Row(place, send_s, send_s, send_s + ttft_s, send_s + latency_s, int(tokens), int(output)))
    return _recording(path, rows)


def _metric(path: str, place: str, record: _Aiperf, name: str) -> float:
    """Returns a metric in seconds or tokens."""
    if name not in record.metrics:
        hint = "; aiperf must run with --streaming" if name == "time_to_first_token" else ""
        raise _wrong(path, place, f"has no {name}{hint}")
    metric = _as(path, f"{place}: {name}", record.metrics[name], _Value)
    if name.endswith("_length"):
        return metric.value
    if metric.unit not in UNITS:
        raise _wrong(path, place, f"{name}: unit {metric.unit!r} is none of {', '.join(UNITS)}")
    return metric.value * UNITS[metric.unit]
