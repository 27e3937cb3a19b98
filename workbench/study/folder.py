"""The folder of a study: a measurement in four files. Start at `write_study`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from math import inf, isnan
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml
from msgspec import Meta, Struct

from config import VERSION
from config.declaration import ConfigError
from config.files import read_whole
from config.untrusted import UntrustedDataError, decode_untrusted
from config.yaml_file import parse_yaml
from workbench.load.output_files import atomic_file, json_document
from workbench.load.workload import (
    ASSUMPTIONS,
    FORMAT,
    KEY,
    WORKLOAD_FILE,
    TokenLengths,
    Window,
    Workload,
)
from workbench.runs.sweeps import MAX_VALUES, PODS
from workbench.study.measurement import Measurement
from workbench.study.quantities import (
    E2E,
    GAUGES,
    HITS,
    IN_FLIGHT_KEY,
    INPUT,
    KV_USAGE,
    LATENCIES,
    MAX_UNIX_S,
    MAX_VALUE,
    OUTPUT,
    PREEMPTIONS,
    QUERIES,
    RUNNING,
    WAITING,
    Key,
)

MEASURED_FILE = "measured.json"
PROVENANCE_FILE = "provenance.json"
FLEET_FILE = "fleet.yaml"
COUNTERS = (PREEMPTIONS, QUERIES, HITS, "prompt_tokens", "generation_tokens")
MAX_PODS = MAX_VALUES[PODS]
Amount = Annotated[float, Meta(ge=0, le=MAX_VALUE)]
Seconds = Annotated[float, Meta(ge=0, le=MAX_UNIX_S)]
Bucket = tuple[Amount, Amount | None, Amount]


class Distribution(Struct, kw_only=True):
    """A histogram over a span of time. Buckets are lower bound, upper bound, and count."""

    count: Amount
    sum: Amount
    buckets: list[Bucket] = []

    @property
    def mean(self) -> float | None:
        """The mean; None without values."""
        return self.sum / self.count if self.count > 0 else None


class MeasuredWindow(Struct, kw_only=True):
    """Measured values of a window, over all pods."""

    start: Seconds
    end: Seconds
    pods: Annotated[float, Meta(ge=0, le=MAX_PODS)]
    """Mean number of pods."""
    latencies: dict[str, Distribution]
    running: float | None = None
    waiting: float | None = None
    """Mean sum over pods."""
    kv_usage: float | None = None
    """Mean over pods, from 0 to 1."""
    counters: dict[str, float] = {}


class Steps(Struct, kw_only=True):
    """Sums over pods for each step."""

    edges: list[float]
    """Unix seconds."""
    pods: list[int]
    gauges: dict[str, list[float | None]]
    """Values at the edges."""
    counters: dict[str, list[float]]
    sums: dict[str, list[float]]
    counts: dict[str, list[float]]


class PodWindow(Struct, kw_only=True):
    """Counts of a pod in a window."""

    window: int
    requests: float
    counters: dict[str, float]
    means: dict[str, float]
    """Means of latencies in seconds."""


class Measured(Struct, kw_only=True):
    """`measured.json`."""

    model: str
    windows: list[MeasuredWindow]
    steps: Steps
    pods: dict[str, list[PodWindow]]


class FleetGroup(Struct, kw_only=True, forbid_unknown_fields=True):
    """Pods that are alike."""

    pods: int
    """Most pods at a time."""
    role: str = ""
    """prefill, decode, or empty."""
    version: str = ""
    measured: dict[str, str] = {}
    """Labels of vllm:cache_config_info."""
    flags: dict[str, Any] = {}
    """Flags of `simulate` for a pod."""
    ignored: list[str] = []
    """Options of the command line that are not simulated."""


class PodCount(Struct, kw_only=True, forbid_unknown_fields=True):
    """A time from which on the fleet has a number of pods."""

    start: str
    pods: int


class Fleet(Struct, kw_only=True, forbid_unknown_fields=True):
    """`fleet.yaml`."""

    model: str
    groups: list[FleetGroup]
    pods_over_time: list[PodCount] = []
    assumed: list[str] = []


class Study(Struct, kw_only=True):
    """A study as it was read from its folder."""

    folder: Path
    workload: Workload
    fleet: Fleet
    measured: Measured


def make_workload(measurement: Measurement, model: str) -> Workload:
    """Returns the workload of a measurement."""
    requests = measurement.window_sums(Key(INPUT, "count"))
    queries = measurement.window_sums(Key(QUERIES))
    hits = measurement.window_sums(Key(HITS))
    inputs = _lengths(measurement, INPUT)
    outputs = _lengths(measurement, OUTPUT)
    finished = measurement.steps.sums(Key(INPUT, "count"))
    in_flight = measurement.steps.sums(IN_FLIGHT_KEY)
    arrivals = _without_deficits(map(sum, zip(finished, in_flight, strict=True)))
    windows = []
    indexes = measurement.window_indexes
    for number, (first, last) in enumerate(zip(indexes, indexes[1:], strict=False)):
        edges = measurement.edges[first : last + 1]
        counts = _regular(arrivals[first:last], edges)
        length_s = edges[-1] - edges[0]
        windows.append(
            Window(
                start=time_of(edges[0]),
                end=time_of(edges[-1]),
                requests=_round(requests[number]),
                rate_per_s=_round(sum(counts) / length_s),
                arrivals=tuple(_round(count) for count in counts),
                input_tokens=inputs[number],
                output_tokens=outputs[number],
                cached_share=_round(min(1.0, max(0.0, hits[number] / (queries[number] or 1.0)))),
            )
        )
    return Workload(
        understudy_workload=FORMAT, model=model, windows=tuple(windows), assumptions=ASSUMPTIONS
    )


def _lengths(measurement: Measurement, quantity: str) -> list[TokenLengths]:
    """Returns lengths by window; without ended requests, a window has lengths of a neighbor."""
    lengths = []
    for distribution in distributions(measurement, quantity):
        lengths.append(
            TokenLengths(
                mean=_round(distribution.mean or 0.0),
                count=_round(distribution.count),
                buckets=tuple(distribution.buckets),
            )
        )
    known = [number for number, each in enumerate(lengths) if each.count > 0]
    for number, each in enumerate(lengths):
        if not each.count and known:
            nearest = min(known, key=lambda other: abs(other - number))
            lengths[number] = msgspec.structs.replace(lengths[nearest], count=0.0)
    return lengths


def distributions(measurement: Measurement, quantity: str) -> list[Distribution]:
    """Returns the histogram of a quantity, by window."""
    counts = measurement.window_sums(Key(quantity, "count"))
    sums = measurement.window_sums(Key(quantity, "sum"))
    bounds = measurement.bounds(quantity)
    cumulative = [measurement.window_sums(Key(quantity, "bucket", bound)) for bound in bounds]
    result = []
    for window, (count, total) in enumerate(zip(counts, sums, strict=True)):
        buckets: list[Bucket] = []
        below = 0.0
        low = 0.0
        for bound, values in zip(bounds, cumulative, strict=True):
            inside = values[window] - below
            if inside > 1e-6:
                buckets.append((low, None if bound == inf else bound, _round(inside)))
            below = max(below, values[window])
            low = bound
        result.append(Distribution(count=_round(count), sum=_round(total, 6), buckets=buckets))
    return result


def _without_deficits(values: Iterable[float]) -> list[float]:
    """Returns values of at least 0: later values compensate for a negative one."""
    result = []
    deficit = 0.0
    for value in values:
        deficit += value
        result.append(max(0.0, deficit))
        deficit = min(0.0, deficit)
    return result


def _regular(values: Sequence[float], edges: Sequence[float]) -> list[float]:
    """Returns values of spans between edges as values of as many equal spans."""
    step_s = (edges[-1] - edges[0]) / len(values)
    result = [0.0] * len(values)
    for value, start_s, end_s in zip(values, edges, edges[1:], strict=False):
        first = (start_s - edges[0]) / step_s
        last = (end_s - edges[0]) / step_s
        if abs(first - round(first)) < 0.02 and abs(last - round(last)) < 0.02:
            span = range(round(first), round(last))
            for index in span:
                result[index] += value / len(span)
            continue
        for index in range(int(first), min(len(values), int(last) + 1)):
            overlap = min(last, index + 1) - max(first, index)
            result[index] += value * max(0.0, overlap) / (last - first)
    return result


def make_measured(measurement: Measurement, model: str) -> Measured:
    """Returns the measured latencies, gauges and counters."""
    latencies = {
        name: distributions(measurement, name) for name in LATENCIES if measurement.has(name)
    }
    running = measurement.window_levels(measurement.levels.sum(RUNNING))
    waiting = measurement.window_levels(measurement.levels.sum(WAITING))
    usage = measurement.window_levels(measurement.levels.mean(KV_USAGE))
    pods = measurement.window_levels(measurement.levels.pods)
    counters = {name: measurement.window_sums(Key(name)) for name in COUNTERS}
    windows = [
        MeasuredWindow(
            start=start_s,
            end=end_s,
            pods=_round(pods[number] or 0.0),
            latencies={name: values[number] for name, values in latencies.items()},
            running=running[number],
            waiting=waiting[number],
            kv_usage=usage[number],
            counters={name: _round(values[number]) for name, values in counters.items()},
        )
        for number, (start_s, end_s) in enumerate(
            zip(measurement.window_edges, measurement.window_edges[1:], strict=False)
        )
    ]
    steps = measurement.steps
    means = {KV_USAGE: measurement.levels.mean(KV_USAGE)}
    gauges = {name: means.get(name) or measurement.levels.sum(name) for name in GAUGES}
    return Measured(
        model=model,
        windows=windows,
        steps=Steps(
            edges=measurement.edges,
            pods=measurement.levels.pods,
            gauges={
                name: [None if isnan(value) else _round(value, 4) for value in values]
                for name, values in gauges.items()
            },
            counters={name: _rounded(steps.sums(Key(name))) for name in COUNTERS},
            sums={name: _rounded(steps.sums(Key(name, "sum"))) for name in latencies},
            counts={name: _rounded(steps.sums(Key(name, "count"))) for name in latencies},
        ),
        pods={pod: _pod_windows(measurement, pod) for pod in sorted(measurement.pods)},
    )


def _pod_windows(measurement: Measurement, pod: str) -> list[PodWindow]:
    totals = measurement.steps.pod_totals.get(pod, {})
    result = []
    for window in range(len(measurement.window_edges) - 1):
        counts = {
            name: totals[Key(name, "count")][window]
            for name in LATENCIES
            if Key(name, "count") in totals
        }
        requests = counts.get(E2E, 0.0)
        if not any(counts.values()):
            continue
        means = {
            name: _round(totals[Key(name, "sum")][window] / count, 6)
            for name, count in counts.items()
            if count > 0 and Key(name, "sum") in totals
        }
        counters = {
            name: _round(totals[Key(name)][window]) for name in COUNTERS if Key(name) in totals
        }
        result.append(
            PodWindow(window=window, requests=_round(requests), counters=counters, means=means)
        )
    return result


def make_provenance(
    measurement: Measurement, source: dict[str, object], warnings: Sequence[str]
) -> dict[str, object]:
    """Returns `provenance.json`: sources, times, resets, gaps, and pods that came and went."""
    edges = measurement.edges
    resets = []
    gaps = []
    came = []
    went = []
    for pod, state in sorted(measurement.steps.pods.items()):
        resets += [{"pod": pod, "before": text_of(time_s)} for time_s in state.resets]
        gaps += [
            {"pod": pod, "from": text_of(start), "to": text_of(end)} for start, end in state.gaps
        ]
        if state.first_s > edges[0] + measurement.step_s:
            first = {"pod": pod, "first_sample": text_of(state.first_s)}
            came.append({**first, "counted_from_zero": state.counted_from_zero})
        if state.last.time_s < edges[-1] - measurement.step_s * 2:
            went.append({"pod": pod, "last_sample": text_of(state.last.time_s)})
    return {
        "understudy": VERSION,
        **source,
        "start": text_of(edges[0]),
        "end": text_of(edges[-1]),
        "step_s": _round(measurement.step_s),
        "pods": {
            name: {"version": facts.version, "group": facts.group}
            for name, facts in sorted(measurement.pods.items())
        },
        "resets": resets,
        "gaps": gaps,
        "pods_that_came": came,
        "pods_that_went": went,
        "invalid_samples": measurement.invalid_samples,
        "warnings": list(warnings),
    }


def write_study(
    folder: Path,
    *,
    workload: Workload,
    fleet: Fleet,
    measured: Measured,
    provenance: dict[str, object],
) -> None:
    """Writes the files of a study; the folder is created.

    Raises:
        ConfigError: A file cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {folder}: {error.strerror}") from None
    documents = {
        WORKLOAD_FILE: _yaml(workload, "A workload, by the metrics of a fleet: docs/study.md"),
        FLEET_FILE: _yaml(fleet, "The fleet that served it; change what is not true"),
        MEASURED_FILE: msgspec.json.encode(measured),
        PROVENANCE_FILE: json_document(provenance),
    }
    for name, content in documents.items():
        with atomic_file(folder / name) as partial:
            partial.write_bytes(content)


