"""Reads exports of load tools, whose kind is detected by content: `read_exports`.

The readers keep requests that failed; `benchmark_files` makes recordings of runs without failures.
docs/judge.md lists the tools with their versions and files.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

import msgspec

from app.core.server.http.event_stream import events_of
from config import ConfigError
from config.untrusted import UntrustedDataError, decode_untrusted, python_json
from workbench.runs.input_files import (
    InputFile,
    first_bytes,
    json_documents,
    read_document,
)
from workbench.runs.measured_run import location_of
from workbench.runs.tool_requests import Export, ToolRequest

Document = Mapping[str, object]

GUIDELLM = "GuideLLM"
AIPERF = "AIPerf"
INFERENCE_PERF = "inference-perf"
VLLM = "vllm bench serve"
LOCUST = "Locust"
TOOLS = (GUIDELLM, AIPERF, INFERENCE_PERF, VLLM, LOCUST)
KEYS_OF_TOOLS: Mapping[str, Sequence[set[str]]] = {
    GUIDELLM: [{"benchmarks"}],
    AIPERF: [{"metadata", "metrics"}],
    VLLM: [{"ttfts"}, {"total_output_tokens"}],
    LOCUST: [{"response_time", "start_time"}],
}
"""Sets of keys; the first object of a tool's file has all keys of one of its sets."""
GUIDELLM_TIMINGS = ("info.timings", "info.request_timings", "scheduler_info.request_timings")
VLLM_REQUIRED = {
    "ttfts": "contains no request times; run vllm bench serve with --save-detailed",
    "start_times": "has no start_times; vllm bench serve writes them from vLLM 0.15 on",
}
"""Error messages by missing key."""
NANOSECONDS = 1e-9
MILLISECONDS = 1e-3
SECONDS_OF_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}


class UnknownExportError(ConfigError):
    """A file whose first object, which has the keys `names`, is of no load tool."""

    def __init__(self, message: str, names: Sequence[str]) -> None:
        super().__init__(message)
        self.names = names


def read_exports(path: str, file: InputFile, tools: Sequence[str] = TOOLS) -> list[Export]:
    """Returns the runs in an open file of one of `tools`.

    Raises:
        ConfigError: The file is not an export of these tools, or has a mistake.
    """
    check_not_empty(path, file)
    if first_bytes(file).startswith(b"[") and INFERENCE_PERF in tools:
        return [_read_inference_perf(path, _objects(path, read_document(file, path)))]
    documents = read_documents(path, file)
    first_part, first = next(documents)
    documents = chain([(first_part, first)], documents)
    tool = _tool_of(first)
    if tool not in tools:
        if "input_config" in first or "aiperf_version" in first:
            raise ConfigError(
                f"{path} is an AIPerf summary; use profile_export.jsonl, which contains the"
                " requests"
            )
        names = f"{', '.join(tools[:-1])}, or {tools[-1]}"
        message = f"{path} is not a recognized export from {names}"
        raise UnknownExportError(message, list(first))
    if tool == GUIDELLM:
        return _read_guidellm(path, first)
    if tool == VLLM:
        return [_read_vllm(location_of(path, part), part, document) for part, document in documents]
    rows = _rows(path, documents)
    if tool == AIPERF:
        return [_read_aiperf(rows)]
    return [_read_locust(rows)]


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


def _tool_of(document: Document) -> str:
    for tool, keys_of_tool in KEYS_OF_TOOLS.items():
        if any(document.keys() >= keys for keys in keys_of_tool):
            return tool
    return ""


def _objects(path: str, text: bytes) -> list[Document]:
    try:
        documents: list[Document] = decode_untrusted(text, type=list[dict[str, object]])
    except UntrustedDataError as error:
        raise ConfigError(f"{path} is not a list of JSON objects: {error}") from None
    return documents


def _rows(path: str, documents: Iterable[tuple[str, Document]]) -> Iterator[Fields]:
    """Yields the requests of a file with one request in a line."""
    for number, (part, document) in enumerate(documents, 1):
        yield Fields(location_of(path, part or f"line {number}"), document)


