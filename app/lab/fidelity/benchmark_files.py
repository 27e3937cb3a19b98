"""Reads recorded runs from the files of benchmarks, whose kind is detected by content.

Supported are results of `vllm bench serve --save-result --save-detailed` (vLLM 0.15 to 0.23;
appended ones, too), guidellm's report (0.3 to 0.6), aiperf's `profile_export.jsonl` (0.8 to 0.13),
and CSV files of `python -m app record`. Any mistake in a file is an error, in one line with file,
place and rule: a fit to a part of a load would be wrong.
"""

import csv
import gzip
import io
import math
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from app.lab.load.loads import MOST_TOKENS, LoadTrace
from app.lab.load.report import twelve
from config import ConfigError

MOST_BYTES = 1 << 30
GZIP = b"\x1f\x8b"
"""First bytes of a file that is packed."""
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}
Document = Mapping[str, object]


class MeasuredRun(Struct):
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
    notes: Sequence[str] = ()

    @property
    def load(self) -> LoadTrace:
        columns = (
            array("d", self.arrival_s),
            array("i", self.input_tokens),
            array("i", self.output_tokens),
        )
        return LoadTrace(self.name, *columns)

    def figures(self) -> list[float]:
        return twelve(self.send_s, self.first_s, self.last_s, self.output_tokens)


class Row(Struct):
    """A request of a file; times in seconds."""

    arrival_s: float
    send_s: float
    first_s: float
    last_s: float
    input_tokens: int
    output_tokens: int


