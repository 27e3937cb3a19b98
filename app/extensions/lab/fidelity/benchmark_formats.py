"""The JSON formats of vllm bench serve, GuideLLM and AIPerf.

Any mistake in a file is a ConfigError, in one line with file, place and rule.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct

from app.extensions.lab.fidelity.measured_run import (
    MeasuredRequest,
    MeasuredRun,
    location_of,
    make_run,
    read_request,
)
from config import ConfigError

Document = Mapping[str, object]

VLLM_REQUIRED = {
    "ttfts": "does not contain request times; run vllm bench serve with --save-detailed",
    "start_times": "has no start_times: vllm bench serve writes them from vLLM 0.15 on",
}
"""Error messages by missing key."""
GUIDELLM_TIMINGS = ("info.timings", "info.request_timings", "scheduler_info.request_timings")
GUIDELLM_COLUMNS = {
    "send_s": (*(f"{timings}.request_start" for timings in GUIDELLM_TIMINGS), "start_time"),
    "first_s": (
        *(
            f"{timings}.{name}"
            for timings in GUIDELLM_TIMINGS
            for name in ("first_token_iteration", "first_iteration")
        ),
        "first_token_time",
    ),
    "last_s": (
        *(
            f"{timings}.{name}"
            for timings in GUIDELLM_TIMINGS
            for name in ("last_token_iteration", "last_iteration")
        ),
        "last_token_time",
    ),
    "input_tokens": ("prompt_tokens",),
    "output_tokens": ("output_tokens",),
}
"""Dotted paths of each column in a request: of tokens from GuideLLM 0.5 on, of iterations in 0.4,
flat in 0.3.
"""
AIPERF_COLUMNS = {
    "first_s": "time_to_first_token",
    "last_s": "request_latency",
    "input_tokens": "input_sequence_length",
    "output_tokens": "output_sequence_length",
}
"""Metrics by column: a time since the request was sent, or tokens."""
AIPERF_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}
"""Seconds in a unit."""


class _VllmResult(Struct):
    input_lens: list[int]
    output_lens: list[int]
    ttfts: list[float]
    itls: list[list[float]]
    """Times between chunks."""
    start_times: list[float]
    """Times of sending, on the benchmark's own clock."""
    errors: list[str | None] = []
    max_concurrency: int | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for lists of different lengths."""
        lengths = {
            len(self.start_times),
            len(self.ttfts),
            len(self.itls),
            len(self.input_lens),
            len(self.output_lens),
        }
        if len(lengths) != 1:
            raise ValueError(
                "start_times, ttfts, itls, input_lens, and output_lens differ in length"
            )

    def check_success(self) -> None:
        """Raises ValueError for a request that has failed."""
        for number, failure in enumerate(self.errors, 1):
            if failure:
                short_failure = " ".join(failure.split())[:100]
                raise ValueError(
                    f"request {number} failed ({short_failure}), but all requests must succeed"
                )

    def failed(self) -> set[int]:
        """Returns the numbers of the requests that failed, from 1: with an error, or no tokens."""
        failed = {number for number, failure in enumerate(self.errors, 1) if failure}
        for number, counts in enumerate(zip(self.input_lens, self.output_lens, strict=True), 1):
            if 0 in counts:
                failed.add(number)
        return failed


def read_vllm(path: str, part: str, document: Document, skips_failed: bool = False) -> MeasuredRun:
    """Reads a result of vllm bench serve."""
    location = location_of(path, part)
    for name, rule in VLLM_REQUIRED.items():
        if name not in document:
            raise ConfigError(f"{location}: {rule}")
    try:
        result = msgspec.convert(_with_whole_lengths(document), _VllmResult)
        if not skips_failed:
            result.check_success()
    except ValueError as error:
        raise ConfigError(f"{location}: {error}") from None
    failed = result.failed() if skips_failed else set()
    rows = zip(
        result.start_times,
        result.ttfts,
        result.itls,
        result.input_lens,
        result.output_lens,
        strict=True,
    )
    requests = []
    for number, (send_s, ttft_s, itls, input_tokens, output_tokens) in enumerate(rows, 1):
        if number in failed:
            continue
        columns = {
            "send_s": send_s,
            "first_s": send_s + ttft_s,
            "last_s": send_s + ttft_s + sum(itls),
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
        }
        requests.append(read_request(f"{location}: request {number}", columns))
    return make_run(path, part, requests, in_flight=result.max_concurrency, failed=len(failed))


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


def read_guidellm(path: str, document: Document, skips_failed: bool = False) -> list[MeasuredRun]:
    """Reads a report of GuideLLM, which may have several benchmarks."""
    benchmarks = list_at(document, "benchmarks")
    if not benchmarks:
        raise ConfigError(f"{path} contains no benchmarks")
    runs = []
    for number, benchmark in enumerate(benchmarks, 1):
        part = f"benchmark {number}" if len(benchmarks) > 1 else ""
        location = location_of(path, part)
        failed = len(list_at(benchmark, "requests.errored"))
        if failed and not skips_failed:
            raise ConfigError(f"{location}: {failed} requests failed; all must succeed")
        requests = _read_guidellm_requests(location, benchmark)
        incomplete = len(list_at(benchmark, "requests.incomplete"))
        notes = []
        if incomplete:
            notes = [f"{incomplete} requests that the end of the run cut off are left out"]
        runs.append(make_run(path, part, requests, notes=notes, failed=failed))
    return runs


def _read_guidellm_requests(location: str, benchmark: object) -> list[MeasuredRequest]:
    requests = []
    for number, request in enumerate(list_at(benchmark, "requests.successful"), 1):
        columns = {name: first_at(request, paths) for name, paths in GUIDELLM_COLUMNS.items()}
        if None in (columns["send_s"], columns["first_s"], columns["last_s"]):
            raise ConfigError(
                f"{location}: request {number} has no times for its first and last tokens;"
                " run GuideLLM with streaming"
            )
        requests.append(read_request(f"{location}: request {number}", columns))
    return requests


def read_aiperf(
    path: str, documents: Iterable[tuple[str, Document]], skips_failed: bool = False
) -> MeasuredRun:
    """Reads the requests of AIPerf's `profile_export.jsonl`, without those of the warmup."""
    requests: list[MeasuredRequest] = []
    failed = 0
    for number, (part, document) in enumerate(documents, 1):
        location = location_of(path, part or f"line {number}")
        if first_at(document, ["metadata.benchmark_phase"]) not in (None, "profiling"):
            continue
        if document.get("error") is not None or first_at(document, ["metadata.was_cancelled"]):
            failed += 1
            if skips_failed:
                continue
            raise ConfigError(f"{location}: the request failed, but all requests must succeed")
        start_ns = first_at(document, ["metadata.request_start_ns"])
        send_s = start_ns / 1e9 if isinstance(start_ns, int) else math.nan
        columns: dict[str, object] = {"send_s": send_s}
        for column in AIPERF_COLUMNS:
            columns[column] = _read_aiperf_metric(location, document, column, send_s)
        requests.append(read_request(location, columns))
    return make_run(path, "", requests, failed=failed)


def _read_aiperf_metric(location: str, document: Document, column: str, send_s: float) -> float:
    name = AIPERF_COLUMNS[column]
    value = first_at(document, [f"metrics.{name}.value"])
    unit = first_at(document, [f"metrics.{name}.unit"])
    if not isinstance(value, int | float):
        hint = "; AIPerf must run with --streaming" if column == "first_s" else ""
        raise ConfigError(f"{location} has no {name}{hint}")
    if not column.endswith("_s"):
        return int(value)
    if unit not in AIPERF_UNITS:
        raise ConfigError(
            f"{location}: {name}: the unit must be one of {', '.join(AIPERF_UNITS)}, not {unit!r}"
        )
    return send_s + value * AIPERF_UNITS[str(unit)]


def first_at(document: object, paths: Sequence[str]) -> object:
    """Returns the first value at one of the dotted `paths`; None if there is no value."""
    for path in paths:
        value = document
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            return value
    return None


def list_at(document: object, path: str) -> list[object]:
    """Returns the list at a dotted path; an empty one if there is no list."""
    value = first_at(document, [path])
    return value if isinstance(value, list) else []