class Fields:
    """Reads values of a request by dotted paths; a wrong type is a ConfigError with the place."""

    def __init__(self, place: str, document: object) -> None:
        self.place = place
        self._document = document

    def value(self, path: str) -> object:
        """Returns the value at a path; None if it is missing."""
        return _value_at(self._document, path)

    def number(self, path: str, unit_s: float = 1.0) -> float | None:
        """Returns a number times `unit_s`; None if it is missing."""
        value = self.value(path)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{self.place}: {path} must be a number")
        try:
            return value * unit_s
        except OverflowError:
            raise ConfigError(f"{self.place}: times must be finite numbers") from None

    def moment(self, path: str, unit_s: float = 1.0) -> float:
        """Returns a number that must be there."""
        value = self.number(path, unit_s)
        if value is None:
            raise ConfigError(f"{self.place} has no {path}")
        return value

    def first_number(self, paths: Iterable[str]) -> float | None:
        """Returns the number at the first of `paths` that has one; None if all are missing."""
        for path in paths:
            value = self.number(path)
            if value is not None:
                return value
        return None

    def count(self, path: str) -> int | None:
        """Returns a whole number; None if it is missing."""
        value = self.number(path)
        if value is None:
            return None
        return int(value)

    def text(self, path: str) -> str | None:
        """Returns a text; None if it is missing."""
        value = self.value(path)
        if value is None or isinstance(value, str):
            return value
        raise ConfigError(f"{self.place}: {path} must be a string")

    def numbers(self, path: str) -> list[float]:
        """Returns a list of numbers; an empty one if it is missing."""
        values = self.value(path)
        try:
            return msgspec.convert(values or [], list[float])
        except msgspec.ValidationError as error:
            raise ConfigError(f"{self.place}: {path}: {error}") from None

    def ids(self, *paths: str) -> tuple[str, ...]:
        """Returns the texts that are there."""
        texts = [self.text(path) for path in paths]
        return tuple(text for text in texts if text)


def _value_at(document: object, path: str) -> object:
    """Returns the value at a dotted path; None if there is no value."""
    for key in path.split("."):
        if not isinstance(document, dict):
            return None
        document = document.get(key)
    return document


def _list_at(document: object, path: str) -> list[object]:
    """Returns the list at a dotted path; an empty one if there is no list."""
    value = _value_at(document, path)
    if isinstance(value, list):
        return value
    return []


# GuideLLM: tokens have times from 0.5 on, iterations in 0.4; flat in 0.3


def _read_guidellm(path: str, document: Document) -> list[Export]:
    """Reads a report, which has several benchmarks after a sweep."""
    benchmarks = _list_at(document, "benchmarks")
    if not benchmarks:
        raise ConfigError(f"{path} contains no benchmarks")
    exports = []
    for number, benchmark in enumerate(benchmarks, 1):
        part = ""
        if len(benchmarks) > 1:
            part = f"benchmark {number}"
        export = Export(
            tool=GUIDELLM,
            version=str(_value_at(document, "metadata.guidellm_version") or ""),
            part=part,
            has_unix_times=True,
        )
        for fields, state in _guidellm_rows(path, part, benchmark):
            request = _guidellm_request(fields, state)
            if math.isnan(request.send_s):
                export.never_sent.append(request)
            else:
                export.requests.append(request)
        exports.append(export)
    return exports


def _guidellm_rows(path: str, part: str, benchmark: object) -> Iterator[tuple[Fields, str]]:
    """Yields each request and its state."""
    suffix = ""
    if part:
        suffix = f" of {part}"
    for state in ("successful", "errored", "incomplete"):
        for number, row in enumerate(_list_at(benchmark, f"requests.{state}"), 1):
            yield Fields(f"{path}: {state} request {number}{suffix}", row), state


