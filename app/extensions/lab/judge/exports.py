"""Reads exports of load tools, whose kind is detected by content: `read_export`.

docs/judge.md lists the tools with their versions and files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

import msgspec

from app.extensions.lab.fidelity.benchmark_files import check_not_empty, read_documents
from app.extensions.lab.fidelity.benchmark_formats import (
    AIPERF_UNITS,
    Document,
    first_at,
    list_at,
)
from app.extensions.lab.fidelity.input_files import first_bytes, open_input, read_document
from app.extensions.lab.fidelity.measured_run import location_of
from app.extensions.lab.judge.tool_requests import Export, ToolRequest
from config import ConfigError
from config.untrusted import UntrustedDataError, decode_untrusted

KNOWN = "GuideLLM, AIPerf, inference-perf, vllm bench serve, or Locust"
GUIDELLM_TIMINGS = "info.timings."
NANOSECONDS = 1e-9
MILLISECONDS = 1e-3
DATA = "data: "


def read_export(path: str) -> Export:
    """Returns the run of an export.

    Raises:
        ConfigError: The file is not an export of a known tool, or has a mistake.
    """
    with open_input(Path(path)) as (_, file):
        check_not_empty(path, file)
        if first_bytes(file).startswith(b"["):
            objects = _objects(path, read_document(file, path))
            return _checked(path, _read_inference_perf(path, objects))
        documents = read_documents(path, file)
        first_part, first = next(documents)
        documents = chain([(first_part, first)], documents)
        if "benchmarks" in first:
            return _checked(path, _read_guidellm(path, first))
        if "metadata" in first and "metrics" in first:
            return _checked(path, _read_aiperf(path, documents))
        if "ttfts" in first or "total_output_tokens" in first:
            if len([*documents]) > 1:
                raise ConfigError(f"{path} contains several results; judge one run at a time")
            return _checked(path, _read_vllm(path, first))
        if "response_time" in first and "start_time" in first:
            return _checked(path, _read_locust(path, documents))
    if "input_config" in first or "aiperf_version" in first:
        raise ConfigError(
            f"{path} is an AIPerf summary; use profile_export.jsonl, which contains the requests"
        )
    raise ConfigError(f"{path} is not a recognized export from {KNOWN}")


def _checked(path: str, export: Export) -> Export:
    if not export.requests:
        raise ConfigError(f"{path} contains no requests")
    for request in export.requests:
        request.check()
    return export


def _objects(path: str, text: bytes) -> list[Document]:
    try:
        documents: list[Document] = decode_untrusted(text, type=list[dict[str, object]])
    except UntrustedDataError as error:
        raise ConfigError(f"{path} is not a list of JSON objects: {error}") from None
    return documents


class Fields:
    """Reads values of a request by dotted paths; a wrong type is a ConfigError with the place."""

    def __init__(self, place: str, document: object) -> None:
        self.place = place
        self._document = document

    def number(self, path: str, unit_s: float = 1.0) -> float | None:
        """Returns a number times `unit_s`; None if it is missing."""
        value = first_at(self._document, [path])
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

    def text(self, path: str) -> str | None:
        """Returns a text; None if it is missing."""
        value = first_at(self._document, [path])
        if value is None or isinstance(value, str):
            return value
        raise ConfigError(f"{self.place}: {path} must be a string")

    def numbers(self, path: str) -> list[float]:
        """Returns a list of numbers; an empty one if it is missing."""
        values = first_at(self._document, [path])
        try:
            return msgspec.convert(values or [], list[float])
        except msgspec.ValidationError as error:
            raise ConfigError(f"{self.place}: {path}: {error}") from None

    def ids(self, *paths: str) -> tuple[str, ...]:
        """Returns the texts that are there."""
        texts = [self.text(path) for path in paths]
        return tuple(text for text in texts if text)


# GuideLLM


def _read_guidellm(path: str, document: Document) -> Export:
    requests = []
    not_sent = 0
    for place, state, row in _guidellm_rows(path, document):
        fields = Fields(place, row)
        if state != "successful" and fields.number(f"{GUIDELLM_TIMINGS}request_start") is None:
            not_sent += 1
        else:
            requests.append(_guidellm_request(fields, state))
    export = Export(
        tool="guidellm",
        version=str(first_at(document, ["metadata.guidellm_version"]) or ""),
        has_unix_times=True,
        requests=requests,
    )
    if not_sent:
        export.notes = [f"Never sent by the tool: {not_sent}"]
    return export


def _guidellm_rows(path: str, document: Document) -> Iterator[tuple[str, str, object]]:
    """Yields place, state and content of each request; a sweep has several benchmarks."""
    benchmarks = list_at(document, "benchmarks")
    for benchmark_number, benchmark in enumerate(benchmarks, 1):
        suffix = f" of benchmark {benchmark_number}" if len(benchmarks) > 1 else ""
        for state in ("successful", "errored", "incomplete"):
            for number, row in enumerate(list_at(benchmark, f"requests.{state}"), 1):
                yield f"{path}: {state} request {number}{suffix}", state, row


def _guidellm_request(fields: Fields, state: str) -> ToolRequest:
    timings = GUIDELLM_TIMINGS
    send_s = fields.number(f"{timings}request_start")
    if send_s is None:
        raise ConfigError(
            f"{fields.place} has no {timings}request_start field; use GuideLLM 0.6 or later"
        )
    error = ""
    if state != "successful":
        error = (fields.text("info.error") or state).splitlines()[0][:100]
    first_s = fields.number(f"{timings}first_token_iteration")
    return ToolRequest(
        place=fields.place,
        send_s=send_s,
        planned_s=fields.number(f"{timings}targeted_start"),
        first_s=first_s,
        last_s=None if first_s is None else fields.number(f"{timings}last_token_iteration"),
        end_s=fields.number(f"{timings}request_end"),
        ids=fields.ids("request_id", "response_id"),
        text=fields.text("output"),
        error=error,
    )


# AIPerf


def _read_aiperf(path: str, documents: Iterable[tuple[str, Document]]) -> Export:
    requests = []
    for number, (part, document) in enumerate(documents, 1):
        if first_at(document, ["metadata.benchmark_phase"]) not in (None, "profiling"):
            continue
        fields = Fields(location_of(path, part or f"line {number}"), document)
        requests.append(_aiperf_request(fields, document))
    return Export(tool="aiperf", has_unix_times=True, requests=requests)


def _aiperf_request(fields: Fields, document: Document) -> ToolRequest:
    send_s = fields.moment("metadata.request_start_ns", NANOSECONDS)
    error = ""
    if document.get("error") is not None:
        error = str(first_at(document, ["error.message", "error.type"]) or "failed")[:100]
    if first_at(document, ["metadata.was_cancelled"]) is True:
        error = "cancelled"
    first_s = _aiperf_moment(fields, "time_to_first_token", send_s)
    last_s = _aiperf_moment(fields, "request_latency", send_s)
    return ToolRequest(
        place=fields.place,
        send_s=send_s,
        planned_s=fields.number("metadata.credit_issued_ns", NANOSECONDS),
        first_s=first_s,
        last_s=last_s,
        end_s=last_s,
        ids=fields.ids("metadata.x_request_id"),
        error=error,
    )


def _aiperf_moment(fields: Fields, metric: str, send_s: float) -> float | None:
    value = fields.number(f"metrics.{metric}.value")
    if value is None:
        return None
    unit = fields.text(f"metrics.{metric}.unit") or ""
    if unit not in AIPERF_UNITS:
        units = ", ".join(AIPERF_UNITS)
        raise ConfigError(
            f"{fields.place}: {metric}: the unit must be one of {units}, not {unit!r}"
        )
    return send_s + value * AIPERF_UNITS[unit]


# inference-perf


def _read_inference_perf(path: str, documents: Sequence[Document]) -> Export:
    requests = []
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
        requests.append(request)
    return Export(tool="inference-perf", has_unix_times=False, requests=requests)


def _ids_of_events(response: str) -> tuple[str, ...]:
    """Returns the id in the first event of a stream, or in a whole answer."""
    first_line = response.partition("\n")[0]
    try:
        event = decode_untrusted(first_line.removeprefix(DATA), type=dict[str, object])
    except UntrustedDataError:
        return ()
    response_id = event.get("id")
    if not isinstance(response_id, str):
        return ()
    return (response_id,)


# vllm bench serve


class _VllmResult(msgspec.Struct):
    start_times: list[float]
    """On the benchmark's own clock."""
    ttfts: list[float]
    itls: list[list[float]]
    latencies: list[float] = []
    errors: list[str | None] = []
    queue_times: list[float] = []
    """Seconds that a request waited for `--max-concurrency`."""
    generated_texts: list[str] = []

    def __post_init__(self) -> None:
        """Raises ValueError for lists of different lengths."""
        count = len(self.start_times)
        for name in self.__struct_fields__:
            length = len(getattr(self, name))
            if length != count and (length or name in ("ttfts", "itls")):
                raise ValueError(f"start_times has {count} entries, but {name} has {length}")

    def requests(self, path: str) -> Iterator[ToolRequest]:
        """Yields the requests in the order of the benchmark, which numbers their ids."""
        for index, start_s in enumerate(self.start_times):
            request = ToolRequest(place=f"{path}: request {index + 1}", send_s=start_s, index=index)
            if self.errors and self.errors[index]:
                request.error = " ".join(str(self.errors[index]).split())[:100]
            elif self.ttfts[index] != 0:
                request.first_s = start_s + self.ttfts[index]
                request.last_s = request.first_s + sum(self.itls[index])
            if self.latencies and not request.error:
                latency_s = self.latencies[index]
                # The sum of the gaps may exceed the latency by a rounding error.
                request.end_s = max(start_s + latency_s, request.last_s or start_s)
            if self.queue_times:
                request.planned_s = start_s - self.queue_times[index]
            if self.generated_texts:
                request.text = self.generated_texts[index]
            yield request


def _read_vllm(path: str, document: Mapping[str, object]) -> Export:
    if "ttfts" not in document:
        raise ConfigError(
            f"{path} contains no request times; run vllm bench serve with --save-detailed"
        )
    try:
        result = msgspec.convert(document, _VllmResult)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}") from None
    return Export(
        tool="vllm bench serve", has_unix_times=False, requests=list(result.requests(path))
    )


# Locust: the listener of docs/judge.md


def _read_locust(path: str, documents: Iterable[tuple[str, Document]]) -> Export:
    requests = []
    for number, (part, document) in enumerate(documents, 1):
        fields = Fields(location_of(path, part or f"line {number}"), document)
        send_s = fields.moment("start_time")
        request = ToolRequest(
            place=fields.place,
            send_s=send_s,
            end_s=send_s + fields.moment("response_time", MILLISECONDS),
            ids=fields.ids("request_id"),
        )
        if document.get("exception") is not None:
            request.error = str(document["exception"])[:100]
        requests.append(request)
    return Export(tool="locust", has_unix_times=True, requests=requests)