def _row(where: str, columns: Document) -> Row:
    """Checks a request. One of `arrival_s` and `send_s` stands for both."""
    at_s = columns.get("arrival_s", columns.get("send_s"))
    try:
        row = msgspec.convert({"send_s": at_s, "arrival_s": at_s, **columns}, Row, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from None
    *moments, tokens_in, tokens_out = msgspec.structs.astuple(row)
    arrival_s, send_s, first_s, last_s = moments
    tokens = f"a request has from one to {MOST_TOKENS} tokens in and out, not {tokens_in} and {tokens_out}"
    ends = f"first token at {first_s:g} s, last at {last_s:g} s"
    rules = {
        "moments must be finite numbers": all(map(math.isfinite, moments)),
        "moments must not be negative": min(moments) >= 0,
        tokens: 0 < min(tokens_in, tokens_out) <= max(tokens_in, tokens_out) <= MOST_TOKENS,
        f"sent at {send_s:g} s, before its arrival at {arrival_s:g} s": arrival_s <= send_s + 1e-6,
        f"sent at {send_s:g} s, {ends}: they must follow each other": send_s
        < first_s
        <= last_s + 1e-9,
    }
    for rule, holds in rules.items():
        if not holds:
            raise ConfigError(f"{where}: {rule}")
    return row


def read_recordings(path: str) -> list[MeasuredRun]:
    """Returns the runs in a file. Raises ConfigError, in one line, for any mistake."""
    text = _text(path)
    if not text.lstrip().startswith("{"):
        return [_run(path, "", _csv(path, text))]
    documents = list(_documents(path, text))
    first = documents[0][1]
    if "benchmarks" in first:
        return _guidellm(path, first)
    if "metrics" in first and "metadata" in first:
        return [_run(path, "", _aiperf(path, documents))]
    if "ttfts" in first or "total_output_tokens" in first:
        return [_vllm(path, part, document) for part, document in documents]
    if "input_config" in first or "aiperf_version" in first:
        raise ConfigError(
            f"{path}: is aiperf's summary; the requests are in profile_export.jsonl beside it"
        )
    raise ConfigError(
        f"{path}: is no file of vllm bench serve, guidellm or aiperf that is known here"
    )


@contextmanager
def opened(path: Path) -> Iterator[tuple[io.BufferedReader, io.BufferedReader | gzip.GzipFile]]:
    """Yields a file as it is, and unpacked.

    Raises ConfigError where the file or its text cannot be read.
    """
    try:
        with path.open("rb") as packed:
            yield packed, gzip.GzipFile(fileobj=packed) if packed.peek(2)[:2] == GZIP else packed
    except UnicodeDecodeError:
        raise ConfigError(
            f"{path}: it is neither text in UTF-8 nor such text packed by gzip"
        ) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ConfigError(f"{path}: it cannot be unpacked: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None


def _text(path: str) -> str:
    with opened(Path(path)) as (_, file):
        text = (content := file.read(MOST_BYTES + 1)).decode("utf-8-sig")
    if len(content) > MOST_BYTES:
        raise ConfigError(f"{path}: must not be larger than {MOST_BYTES >> 20} MiB")
    if not text.strip():
        raise ConfigError(f"{path}: is empty")
    return text


def _documents(path: str, text: str) -> Iterator[tuple[str, Document]]:
    lines: Sequence[tuple[str, str]] = [("", text)]
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        numbered = enumerate(text.splitlines(), 1)
        lines = [(f"line {number}", line) for number, line in numbered if line.strip()]
    for part, line in lines:
        try:
            yield part, msgspec.json.decode(line, type=dict[str, object])
        except (msgspec.DecodeError, RecursionError) as error:
            raise ConfigError(f"{_where(path, part)}: is not a JSON object: {error}") from None


def _where(path: str, part: str) -> str:
    return f"{path}: {part}" if part else path


def _run(
    path: str,
    part: str,
    given: Iterable[Row],
    in_flight: int | None = None,
    notes: Sequence[str] = (),
) -> MeasuredRun:
    """Returns the run of rows, sorted by arrival; the first arrives at 0."""
    rows = sorted(given, key=lambda row: row.arrival_s)
    if not rows:
        raise ConfigError(f"{_where(path, part)}: has no requests")
    if all(row.output_tokens == 1 for row in rows):
        rule = "no request has more than one output token, so none has an ITL"
        raise ConfigError(f"{_where(path, part)}: {rule}")
    *moments, tokens_in, tokens_out = map(
        list, zip(*map(msgspec.structs.astuple, rows), strict=True)
    )
    start_s = rows[0].arrival_s
    arrival_s, send_s, first_s, last_s = [[at_s - start_s for at_s in column] for column in moments]
    name = Path(path).name.partition(".")[0] + (f" {part}" if part else "")
    return MeasuredRun(
        name, arrival_s, send_s, first_s, last_s, tokens_in, tokens_out, in_flight, notes
    )


def _csv(path: str, text: str) -> Iterator[Row]:
    """Yields the rows of a CSV file, which may lack one of arrival and send."""
    lines, before_s = csv.reader(io.StringIO(text)), 0.0
    try:
        header = [name.strip() for name in next(lines)]
        wanted = ["input_tokens", "output_tokens", "first_s", "last_s"]
        if "send_s" not in header:
            wanted.insert(0, "arrival_s")
        for name in wanted:
            if name not in header:
                raise ConfigError(f"{path}: line 1: there is no column {name}")
        for cells in filter(None, lines):
            where = f"{path}: line {lines.line_num}"
            if len(cells) != len(header):
                raise ConfigError(f"{where}: has {len(cells)} cells, the header {len(header)}")
            row = _row(where, dict(zip(header, cells, strict=True)))
            if row.arrival_s < before_s:
                raise ConfigError(f"{where}: rows must be in order of arrival")
            before_s = row.arrival_s
            yield row
    except csv.Error as error:
        raise ConfigError(f"{path}: line {lines.line_num}: {error}") from None


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


def _vllm(path: str, part: str, document: Document) -> MeasuredRun:
    """Reads a result of vllm bench serve; `start_times` are on its own clock, `itls` between
    chunks.
    """
    where, rows = _where(path, part), []
    for name, rule in VLLM_LACKS.items():
        if name not in document:
            raise ConfigError(f"{where}: {rule}")
    try:
        its = msgspec.convert(document, _Vllm)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from None
    columns = (its.start_times, its.ttfts, its.itls, its.input_lens, its.output_lens)
    if len({len(column) for column in columns}) != 1:
        raise ConfigError(
            f"{where}: start_times, ttfts, itls, input_lens and output_lens differ in length"
        )
    for number, failure in enumerate(its.errors, 1):
        if failure:
            short = " ".join(failure.split())[:100]
            raise ConfigError(
                f"{where}: request {number}: has failed ({short}); all must have succeeded"
            )
    for number, (send_s, ttft_s, itls, *tokens) in enumerate(zip(*columns, strict=True), 1):
        first_s = send_s + ttft_s
        found = {"send_s": send_s, "first_s": first_s, "last_s": first_s + sum(itls)}
        found |= {"input_tokens": tokens[0], "output_tokens": tokens[1]}
        rows.append(_row(f"{where}: request {number}", found))
    return _run(path, part, rows, its.max_concurrency)


INFOS = ("info.timings", "info.request_timings", "scheduler_info.request_timings")
GUIDELLM = {
    "send_s": (*(f"{info}.request_start" for info in INFOS), "start_time"),
    "first_s": (
        *(
            f"{info}.{name}"
            for info in INFOS
            for name in ("first_token_iteration", "first_iteration")
        ),
        "first_token_time",
    ),
    "last_s": (
        *(
            f"{info}.{name}"
            for info in INFOS
            for name in ("last_token_iteration", "last_iteration")
        ),
        "last_token_time",
    ),
    "input_tokens": ("prompt_tokens",),
    "output_tokens": ("output_tokens",),
}
"""Paths of each column in a request:

of tokens from guidellm 0.5 on, of iterations in 0.4, flat in 0.3.
"""


def _guidellm(path: str, document: Document) -> list[MeasuredRun]:
    benchmarks, runs = _list(document, "benchmarks"), []
    if not benchmarks:
        raise ConfigError(f"{path}: has no benchmarks")
    for number, benchmark in enumerate(benchmarks, 1):
        part = f"benchmark {number}" if len(benchmarks) > 1 else ""
        where, rows = _where(path, part), []
        if errored := _list(benchmark, "requests.errored"):
            raise ConfigError(
                f"{where}: {len(errored)} requests have failed; all must have succeeded"
            )
        for place, request in enumerate(_list(benchmark, "requests.successful"), 1):
            columns = {name: _first(request, paths) for name, paths in GUIDELLM.items()}
            if None in (columns["send_s"], columns["first_s"], columns["last_s"]):
                rule = "has no moments of its first and last token; guidellm must stream"
                raise ConfigError(f"{where}: request {place}: {rule}")
            rows.append(_row(f"{where}: request {place}", columns))
        cut = len(_list(benchmark, "requests.incomplete"))
        notes = [f"{cut} requests that the end of the run cut off are left out"] if cut else []
        runs.append(_run(path, part, rows, notes=notes))
    return runs


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


AIPERF = {
    **{"first_s": "time_to_first_token", "last_s": "request_latency"},
    **{"input_tokens": "input_sequence_length", "output_tokens": "output_sequence_length"},
}
"""Metrics by column: a time since the request was sent, or tokens."""


def _aiperf(path: str, documents: Sequence[tuple[str, Document]]) -> Iterator[Row]:
    for number, (part, document) in enumerate(documents, 1):
        where = _where(path, part or f"line {number}")
        if _first(document, ("metadata.benchmark_phase",)) not in (None, "profiling"):
            continue
        if document.get("error") is not None or _first(document, ("metadata.was_cancelled",)):
            raise ConfigError(f"{where}: the request has failed; all must have succeeded")
        started_ns = _first(document, ("metadata.request_start_ns",))
        send_s = started_ns / 1e9 if isinstance(started_ns, int) else math.nan
        columns: dict[str, object] = {"send_s": send_s}
        for column, name in AIPERF.items():
            value, unit = (
                _first(document, (f"metrics.{name}.{key}",)) for key in ("value", "unit")
            )
            if not isinstance(value, int | float):
                hint = "; aiperf must run with --streaming" if column == "first_s" else ""
                raise ConfigError(f"{where}: has no {name}{hint}")
            if column.endswith("_s") and unit not in UNITS:
                raise ConfigError(f"{where}: {name}: unit {unit!r} is none of {', '.join(UNITS)}")
            columns[column] = (
                send_s + value * UNITS[str(unit)] if column.endswith("_s") else int(value)
            )
        yield _row(where, columns)