def _guidellm_request(fields: Fields, state: str) -> ToolRequest:
    """Reads a request; its `send_s` is NaN if the tool did not send it."""
    send_s = _guidellm_moment(fields, ["request_start"], "start_time")
    if send_s is None:
        if state == "successful":
            raise ConfigError(f"{fields.place} has no {GUIDELLM_TIMINGS[0]}.request_start field")
        send_s = math.nan
    error = ""
    if state != "successful":
        error = (fields.text("info.error") or state).splitlines()[0][:100]
    first_s = _guidellm_moment(
        fields, ["first_token_iteration", "first_iteration"], "first_token_time"
    )
    last_s = None
    if first_s is not None:
        last_s = _guidellm_moment(
            fields, ["last_token_iteration", "last_iteration"], "last_token_time"
        )
    return ToolRequest(
        place=fields.place,
        send_s=send_s,
        planned_s=_guidellm_moment(fields, ["targeted_start"]),
        first_s=first_s,
        last_s=last_s,
        end_s=_guidellm_moment(fields, ["request_end"]),
        input_tokens=fields.count("prompt_tokens"),
        output_tokens=fields.count("output_tokens"),
        ids=fields.ids("request_id", "response_id"),
        text=fields.text("output"),
        error=error,
        is_cut_off=state == "incomplete",
    )


def _guidellm_moment(fields: Fields, names: Sequence[str], *flat_names: str) -> float | None:
    paths = [f"{timings}.{name}" for timings in GUIDELLM_TIMINGS for name in names]
    return fields.first_number([*paths, *flat_names])


# AIPerf


def _read_aiperf(rows: Iterable[Fields]) -> Export:
    """Reads the requests without those of the warmup."""
    export = Export(tool=AIPERF, has_unix_times=True)
    for fields in rows:
        if fields.value("metadata.benchmark_phase") in (None, "profiling"):
            export.requests.append(_aiperf_request(fields))
    return export


def _aiperf_request(fields: Fields) -> ToolRequest:
    send_s = fields.moment("metadata.request_start_ns", NANOSECONDS)
    error = ""
    if fields.value("error") is not None:
        reason = fields.value("error.message") or fields.value("error.type")
        error = str(reason or "failed")[:100]
    if fields.value("metadata.was_cancelled") is True:
        error = "cancelled"
    last_s = _aiperf_moment(fields, "request_latency", send_s)
    return ToolRequest(
        place=fields.place,
        send_s=send_s,
        planned_s=fields.number("metadata.credit_issued_ns", NANOSECONDS),
        first_s=_aiperf_moment(fields, "time_to_first_token", send_s),
        last_s=last_s,
        end_s=last_s,
        input_tokens=fields.count("metrics.input_sequence_length.value"),
        output_tokens=fields.count("metrics.output_sequence_length.value"),
        ids=fields.ids("metadata.x_request_id"),
        error=error,
    )


def _aiperf_moment(fields: Fields, metric: str, send_s: float) -> float | None:
    value = fields.number(f"metrics.{metric}.value")
    if value is None:
        return None
    unit = fields.text(f"metrics.{metric}.unit") or ""
    if unit not in SECONDS_OF_UNITS:
        units = ", ".join(SECONDS_OF_UNITS)
        raise ConfigError(
            f"{fields.place}: {metric}: the unit must be one of {units}, not {unit!r}"
        )
    return send_s + value * SECONDS_OF_UNITS[unit]


def aiperf_line(request: ToolRequest) -> bytes:
    """Returns a line of AIPerf's profile_export.jsonl; the request has Unix times and one id."""
    planned_s = request.send_s if request.planned_s is None else request.planned_s
    metadata = {
        "x_request_id": request.ids[0],
        "credit_issued_ns": round(planned_s / NANOSECONDS),
        "request_start_ns": round(request.send_s / NANOSECONDS),
        "benchmark_phase": "profiling",
        "was_cancelled": False,
    }
    metrics: dict[str, object] = {
        "input_sequence_length": {"value": request.input_tokens, "unit": "tokens"},
        "output_sequence_length": {"value": request.output_tokens, "unit": "tokens"},
    }
    error = None
    if request.error:
        metrics = {}
        error = {"type": "failed", "message": request.error}
    for name, moment_s in (
        ("time_to_first_token", request.first_s),
        ("request_latency", request.last_s),
    ):
        if moment_s is not None:
            metrics[name] = {"value": (moment_s - request.send_s) / MILLISECONDS, "unit": "ms"}
    return msgspec.json.encode({"metadata": metadata, "metrics": metrics, "error": error}) + b"\n"


# inference-perf


