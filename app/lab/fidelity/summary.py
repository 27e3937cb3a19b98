"""Results of a simulation: figures, sweeps, objectives, tables, rows of requests."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import UNSET, Struct, UnsetType

from app.console import compare
from app.lab.fidelity.goodput import METRICS, Goodput, Limits, Price, good_requests, goodput
from app.lab.fidelity.goodput import lines as goodput_lines
from app.lab.fidelity.pod import Timeline
from app.lab.fidelity.simulation import SimulationOutcome
from app.lab.load import report
from app.lab.load.autoscale import Interval, pod_seconds, pods_over
from app.lab.load.loads import COLUMNS, NO_GROUP, SESSION_COLUMNS
from config.kinds import parse_duration

STATISTICS = ("mean", "p50", "p90", "p99")
LATENCIES = ("ttft", "itl", "e2e")
SPLIT = "prefill-pods"
"""Setting of a sweep over P:D, the prefill and decode pods of a number of pods; 0 are ordinary
pods.
"""
MOST = {"rate": 1_000_000, "in-flight": 1_000_000, "pods": 10_000, SPLIT: 10_000}
MOST_POINTS = 1000
CURVE = ("requests/s", "tokens/s", "TTFT p50", "p99", "ITL p50", "p99", "E2E p99") + (
    *("running", "KV peak", "preempted"),
)


INTERVALS = 12
"""Intervals of an autoscaled run, in its table."""


class Spread(Struct, frozen=True):
    """Mean and quantiles in seconds, the latter `sorted[int(n * p)]`; None without values."""

    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None


class Use(Struct, frozen=True):
    """Mean and peak over the time from the first request to the last token."""

    mean: float
    peak: float


class PoolUse(Struct, frozen=True):
    """Prefill pods, or decode pods.

    Blocks are in use while they are computed, pulled, or wait for that.
    """

    requests_per_pod: tuple[int, ...]
    kv_cache_usage: Use
    running: Use


class Transferred(Struct, frozen=True):
    """Figures of disaggregated prefill."""

    prefill: PoolUse
    decode: PoolUse
    prefill_s: Spread
    """Time from sending a request to the token of its prefill pod."""
    waiting_s: Spread
    """Time until the decode pod has blocks for the prompt, from when its scheduler sees the
    request.
    """
    transfer_s: Spread
    transferred_bytes: float


class FleetUse(Struct, frozen=True):
    """Pods of an autoscaled run.

    `constant` is the smallest constant fleet that does as well, if any.
    """

    mean_pods: float
    most_pods: int
    intervals: tuple[Interval, ...]
    constant: RunSummary | None


class RunSummary(Struct, frozen=True, kw_only=True):
    """Figures of a run, with the names and units of `--json`."""

    profile: str
    requests: int
    steps: int
    preemptions: int
    ttft_s: Spread
    """Time from sending a request to its first token."""
    itl_s: Spread
    """(last - first) / (output - 1) of each request with more than one token."""
    e2e_s: Spread
    """Time from sending a request to its last token."""
    duration_s: float
    """Time from the first request to the last token."""
    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    kv_cache_usage: Use
    """Shares from 0 to 1: the mean over all pods, the peak of any pod."""
    running: Use
    requests_per_pod: tuple[int, ...]
    gpu_hours: float
    """Hours of all accelerators, from the first request to the last token."""
    goodput: Goodput | None = None
    price: Price | None = None
    disaggregation: Transferred | UnsetType = UNSET
    fleet: FleetUse | UnsetType = UNSET
    """Only with autoscaling."""

    def latency(self, name: str) -> Spread:
        spread: Spread = getattr(self, f"{name}_s")
        return spread


@dataclass(frozen=True, slots=True)
class Judgement:
    """Measures of a run:

    limits of its requests, an accelerator's price an hour, objectives of latencies.
    """

    limits: Limits | None = None
    gpu_hour_price: float | None = None
    objectives: tuple[Objective, ...] = ()

    def met(self, summary: RunSummary) -> bool | None:
        """Returns whether a run meets all objectives; None without any."""
        return all(it.met(summary) for it in self.objectives) if self.objectives else None


def summarize(
    outcome: SimulationOutcome, profile: str, judgement: Judgement = Judgement()
) -> RunSummary:
    load, plan, duration_s = outcome.load, outcome.plan, outcome.length_s
    per_s = 1 / duration_s if duration_s > 0 else 0.0
    tokens_in, tokens_out = sum(load.input_tokens), sum(load.output_tokens)
    capacity, per_pod = plan.profile.engine.num_gpu_blocks - 1, Counter(outcome.pod)
    if outcome.transfers is not None:
        per_pod += Counter(outcome.transfers.prefill_pod)
    requests_per_pod = tuple(per_pod[pod] for pod in range(outcome.pods))
    pods = pod_seconds(outcome.lives) * per_s if outcome.lives else plan.pods
    its = _pool(outcome.timeline, requests_per_pod, per_s, capacity, pods)
    spreads = [_spread(values) for values in outcome.latencies()]
    gpu_hours, limits = pods * plan.profile.devices * duration_s / 3600, judgement.limits
    total = gpu_hours * (judgement.gpu_hour_price or 0.0)
    price = Price(total, total / tokens_in * 1e6, total / tokens_out * 1e6)
    return RunSummary(
        profile=profile,
        requests=len(load),
        steps=outcome.steps,
        preemptions=outcome.preemptions,
        ttft_s=spreads[0],
        itl_s=spreads[1],
        e2e_s=spreads[2],
        duration_s=duration_s,
        requests_per_s=len(load) * per_s,
        input_tokens_per_s=tokens_in * per_s,
        output_tokens_per_s=tokens_out * per_s,
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        cached_tokens=outcome.cached_tokens,
        kv_cache_usage=its.kv_cache_usage,
        running=its.running,
        requests_per_pod=requests_per_pod,
        gpu_hours=gpu_hours,
        goodput=None if limits is None else goodput(outcome, limits, per_s),
        price=None if judgement.gpu_hour_price is None else price,
        disaggregation=_transferred(outcome, requests_per_pod, per_s),
    )


def _spread(values: Sequence[float]) -> Spread:
    return Spread(*(report.four(values) if values else [None] * 4))


def _pool(
    timeline: Timeline,
    requests_per_pod: tuple[int, ...],
    per_s: float,
    capacity: int,
    pods: float = 0.0,
) -> PoolUse:
    """Returns the use of a pool of so many pods on average; by default of all that are counted."""
    share = per_s / (pods or len(requests_per_pod))
    blocks = Use(sum(timeline.blocks) * share / capacity, timeline.most_blocks / capacity)
    return PoolUse(
        requests_per_pod, blocks, Use(sum(timeline.sequences) * share, timeline.most_sequences)
    )


def _transferred(
    outcome: SimulationOutcome, requests_per_pod: tuple[int, ...], per_s: float
) -> Transferred | UnsetType:
    log, plan, split = outcome.transfers, outcome.plan, outcome.plan.disaggregation
    if log is None or split is None:
        return UNSET
    parts = requests_per_pod[: split.prefill_pods], requests_per_pod[split.prefill_pods :]
    capacity = plan.profile.engine.num_gpu_blocks - 1
    prefill, decode = (_pool(*its, per_s, capacity) for its in zip(log.pools, parts, strict=True))
    spans = (outcome.send_s, log.prefilled_s), (log.seen_s, log.begin_s), (log.begin_s, log.end_s)
    times_s = ([end - begin for begin, end in zip(*its, strict=True)] for its in spans)
    first, waiting, transfer = map(_spread, times_s)
    return Transferred(prefill, decode, first, waiting, transfer, log.bytes)


@dataclass(frozen=True, slots=True)
class Sweep:
    name: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Objective:
    """An objective: the `statistic` of a latency is at most `limit_s`."""

    latency: str
    statistic: str
    limit_s: float

    def met(self, summary: RunSummary) -> bool:
        return self.ratio(summary) <= 1

    def ratio(self, summary: RunSummary) -> float:
        """Returns the latency as a share of the limit; 0 without one."""
        return self.seconds(summary) / self.limit_s

    def seconds(self, summary: RunSummary) -> float:
        return getattr(summary.latency(self.latency), self.statistic) or 0.0

    def __str__(self) -> str:
        return f"{self.latency}_{self.statistic} <= {self.limit_s * 1000:g} ms"


class Point(Struct, frozen=True, kw_only=True):
    """A run of a sweep; `meets_slo` is None without objectives."""

    value: float
    meets_slo: bool | None
    summary: RunSummary


def read_sweep(text: str) -> Sweep:
    """Reads a sweep such as `rate=2:30:2`. Raises ValueError with the rule."""
    name, _, span = text.partition("=")
    if name not in MOST:
        raise ValueError(f"must be NAME=FROM:TO:STEP with one of {', '.join(MOST)}")
    try:
        low, high, step = map(float, span.split(":"))
    except ValueError:
        raise ValueError(f"must be {name}=FROM:TO:STEP, in numbers") from None
    if not (1e-6 <= low <= high < math.inf and 0 < step < math.inf):
        raise ValueError("must go up from a number above 0, in steps above 0")
    if (high - low) / step >= MOST_POINTS:
        raise ValueError(f"must have at most {MOST_POINTS} points")
    values = [
        round(low + number * step, 9) for number in range(int((high - low) / step + 1e-9) + 1)
    ]
    if name != "rate" and not all(value.is_integer() for value in values):
        raise ValueError(f"must be whole numbers for {name}")
    if high > MOST[name]:
        raise ValueError(f"must not exceed {MOST[name]:,} for {name}")
    return Sweep(name, tuple(values))


def read_objectives(text: str) -> tuple[Objective, ...]:
    """Reads objectives such as `ttft_p99=500ms,itl_p99=50ms`. Raises ValueError with the rule."""
    objectives = []
    for part in text.split(","):
        name, _, limit = part.strip().partition("=")
        latency, _, statistic = name.partition("_")
        if latency not in LATENCIES or statistic not in STATISTICS:
            names = f"{'|'.join(LATENCIES)}_{'|'.join(STATISTICS)}"
            raise ValueError(f"must be {names}=DURATION, several with commas between")
        limit_s = parse_duration(limit)
        if limit_s <= 0:
            raise ValueError(f"must have limits above 0, not {limit}")
        objectives.append(Objective(latency, statistic, limit_s))
    return tuple(objectives)


def best(
    name: str, points: Sequence[Point], objectives: Sequence[Objective] = ()
) -> tuple[str, float | None]:
    """Returns the fewest pods, or the highest other value, that met the objectives, after its word.

    The best number of prefill pods has the most goodput, or else the latencies farthest below the
    objectives.
    """
    if name == SPLIT:
        its = _best_split(points, objectives)
        judged = its.summary.goodput if its.meets_slo is None else its.meets_slo
        return "best", its.value if judged else None
    met = [point.value for point in points if point.meets_slo]
    return (
        ("fewest", min(met, default=None))
        if name == "pods"
        else ("highest", max(met, default=None))
    )


def _best_split(points: Sequence[Point], objectives: Sequence[Objective]) -> Point:
    """Returns the best P:D, or the nearest to the objectives if none meets them."""

    def rank(it: Point) -> tuple[bool, float, float]:
        good, ratios = it.summary.goodput, (its.ratio(it.summary) for its in objectives)
        return it.meets_slo is False, -good.good if good else 0, max(ratios, default=0.0)

    return min((it for it in points if it.value), key=rank)


def table(its: RunSummary, judgement: Judgement = Judgement()) -> str:
    """Returns the latencies as a Markdown table, then the other figures, a line each."""
    spreads = [(name.upper(), its.latency(name)) for name in LATENCIES]
    if its.disaggregation is not UNSET:
        names = ("prefill", "waiting", "transfer")
        spreads += [(name, getattr(its.disaggregation, f"{name}_s")) for name in names]
    rows = [
        (name, *(report.milliseconds(getattr(it, part)) for part in STATISTICS))
        for name, it in spreads
    ]
    pods = its.requests_per_pod
    lines = [
        report.markdown([("", *STATISTICS), *rows]),
        f"requests: {its.requests:,} in {its.duration_s:,.1f} s, {its.requests_per_s:.2f}/s",
        f"tokens: {its.input_tokens_per_s:,.0f}/s in, {its.output_tokens_per_s:,.0f}/s out",
        f"KV cache: {its.kv_cache_usage.mean:.1%} used on average, {its.kv_cache_usage.peak:.1%} at the most",
        f"running: {its.running.mean:.1f} on average, {its.running.peak:.0f} at the most"
        + (", of a pod" if len(pods) > 1 else ""),
        f"steps: {its.steps:,}; preemptions: {its.preemptions:,}",
    ]
    if its.cached_tokens:
        lines.append(f"cached: {its.cached_tokens / its.input_tokens:.1%} of the prompts' tokens")
    if its.disaggregation is not UNSET:
        lines += _transfer_lines(its.disaggregation)
    elif len(pods) > 1:
        lines.append(f"pods: {len(pods)}, with {min(pods):,} to {max(pods):,} requests")
    if its.goodput is not None and judgement.limits is not None:
        lines += goodput_lines(its.goodput, judgement.limits)
    if its.price is not None:
        lines.append(
            f"price: {its.price.total:,.2f} for {its.gpu_hours:,.2f} GPU-hours; of a million tokens"
            f" {its.price.per_million_input_tokens:,.2f} in, {its.price.per_million_output_tokens:,.2f} out"
        )
    if isinstance(its.fleet, FleetUse):
        lines += [_intervals_table(its.fleet.intervals), _fleets(its, its.fleet)]
    lines += [f"{it}: {'met' if it.met(its) else 'not met'}" for it in judgement.objectives]
    return "\n".join(lines)


def figures_of(its: RunSummary, waits_s: tuple[float, float]) -> dict[str, float]:
    """Returns the figures that a comparison shows; `waits_s` are mean times of queue and prefill."""
    names = [(name, part) for name in LATENCIES for part in compare.PARTS]
    ms = {f"{name.upper()} {part}": getattr(its.latency(name), part) for name, part in names}
    ms |= {compare.QUEUE: waits_s[0], compare.PREFILL: waits_s[1]}
    counts = {
        compare.REQUESTS: its.requests,
        compare.PROMPTS: its.input_tokens,
        compare.FAILED: 0.0,
    }
    cached = {compare.CACHED: its.cached_tokens / its.input_tokens} if its.cached_tokens else {}
    rates = {compare.OUTPUT: its.output_tokens_per_s, compare.GPU_HOURS: its.gpu_hours}
    return (
        {name: value * 1000 for name, value in ms.items() if value is not None}
        | counts
        | cached
        | rates
    )


def _transfer_lines(its: Transferred) -> list[str]:
    lines = []
    for name, pool in (("prefill", its.prefill), ("decode", its.decode)):
        pods, cache, running = pool.requests_per_pod, pool.kv_cache_usage, pool.running
        use = f"KV cache {cache.mean:.1%}, {cache.peak:.1%} at the most"
        use += f"; running {running.mean:.1f}, {running.peak:.0f} at the most"
        lines.append(
            f"{name} pods: {len(pods)}, with {min(pods):,} to {max(pods):,} requests; {use}"
        )
    size, requests = its.transferred_bytes, sum(its.decode.requests_per_pod)
    return [*lines, f"transfers: {size / 1e9:,.1f} GB, {size / requests / 1e6:,.1f} MB a request"]


def fleet_use(
    outcome: SimulationOutcome, judgement: Judgement, constant: RunSummary | None
) -> FleetUse:
    parts = over_time(outcome, judgement, INTERVALS)
    lives, span_s = outcome.lives, outcome.length_s
    most = max(sum(it.begun_s <= at.begun_s < it.gone_s for it in lives) for at in lives)
    return FleetUse(pod_seconds(lives) / max(span_s, 1e-9), most, parts, constant)


def _intervals_table(parts: Sequence[Interval]) -> str:
    """Returns a Markdown table: load, pods and misses over time."""
    rows = [("from", "requests/s", "loading", "ready", "draining", "missed", "GPU-hours")]
    for it in parts:
        loading, ready, draining = (f"{count:.1f}" for count in (it.loading, it.ready, it.draining))
        missed = "-" if it.missed is None else f"{it.missed:,}"
        moment, load = f"{it.begin_s:,.0f} s", f"{it.requests_per_s:.2f}"
        rows.append((moment, load, loading, ready, draining, missed, f"{it.gpu_hours:.2f}"))
    return report.markdown(rows)


def _fleets(its: RunSummary, fleet: FleetUse) -> str:
    """Returns a Markdown table of an autoscaled fleet beside the best constant one."""
    rows = [("fleet", "pods", "TTFT p99", "good", "GPU-hours", "price")]
    both = {"autoscaled": (its, f"{fleet.mean_pods:.1f}, {fleet.most_pods} at the most")}
    if fleet.constant is not None:
        both["best constant"] = fleet.constant, f"{len(fleet.constant.requests_per_pod)}"
    for name, (run, pods) in both.items():
        good = "-" if run.goodput is None else f"{run.goodput.good:,}"
        price = "-" if run.price is None else f"{run.price.total:,.2f}"
        ttft = report.milliseconds(run.ttft_s.p99)
        rows.append((name, pods, ttft, good, f"{run.gpu_hours:.2f}", price))
    return report.markdown(rows)


def over_time(outcome: SimulationOutcome, judgement: Judgement, count: int) -> tuple[Interval, ...]:
    """Divides an autoscaled run.

    Without limits of goodput, the values of the objectives are limits.
    """
    limits = judgement.limits
    if limits is None:
        # Of two objectives of a latency the stricter value holds.
        ordered = sorted(judgement.objectives, key=lambda it: -it.limit_s)
        limits = {"": {METRICS[LATENCIES.index(it.latency)]: it.limit_s for it in ordered}}
    good = good_requests(outcome, limits) if any(limits.values()) else []
    lives, begin_s, devices = outcome.lives, min(outcome.send_s), outcome.plan.profile.devices
    width_s = max(max(it.gone_s for it in lives) - begin_s, 1e-9) / count
    places = [min(int((at_s - begin_s) / width_s), count - 1) for at_s in outcome.send_s]
    sent = Counter(places)
    late = Counter(it for it, is_good in zip(places, good, strict=False) if not is_good)
    parts = []
    for place, (loading, ready, draining) in enumerate(pods_over(lives, begin_s, width_s, count)):
        missed, hours = (
            late[place] if good else None,
            (loading + ready + draining) * width_s * devices / 3600,
        )
        load = sent[place] / width_s
        parts.append(Interval(place * width_s, load, loading, ready, draining, missed, hours))
    return tuple(parts)


def curve(name: str, points: Sequence[Point], objectives: Sequence[Objective]) -> str:
    """Returns the saturation curve as a Markdown table, and the best value that meets the
    objectives.
    """
    first = points[0].summary
    extra = ["good"] if first.goodput else []
    extra += ["a million tokens out"] if first.price else []
    rows = [
        ("P:D" if name == SPLIT else name, *CURVE, *extra, *(["meets SLO"] if objectives else []))
    ]
    for point in points:
        its = point.summary
        times = (its.ttft_s.p50, its.ttft_s.p99, its.itl_s.p50, its.itl_s.p99, its.e2e_s.p99)
        row = (
            label_of(name, point),
            f"{its.requests_per_s:.2f}",
            f"{its.output_tokens_per_s:,.0f}",
            *map(report.milliseconds, times),
            f"{its.running.mean:.1f}",
            f"{its.kv_cache_usage.peak:.0%}",
            f"{its.preemptions:,}",
            *([f"{its.goodput.share:.1%}"] if its.goodput else []),
            *([f"{its.price.per_million_output_tokens:,.2f}"] if its.price else []),
        )
        rows.append((*row, "yes" if point.meets_slo else "no") if objectives else row)
    lines = [report.markdown(rows)]
    wanted = ", ".join(map(str, objectives))
    if name == SPLIT and (objectives or first.goodput):
        split = _best_split(points, objectives)
        found = f"none meets {wanted}; nearest is " if split.meets_slo is False else ""
        lines.append(
            f"best P:D: {found}{_verdict(split, objectives)}; {_verdict(points[0], objectives)}"
        )
    elif objectives:
        word, value = best(name, points)
        found = f"none meets {wanted}" if value is None else f"{value:g} meets {wanted}"
        lines.append(f"{word} {name}: {found}")
    return "\n".join(lines)


def label_of(name: str, point: Point) -> str:
    if name != SPLIT:
        return f"{point.value:g}"
    pods = len(point.summary.requests_per_pod)
    return f"{point.value:g}:{pods - point.value:g}" if point.value else f"{pods} ordinary"


def _verdict(point: Point, objectives: Sequence[Objective]) -> str:
    its, parts = point.summary, [label_of(SPLIT, point) + ("" if point.value else " pods")]
    if objectives:
        worst = max(objectives, key=lambda it: it.ratio(its))
        parts.append(f"{worst.latency}_{worst.statistic} at {worst.ratio(its):.0%} of its limit")
    if its.goodput:
        parts.append(f"goodput {its.goodput.share:.1%}")
    return ", ".join(parts)


def write_requests(path: Path, outcome: SimulationOutcome) -> None:
    """Writes a CSV row for each request, in order of the load:

    the columns of a trace, then times and pod.
    """
    load, seconds = outcome.load, "{:.6f}".format
    later = frozenset(load.next_turns().values())
    arrivals = (
        "" if place in later else seconds(at_s) for place, at_s in enumerate(load.arrival_s)
    )
    moments = (map(seconds, its) for its in (outcome.send_s, outcome.first_s, outcome.last_s))
    columns = [arrivals, load.input_tokens, load.output_tokens, *moments, outcome.pod]
    names = [*COLUMNS, "send_s", "first_s", "last_s", "pod"]
    if load.session:
        sessions = ("" if session == NO_GROUP else session for session in load.session)
        columns, names = (
            [*columns, sessions, map(seconds, load.think_s)],
            [*names, *SESSION_COLUMNS],
        )
    report.write_rows(path, names, zip(*columns, strict=True))
