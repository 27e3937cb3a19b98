"""Simulates the fleet of a study under its workload, window by window."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import msgspec
from msgspec import Struct

from workbench.engine.steps import Batch, Profile
from workbench.load.workload import Window, Workload, draw_workload
from workbench.runs.engine_limits import max_request_tokens
from workbench.runs.job import Job
from workbench.runs.pod import Pod
from workbench.runs.prefix_blocks import OfflineRequest
from workbench.runs.simulation import SimulationOutcome, simulate
from workbench.study.folder import Bucket, Distribution, Study
from workbench.study.quantities import E2E, QUEUE, TPOT, TTFT

DECODE = "decode_s"
SIMULATED = (TTFT, TPOT, E2E, QUEUE, DECODE)
"""Latencies that a simulation has."""


class SimulatedWindow(Struct, kw_only=True):
    """Simulated values of a window, over all pods."""

    latencies: dict[str, Distribution]
    running: float = 0.0
    kv_usage: float = 0.0
    cached_share: float = 0.0


class Segment(Struct, frozen=True, kw_only=True):
    """Neighboring windows with the same number of pods."""

    first: int
    last: int
    """Number of the window after the last one."""
    pods: int


def compared_latencies(study: Study) -> tuple[str, ...]:
    """Returns the latencies that mean the same in a study and in its simulation.

    A decode pod's metrics do not include the time of the prefill pod.
    """
    if any(group.role for group in study.fleet.groups):
        return (TPOT, DECODE)
    return SIMULATED


def segments_of(study: Study) -> list[Segment]:
    """Returns the segments of a study."""
    segments: list[Segment] = []
    for number, window in enumerate(study.measured.windows):
        pods = max(1, round(window.pods))
        if segments and segments[-1].pods == pods:
            segments[-1] = msgspec.structs.replace(segments[-1], last=number + 1)
        else:
            segments.append(Segment(first=number, last=number + 1, pods=pods))
    return segments


def simulate_study(
    study: Study,
    job: Job,
    *,
    segments: Sequence[Segment],
    max_requests: int,
    progress: Callable[[int], None],
) -> list[SimulatedWindow]:
    """Returns the simulated windows.

    With more than `max_requests` requests in a segment, a part of its pods gets that part of the
    load.

    Raises:
        ConfigError: The workload has no requests.
    """
    windows: list[SimulatedWindow] = []
    for segment in segments:
        bounds = [_bounds(study, name) for name in SIMULATED]
        workload = msgspec.structs.replace(
            study.workload, windows=study.workload.windows[segment.first : segment.last]
        )
        count = sum(sum(window.arrivals) for window in workload.windows)
        if not count:
            windows += [_empty() for _ in workload.windows]
            continue
        job_pods = segment.pods
        if job.plan.disaggregation is None:
            job_pods = simulated_pods(segment.pods, count, max_requests)
            workload = _thinned(workload, job_pods / segment.pods)
            plan = replace(job.plan, pods=job_pods)
        else:
            plan = job.plan
        windows += _run(
            workload, replace(job, plan=plan), dict(zip(SIMULATED, bounds, strict=True))
        )
        for window in windows[segment.first :]:
            window.running *= segment.pods / job_pods
        progress(segment.last)
    return windows


def simulated_pods(pods: int, requests: float, max_requests: int) -> int:
    """Returns how many of the pods are simulated, with their part of the requests."""
    return max(1, min(pods, math.floor(pods * max_requests / requests)))


def _empty() -> SimulatedWindow:
    return SimulatedWindow(latencies={name: Distribution(count=0.0, sum=0.0) for name in SIMULATED})


def _thinned(workload: Workload, share: float) -> Workload:
    if share == 1:
        return workload
    windows: list[Window] = [
        msgspec.structs.replace(window, arrivals=tuple(count * share for count in window.arrivals))
        for window in workload.windows
    ]
    return msgspec.structs.replace(workload, windows=tuple(windows))


def _bounds(study: Study, name: str) -> list[float]:
    """Returns all bounds of the measured buckets of a latency, in ascending order."""
    bounds: set[float] = set()
    for window in study.measured.windows:
        distribution = window.latencies.get(name)
        if distribution is not None:
            for low, high, _ in distribution.buckets:
                bounds.add(low)
                bounds.add(math.inf if high is None else high)
    return sorted(bounds)


class _Admissions:
    """Times at which requests leave the waiting queue for the first time."""

    def __init__(self, requests: int, *, is_async: bool) -> None:
        self.times = [-1.0] * requests
        self._is_async = is_async
        self._steps: dict[Pod, tuple[float, float]] = {}
        """Start and end of the latest step of each pod."""

    def watch(self, pod: Pod, batch: Batch[OfflineRequest], start_s: float, end_s: float) -> None:
        """Receives a step. With async scheduling, it was scheduled when the last one began."""
        scheduled_s = start_s
        last_start_s, last_end_s = self._steps.get(pod, (start_s, start_s))
        if self._is_async and last_end_s >= start_s:
            scheduled_s = last_start_s
        self._steps[pod] = (start_s, end_s)
        for request in batch.admitted:
            if self.times[request.number] < 0:
                self.times[request.number] = scheduled_s


def _run(
    workload: Workload, job: Job, bounds: Mapping[str, Sequence[float]]
) -> list[SimulatedWindow]:
    profile = job.plan.profile
    load = draw_workload(
        workload, "the workload", seed=job.plan.seed, max_tokens=max_request_tokens(profile.engine)
    )
    watch = None
    admissions = _Admissions(len(load), is_async=profile.engine.async_scheduling)
    if job.plan.disaggregation is None:
        watch = admissions.watch
    outcome = simulate(load, job.plan, watch=watch)
    edges = _edges(workload)
    ttft_s, _, e2e_s = outcome.latencies()
    values: dict[str, list[list[float]]] = {
        name: [[] for _ in workload.windows] for name in SIMULATED
    }
    front = profile.front
    for number, (first_s, last_s) in enumerate(zip(outcome.first_s, outcome.last_s, strict=True)):
        _put(values[TTFT], edges, first_s, ttft_s[number])
        _put(values[E2E], edges, last_s, e2e_s[number])
        _put(values[DECODE], edges, last_s, last_s - first_s)
        tokens = load.output_tokens[number]
        if tokens > 1:
            _put(values[TPOT], edges, last_s, (last_s - first_s) / (tokens - 1))
        admitted_s = admissions.times[number]
        if admitted_s >= 0:
            seen_s = outcome.send_s[number] + front.front
            seen_s += front.front_per_token * load.input_tokens[number]
            _put(values[QUEUE], edges, last_s, max(0.0, admitted_s - seen_s))
    windows = []
    cached = outcome.cached_tokens / max(1, sum(load.input_tokens))
    for index in range(len(workload.windows)):
        running, usage = _use(outcome, profile, edges[index], edges[index + 1])
        windows.append(
            SimulatedWindow(
                latencies={
                    name: _distribution(values[name][index], bounds[name]) for name in SIMULATED
                },
                running=running,
                kv_usage=usage,
                cached_share=cached,
            )
        )
    return windows


def _edges(workload: Workload) -> list[float]:
    """Returns the times between windows, in seconds from the first one."""
    begin = workload.windows[0].start
    edges = [(window.start - begin).total_seconds() for window in workload.windows]
    return [*edges, (workload.windows[-1].end - begin).total_seconds()]


def _put(
    windows: Sequence[list[float]], edges: Sequence[float], time_s: float, value: float
) -> None:
    """Adds a value to the window of its time; what ends after the last window is left out."""
    index = bisect_right(edges, time_s) - 1
    if 0 <= index < len(windows):
        windows[index].append(value)


def _distribution(values: Sequence[float], bounds: Sequence[float]) -> Distribution:
    counts = [0] * (len(bounds) + 1)
    for value in values:
        counts[bisect_left(bounds, value)] += 1
    buckets: list[Bucket] = []
    lows = [0.0, *bounds]
    highs: list[float | None] = [None if bound == math.inf else bound for bound in bounds]
    for low, high, count in zip(lows, [*highs, None], counts, strict=True):
        if count:
            buckets.append((low, high, float(count)))
    return Distribution(count=float(len(values)), sum=math.fsum(values), buckets=buckets)


def _use(
    outcome: SimulationOutcome, profile: Profile, start_s: float, end_s: float
) -> tuple[float, float]:
    """Returns the mean sequences in steps over all pods, and the mean share of used blocks."""
    timeline = outcome.timeline
    first = max(0, int((start_s - timeline.begin_s) / timeline.bin_s))
    last = max(first + 1, math.ceil((end_s - timeline.begin_s) / timeline.bin_s))
    sequences = timeline.sequences[first:last]
    blocks = timeline.blocks[first:last]
    if not sequences:
        return 0.0, 0.0
    length_s = (last - first) * timeline.bin_s
    capacity = outcome.pods * (profile.engine.num_gpu_blocks - 1)
    return sum(sequences) / length_s, sum(blocks) / length_s / capacity


def mean_of(distributions: Sequence[Distribution]) -> float | None:
    """Returns the mean of the values of several distributions; None without values."""
    count = sum(each.count for each in distributions)
    return sum(each.sum for each in distributions) / count if count > 0 else None


def mean_level(values: Sequence[float | None]) -> float | None:
    """Returns the mean of the values that are known; None without any."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