def _read_inference_perf(path: str, documents: Sequence[Document]) -> Export:
    export = Export(tool=INFERENCE_PERF, has_unix_times=False)
    for number, document in enumerate(documents, 1):
        fields = Fields(f"{path}: request {number}", document)
        send_s = fields.moment("start_time")
        tokens_s = fields.numbers("info.response_metrics.output_token_times")
        error = document.get("error")
        request = ToolRequest(
            place=fields.place,
            send_s=send_s,
            end_s=fields.number("end_time"),
            ids=_ids_of_events(fields.text("response") or ""),
        )
        if tokens_s:
            request.first_s = tokens_s[0]
            request.last_s = tokens_s[-1]
        if error is not None:
            request.error = str(error)[:100]
        export.requests.append(request)
    return export


def _ids_of_events(response: str) -> tuple[str, ...]:
    """Returns the id in the first event of a stream, or in a whole answer."""
    text = response.encode(errors="replace")
    try:
        for _, event in events_of([(0.0, text)]):
            text = event.data
            break
        fields = decode_untrusted(text, type=dict[str, object])
    except UntrustedDataError:
        return ()
    response_id = fields.get("id")
    if not isinstance(response_id, str):
        return ()
    return (response_id,)


# vllm bench serve


class _VllmResult(msgspec.Struct):
    start_times: list[float]
    """On the benchmark's own clock."""
    ttfts: list[float]
    itls: list[list[float]]
    """Times between chunks."""
    input_lens: list[int] = []
    output_lens: list[int] = []
    latencies: list[float] = []
    errors: list[str | None] = []
    queue_times: list[float] = []
    """Seconds that a request waited for `--max-concurrency`."""
    generated_texts: list[str] = []
    max_concurrency: int | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for lists of different lengths."""
        count = len(self.start_times)
        for name in self.__struct_fields__:
            values = getattr(self, name)
            if not isinstance(values, list) or len(values) == count:
                continue
            if values or name in ("ttfts", "itls"):
                raise ValueError(f"start_times has {count} entries, but {name} has {len(values)}")

    def requests(self, location: str) -> Iterator[ToolRequest]:
        """Yields the requests in the order of the benchmark, which numbers their ids."""
        for index, start_s in enumerate(self.start_times):
            place = f"{location}: request {index + 1}"
            request = ToolRequest(place=place, send_s=start_s, index=index)
            if self.errors and self.errors[index]:
                request.error = " ".join(str(self.errors[index]).split())[:100]
            elif self.ttfts[index] != 0:
                request.first_s = start_s + self.ttfts[index]
                request.last_s = request.first_s + sum(self.itls[index])
            if self.input_lens and self.output_lens:
                request.input_tokens = self.input_lens[index]
                request.output_tokens = self.output_lens[index]
            if self.latencies and not request.error:
                latency_s = self.latencies[index]
                # The sum of the gaps may exceed the latency by a rounding error.
                request.end_s = max(start_s + latency_s, request.last_s or start_s)
            if self.queue_times:
                request.planned_s = start_s - self.queue_times[index]
            if self.generated_texts:
                request.text = self.generated_texts[index]
            yield request


def _with_whole_lengths(document: Document) -> Document:
    """Returns a result whose lengths are integers: 100.0 is the whole number 100."""
    changed = dict(document)
    for name in ("input_lens", "output_lens"):
        lengths = changed.get(name)
        if isinstance(lengths, list):
            changed[name] = [_whole(length) for length in lengths]
    return changed


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _read_vllm(location: str, part: str, document: Document) -> Export:
    for name, rule in VLLM_REQUIRED.items():
        if name not in document:
            raise ConfigError(f"{location} {rule}")
    try:
        result = msgspec.convert(_with_whole_lengths(document), _VllmResult)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{location}: {error}") from None
    return Export(
        tool=VLLM,
        part=part,
        has_unix_times=False,
        in_flight=result.max_concurrency,
        requests=list(result.requests(location)),
    )


# Locust: the listener of docs/judge.md


def _read_locust(rows: Iterable[Fields]) -> Export:
    export = Export(tool=LOCUST, has_unix_times=True)
    for fields in rows:
        send_s = fields.moment("start_time")
        request = ToolRequest(
            place=fields.place,
            send_s=send_s,
            end_s=send_s + fields.moment("response_time", MILLISECONDS),
            ids=fields.ids("request_id"),
        )
        exception = fields.value("exception")
        if exception is not None:
            request.error = str(exception)[:100]
        export.requests.append(request)
    return export
