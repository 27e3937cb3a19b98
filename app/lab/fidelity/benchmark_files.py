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
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from app.lab.load.report import twelve
from app.lab.load.trace import LoadTrace
from config import ConfigError

MOST_BYTES = 1 << 30
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}
TOKENS = ("input_tokens", "output_tokens")
MOMENTS = ("arrival_s", "send_s", "first_s", "last_s")
Document = Mapping[str, object]


class MeasuredRun(Struct, kw_only=True):
    """A run as seen by its client: requests in order of arrival, times in seconds."""

    name: str
    arrival_s: list[float]
    """Times planned by the load."""
    send_s: list[float]
    first_s: list[float]
    last_s: list[float]
    input_tokens: list[int]
    output_tokens: list[int]
    in_flight: int | None = None
    """Most requests that the client had in flight; None if unlimited or not in the file."""
    notes: list[str] = []
    """Remarks about the file, for users."""

    @property
    def load(self) -> LoadTrace:
        columns = array("d", self.arrival_s), array("i", self.input_tokens), array("i", self.output_tokens)
        return LoadTrace(self.name, *columns)

    def figures(self) -> list[float]:
        return twelve(self.send_s, self.first_s, self.last_s, self.output_tokens)


class Row(Struct, kw_only=True):
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
        arrival_s, send_s, first_s, last_s = moments = [getattr(self, name) for name in MOMENTS]
        tokens, sent = [self.input_tokens, self.output_tokens], f"sent at {send_s:g} s"
        few = f"a request has at least one token in and out, not {tokens[0]} and {tokens[1]}"
        ends = f"first token at {first_s:g} s, last at {last_s:g} s"
        rules = (
            (all(map(math.isfinite, moments)), "moments must be finite numbers"),
            (min(moments) >= 0, "moments must not be negative"),
            (min(tokens) > 0, few),
            (arrival_s <= send_s + 1e-6, f"{sent}, before its arrival at {arrival_s:g} s"),
            (send_s < first_s <= last_s + 1e-9, f"{sent}, {ends}: they must follow each other"),
        )
        return next((rule for holds, rule in rules if not holds), "")


def read_recordings(path: str) -> list[MeasuredRun]:
    """Returns the runs in a file. Raises ConfigError, in one line, for any mistake."""
    text = _text(path)
    if not text.lstrip().startswith("{"):
        return [_run(path, list(_csv(path, text)))]
    documents = list(_documents(path, text))
    first = documents[0][1]
    if "benchmarks" in first:
        return list(_guidellm(path, first))
    if "metrics" in first and "metadata" in first:
        return [_run(path, list(_aiperf(path, documents)))]
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


def _documents(path: str, text: str) -> Iterator[tuple[str, Document]]:
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


def _row(path: str, place: str, columns: Document) -> Row:
    """Checks a request. One of `arrival_s` and `send_s` stands for both."""
    at_s = columns.get("arrival_s", columns.get("send_s"))
    try:
        row = msgspec.convert(
            {"send_s": at_s, "arrival_s": at_s, **columns, "place": place}, Row, strict=False
        )
    except msgspec.ValidationError as error:
        raise _wrong(path, place, str(error)) from None
    if row.flaw:
        raise _wrong(path, place, row.flaw)
    return row


def _run(
    path: str, rows: list[Row], part: str = "", in_flight: int | None = None, notes: Sequence[str] = ()
) -> MeasuredRun:
    """Returns the run of rows, sorted by arrival; the first arrives at 0."""
    if not rows:
        raise _wrong(path, part, "has no requests")
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


def _csv(path: str, text: str) -> Iterator[Row]:
    """Yields the rows of a CSV file, which may lack one of arrival and send."""
    lines, before_s = csv.reader(io.StringIO(text)), 0.0
    try:
        header = [name.strip() for name in next(lines)]
        missing = [name for name in (*TOKENS, "first_s", "last_s") if name not in header]
        if "arrival_s" not in header and "send_s" not in header:
            missing.insert(0, "arrival_s or send_s")
        if missing:
            raise _wrong(path, "line 1", f"there is no column {missing[0]}")
        for cells in filter(None, lines):
            place = f"line {lines.line_num}"
            if len(cells) != len(header):
                raise _wrong(path, place, f"has {len(cells)} cells, the header {len(header)}")
            row = _row(path, place, dict(zip(header, cells, strict=True)))
            if row.arrival_s < before_s:
                raise _wrong(path, place, "rows must be in order of arrival")
            before_s = row.arrival_s
            yield row
    except csv.Error as error:
        raise _wrong(path, f"line {lines.line_num}", str(error)) from None


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
}