def _yaml(struct: Struct, comment: str) -> bytes:
    document = msgspec.to_builtins(struct, builtin_types=(datetime,))
    text = yaml.dump(document, Dumper=_Dumper, default_flow_style=None, sort_keys=False, width=100)
    lines = text.splitlines()
    lines.insert(1 if lines[0].startswith(KEY) else 0, f"# {comment}")
    return ("\n".join(lines) + "\n").encode()


class _Dumper(yaml.SafeDumper):
    """Writes times as they are in RFC 3339."""

    def ignore_aliases(self, data: object) -> bool:
        """Returns True: each value is written out."""
        return True


def _represent_time(dumper: yaml.SafeDumper, time: datetime) -> yaml.ScalarNode:
    text = time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return dumper.represent_scalar("tag:yaml.org,2002:timestamp", text)


_Dumper.add_representer(datetime, _represent_time)


def read_study(folder: Path) -> Study:
    """Reads a study.

    Raises:
        ConfigError: A file is missing or wrong.
    """
    from workbench.load.workload import read_workload

    if not folder.is_dir():
        raise ConfigError(f"{folder}: not a folder; study take writes it")
    try:
        fleet = msgspec.convert(parse_yaml(str(folder / FLEET_FILE)), Fleet)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{folder / FLEET_FILE}: {error}") from None
    path = folder / MEASURED_FILE
    try:
        measured = decode_untrusted(read_whole(path), type=Measured)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UntrustedDataError as error:
        raise ConfigError(f"{path}: {error}") from None
    workload = read_workload(folder / WORKLOAD_FILE)
    if len(measured.windows) != len(workload.windows):
        raise ConfigError(f"{folder}: {WORKLOAD_FILE} and {MEASURED_FILE} have different windows")
    if not fleet.groups:
        raise ConfigError(f"{folder / FLEET_FILE}: groups must not be empty")
    return Study(folder=folder, workload=workload, fleet=fleet, measured=measured)


def time_of(time_s: float) -> datetime:
    """Returns the time of Unix seconds, in UTC."""
    return datetime.fromtimestamp(round(time_s, 3), UTC)


def text_of(time_s: float) -> str:
    """Returns Unix seconds as text, in UTC."""
    return time_of(time_s).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _round(value: float, digits: int = 3) -> float:
    return round(value, digits)


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 6) for value in values]