def _vllm(path: str, document: Document, part: str) -> MeasuredRun:
    """Reads a result of vllm bench serve; `start_times` are on its own clock, `itls` between chunks."""
    for name, rule in VLLM_LACKS.items():
        if name not in document:
            raise _wrong(path, part, rule)
    try:
        its = msgspec.convert(document, _Vllm)
    except msgspec.ValidationError as error:
        raise _wrong(path, part, str(error)) from None
    columns = (its.start_times, its.ttfts, its.itls, its.input_lens, its.output_lens)
    if len({len(column) for column in columns}) != 1:
        raise _wrong(path, part, "start_times, ttfts, itls, input_lens and output_lens differ in length")
    for number, failure in enumerate(its.errors, 1):
        if failure:
            short = " ".join(failure.split())[:100]
            raise _wrong(path, part, f"request {number}: has failed ({short}); all must have succeeded")
    rows = []
    for number, (send_s, ttft_s, itls, *tokens) in enumerate(zip(*columns, strict=True), 1):
        first_s = send_s + ttft_s
        moments = {"send_s": send_s, "first_s": first_s, "last_s": first_s + sum(itls)}
        place = ", ".join(filter(None, (part, f"request {number}")))
        rows.append(_row(path, place, moments | dict(zip(TOKENS, tokens, strict=True))))
    return _run(path, rows, part, its.max_concurrency)


INFOS = ("info.timings", "info.request_timings", "scheduler_info.request_timings")
GUIDELLM = {
    "send_s": (*(f"{info}.request_start" for info in INFOS), "start_time"),
    "first_s": (
        *(f"{info}.{name}" for info in INFOS for name in ("first_token_iteration", "first_iteration")),
        "first_token_time",
    ),
    "last_s": (
        *(f"{info}.{name}" for info in INFOS for name in ("last_token_iteration", "last_iteration")),
        "last_token_time",
    ),
    "input_tokens": ("prompt_tokens",),
    "output_tokens": ("output_tokens",),
}
"""Paths of each column in a request: of tokens from guidellm 0.5 on, of iterations in 0.4, flat in 0.3."""


def _guidellm(path: str, document: Document) -> Iterator[MeasuredRun]:
    benchmarks = _list(document, "benchmarks")
    if not benchmarks:
        raise ConfigError(f"{path}: has no benchmarks")
    for number, benchmark in enumerate(benchmarks, 1):
        part = f"benchmark {number}" if len(benchmarks) > 1 else ""
        if errored := _list(benchmark, "requests.errored"):
            raise _wrong(path, part, f"{len(errored)} requests have failed; all must have succeeded")
        rows = []
        for place, request in enumerate(_list(benchmark, "requests.successful"), 1):
            at = ", ".join(filter(None, (part, f"request {place}")))
            columns = {name: _first(request, paths) for name, paths in GUIDELLM.items()}
            if None in [columns[name] for name in MOMENTS[1:]]:
                raise _wrong(path, at, "has no moments of its first and last token; guidellm must stream")
            rows.append(_row(path, at, columns))
        cut = len(_list(benchmark, "requests.incomplete"))
        notes = [f"{cut} requests that the end of the run cut off are left out"] if cut else []
        yield _run(path, rows, part, notes=notes)


def _first(document: object, paths: Sequence[str]) -> object:
    """Returns the first value that is there at one of the dotted `paths`; None without any."""
    for path in paths:
        value = document
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            return value
    return None


def _list(document: object, path: str) -> list[object]:
    found = _first(document, (path,))
    return found if isinstance(found, list) else []


def _aiperf(path: str, documents: Sequence[tuple[str, Document]]) -> Iterator[Row]:
    for number, (given, document) in enumerate(documents, 1):
        place = given or f"line {number}"
        if _first(document, ("metadata.benchmark_phase",)) not in (None, "profiling"):
            continue
        if document.get("error") is not None or _first(document, ("metadata.was_cancelled",)):
            raise _wrong(path, place, "the request has failed; all must have succeeded")
        started_ns = _first(document, ("metadata.request_start_ns",))
        send_s = started_ns / 1e9 if isinstance(started_ns, int) else math.nan
        moments = {
            "send_s": send_s,
            "first_s": send_s + _metric(path, place, document, "time_to_first_token"),
            "last_s": send_s + _metric(path, place, document, "request_latency"),
        }
        counts = [_metric(path, place, document, f"{end}_sequence_length") for end in ("input", "output")]
        yield _row(path, place, moments | dict(zip(TOKENS, map(int, counts), strict=True)))


def _metric(path: str, place: str, document: Document, name: str) -> float:
    """Returns a metric in seconds or tokens."""
    value, unit = (_first(document, (f"metrics.{name}.{part}",)) for part in ("value", "unit"))
    if not isinstance(value, int | float):
        hint = "; aiperf must run with --streaming" if name == "time_to_first_token" else ""
        raise _wrong(path, place, f"has no {name}{hint}")
    if name.endswith("_length"):
        return value
    if unit not in UNITS:
        raise _wrong(path, place, f"{name}: unit {unit!r} is none of {', '.join(UNITS)}")
    return value * UNITS[str(unit)]
