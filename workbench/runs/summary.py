"""Figures of a simulated run, and the objectives that they are compared with."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import sub

from msgspec import UNSET, Struct, UnsetType

from app.shared.statistics import column_mean_and_quantiles, latencies
from config.durations import parse_duration
from workbench.engine.costs import Energy
from workbench.engine.steps import Profile
from workbench.load.pod_lives import Interval, pod_seconds, pods_over
from workbench.load.tables import milliseconds
from workbench.runs.engine_limits import max_request_tokens
from workbench.runs.goodput import (
    Goodput,
    Limits,
    Price,
    good_requests,
    goodput,
)
from workbench.runs.intervals import Intervals
from workbench.runs.kv_tiers import TierUse
from workbench.runs.simulation import SimulationOutcome
from workbench.runs.timeline import Timeline
from workbench.runs.token_gaps import TokenGaps

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
STATISTICS = ("mean", *QUANTILES)
LATENCIES = ("ttft", "tpot", "itl", "e2e")
DEFAULT_STATISTIC = "p99"
"""Statistic of a latency without an objective, where a table has one column for the latency."""
LIMIT_METRICS = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2el"}
"""Latency of a whole request -> metric of the limits of single requests."""
TABLE_INTERVALS = 12
"""Intervals of an autoscaled run, in its table."""


class Spread(Struct, frozen=True, rename={"p999": "p99.9"}):
    """Mean and quantiles in seconds, the latter `sorted[int(n * p)]`; None without values."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    p999: float | None = None

    def statistic(self, name: str) -> float | None:
        """Returns the value of a statistic from `STATISTICS`."""
        value: float | None = getattr(self, name.replace(".", ""))
        return value


class Use(Struct, frozen=True):
    """Mean and peak over the time from the first request to the last token."""

    mean: float
    peak: float


class PoolUse(Struct, frozen=True):
    """Use of the prefill pods, or of the decode pods.

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


class ClassFigures(Struct, frozen=True):
    """Latencies of the requests of a class."""

    name: str
    priority: int
    requests: int
    ttft_s: Spread
    tpot_s: Spread
    e2e_s: Spread

    def text(self, objectives: Sequence[Objective]) -> str:
        """Returns a line with the statistics of the objectives."""
        spreads = {"ttft": self.ttft_s, "tpot": self.tpot_s, "e2e": self.e2e_s}
        parts = [f"class {self.name}: {self.requests:,} requests"]
        for latency, statistic in objective_columns(objectives, tuple(spreads)):
            if latency in spreads:
                value = milliseconds(spreads[latency].statistic(statistic))
                parts.append(f"{latency.upper()} {statistic} {value}")
        return ", ".join(parts)


class FleetUse(Struct, frozen=True):
    """Pods of an autoscaled run."""

    mean_pods: float
    most_pods: int
    intervals: tuple[Interval, ...]
    constant: RunSummary | None
    """The smallest constant fleet that does as well, if there is one."""


class Memory(Struct, frozen=True, kw_only=True):
    """What fits in the memory of a pod."""

    weight_bytes: float
    """Of all devices of the pod; 0 for a profile that does not state them."""
    devices: int
    kv_tokens: int
    """Tokens in the KV cache."""
    longest_request: int
    """Most tokens of a request, prompt and answer together."""
    concurrency: float
    """Requests of max-model-len tokens that the KV cache holds at a time, as vLLM logs it."""

    def __str__(self) -> str:
        plural = "s" if self.devices > 1 else ""
        weights = ""
        if self.weight_bytes:
            weights = (
                f"weights of {self.weight_bytes / 1e9:,.1f} GB on {self.devices} device{plural}, "
            )
        return (
            f"memory of a pod: {weights}KV cache of {self.kv_tokens:,} tokens; requests of up to"
            f" {self.longest_request:,} tokens, {self.concurrency:,.1f} of that length at a time"
        )


def memory_of(profile: Profile) -> Memory:
    """Returns what fits in the memory of an engine."""
    limits = profile.engine
    kv_tokens = (limits.num_gpu_blocks - 1) * limits.block_size
    longest_request = max_request_tokens(limits)
    return Memory(
        weight_bytes=profile.weight_bytes,
        devices=profile.devices,
        kv_tokens=kv_tokens,
        longest_request=longest_request,
        concurrency=kv_tokens / (limits.max_model_len or longest_request),
    )


class RunSummary(Struct, frozen=True, kw_only=True):
    """Figures of a run, with the names and units of `--json`."""

    profile: str
    checked: str
    """How far the profile was checked, and its assumptions."""
    policy: str
    """Routing policy."""
    memory: Memory
    requests: int
    steps: int
    preemptions: int
    ttft_s: Spread
    """Time from sending a request to its first token."""
    tpot_s: Spread
    """(last - first) / (output - 1) of each request with more than one token, as vLLM's TPOT."""
    itl_s: Spread
    """Each gap between two tokens of a request, or between two groups of accepted drafts."""
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
    intervals: Intervals | UnsetType = UNSET
    """Only with profile auto."""
    fleet: FleetUse | UnsetType = UNSET
    """Only with autoscaling."""
    energy: Energy | UnsetType = UNSET
    tiers: tuple[TierUse, ...] | UnsetType = UNSET
    classes: tuple[ClassFigures, ...] | UnsetType = UNSET
    """Only with priorities."""

    def latency(self, name: str) -> Spread:
        """Returns the spread of a latency from `LATENCIES`."""
        spread: Spread = getattr(self, f"{name}_s")
        return spread


@dataclass(frozen=True, slots=True)
class Objective:
    """An objective: the `statistic` of a latency is at most `limit_s`."""

    latency: str
    statistic: str
    limit_s: float

    def is_met(self, summary: RunSummary) -> bool:
        """Returns whether a run meets the objective."""
        return self.ratio(summary) <= 1

    def ratio(self, summary: RunSummary) -> float:
        """Returns the latency as a share of the limit; 0 for a run without that latency."""
        return self.seconds(summary) / self.limit_s

    def seconds(self, summary: RunSummary) -> float:
        """Returns the latency; 0 for a run without that latency."""
        return summary.latency(self.latency).statistic(self.statistic) or 0.0

    def __str__(self) -> str:
        return f"{self.latency}_{self.statistic} <= {self.limit_s * 1000:g} ms"


def objective_columns(
    objectives: Sequence[Objective], latencies: Sequence[str] = LATENCIES
) -> list[tuple[str, str]]:
    """Returns a latency and a statistic for each column of a table.

    Each objective has a column. The other `latencies` have the statistic of the first objective,
    or p99 without objectives.
    """
    default = objectives[0].statistic if objectives else DEFAULT_STATISTIC
    columns: list[tuple[str, str]] = []
    for latency in LATENCIES:
        statistics = [part.statistic for part in objectives if part.latency == latency]
        if not statistics and latency in latencies:
            statistics = [default]
        columns += [(latency, statistic) for statistic in dict.fromkeys(statistics)]
    return columns


@dataclass(frozen=True, slots=True)
class Judgement:
    """Figures and thresholds that decide whether a run passes."""

    limits: Limits | None = None
    """Limits of single requests."""
    gpu_hour_price: float | None = None
    """Price of an accelerator for an hour."""
    objectives: tuple[Objective, ...] = ()

    def is_met(self, summary: RunSummary) -> bool | None:
        """Returns whether a run meets all objectives; None if there are none."""
        if not self.objectives:
            return None
        return all(objective.is_met(summary) for objective in self.objectives)


def read_objectives(text: str) -> tuple[Objective, ...]:
    """Reads objectives such as `ttft_p99=500ms,itl_p99=50ms`. Raises ValueError with the rule."""
    objectives = []
    for part in text.split(","):
        name, _, limit = part.strip().partition("=")
        latency, _, statistic = name.partition("_")
        if latency not in LATENCIES or statistic not in STATISTICS:
            names = f"{'|'.join(LATENCIES)}_{'|'.join(STATISTICS)}"
            raise ValueError(f"must be a comma-separated list of {names}=DURATION")
        limit_s = parse_duration(limit)
        if limit_s <= 0:
            raise ValueError(f"must have limits greater than 0, not {limit}")
        objectives.append(Objective(latency, statistic, limit_s))
    return tuple(objectives)


def summarize(
    outcome: SimulationOutcome, profile: str, judgement: Judgement = Judgement()
) -> RunSummary:
    """Returns the figures of a run; `profile` is the name of its profile."""
    load = outcome.load
    plan = outcome.plan
    duration_s = outcome.length_s
    per_s = outcome.per_s
    input_tokens = sum(load.input_tokens)
    output_tokens = sum(load.output_tokens)
    requests_per_pod = _requests_per_pod(outcome)
    pods: float = plan.pods
    if outcome.lives and per_s:
        pods = pod_seconds(outcome.lives) * per_s
    pool = _pool_use(outcome, outcome.timeline, requests_per_pod, pods)
    ttft_s, tpot_s, e2e_s = map(_spread, outcome.latencies())
    good = None
    if judgement.limits is not None:
        good = goodput(outcome, judgement.limits)
    gpu_hours = pods * plan.profile.devices * duration_s / 3600
    price = None
    if judgement.gpu_hour_price is not None:
        total = gpu_hours * judgement.gpu_hour_price
        price = Price(total, total / input_tokens * 1e6, total / output_tokens * 1e6)
    return RunSummary(
        profile=profile,
        checked=plan.profile.checked,
        policy=plan.policy,
        memory=memory_of(plan.profile),
        requests=len(load),
        steps=outcome.steps,
        preemptions=outcome.preemptions,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        itl_s=_spread_of_gaps(outcome.gaps),
        e2e_s=e2e_s,
        duration_s=duration_s,
        requests_per_s=len(load) * per_s,
        input_tokens_per_s=input_tokens * per_s,
        output_tokens_per_s=output_tokens * per_s,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_tokens=outcome.cached_tokens,
        kv_cache_usage=pool.kv_cache_usage,
        running=pool.running,
        requests_per_pod=requests_per_pod,
        gpu_hours=gpu_hours,
        goodput=good,
        price=price,
        disaggregation=_transferred(outcome, requests_per_pod),
    )


def class_figures(outcome: SimulationOutcome) -> tuple[ClassFigures, ...]:
    """Returns the latencies of each class with a priority, as far as it has requests."""
    load = outcome.load
    figures = []
    for part in outcome.plan.priorities:
        if part.name not in load.classes:
            continue
        kind = load.classes.index(part.name)
        numbers = [number for number, other in enumerate(load.kind) if other == kind]
        columns = (outcome.send_s, outcome.first_s, outcome.last_s, load.output_tokens)
        ttft_s, tpot_s, e2e_s = map(
            _spread, latencies(*([column[number] for number in numbers] for column in columns))
        )
        figures.append(
            ClassFigures(
                name=part.name,
                priority=part.priority,
                requests=len(numbers),
                ttft_s=ttft_s,
                tpot_s=tpot_s,
                e2e_s=e2e_s,
            )
        )
    return tuple(figures)


def _requests_per_pod(outcome: SimulationOutcome) -> tuple[int, ...]:
    counts = Counter(outcome.pod)
    if outcome.transfers is not None:
        counts += Counter(outcome.transfers.prefill_pod)
    return tuple(counts[pod] for pod in range(outcome.pods))


def _spread(values: array[float]) -> Spread:
    if not values:
        return Spread()
    return Spread(*column_mean_and_quantiles(values, list(QUANTILES.values())))


def _spread_of_gaps(gaps: TokenGaps) -> Spread:
    if not gaps.count:
        return Spread()
    return Spread(gaps.mean_s, *gaps.quantiles_s(list(QUANTILES.values())))


def _pool_use(
    outcome: SimulationOutcome,
    timeline: Timeline,
    requests_per_pod: tuple[int, ...],
    pods: float,
) -> PoolUse:
    """Returns the use of a pool with a mean of `pods` pods."""
    share = outcome.per_s / pods
    capacity = outcome.plan.profile.engine.num_gpu_blocks - 1
    return PoolUse(
        requests_per_pod,
        Use(sum(timeline.blocks) * share / capacity, timeline.max_blocks / capacity),
        Use(sum(timeline.sequences) * share, timeline.max_sequences),
    )


def _transferred(
    outcome: SimulationOutcome, requests_per_pod: tuple[int, ...]
) -> Transferred | UnsetType:
    log = outcome.transfers
    split = outcome.plan.disaggregation
    if log is None or split is None:
        return UNSET
    prefill_timeline, decode_timeline = log.pools()
    prefill_requests = requests_per_pod[: split.prefill_pods]
    decode_requests = requests_per_pod[split.prefill_pods :]
    return Transferred(
        prefill=_pool_use(outcome, prefill_timeline, prefill_requests, split.prefill_pods),
        decode=_pool_use(outcome, decode_timeline, decode_requests, split.decode_pods),
        prefill_s=_spread_between(outcome.send_s, log.prefilled_s),
        waiting_s=_spread_between(log.seen_s, log.begin_s),
        transfer_s=_spread_between(log.begin_s, log.end_s),
        transferred_bytes=log.bytes,
    )


def _spread_between(begin_s: Sequence[float], end_s: Sequence[float]) -> Spread:
    return _spread(array("d", map(sub, end_s, begin_s)))


def fleet_use(
    outcome: SimulationOutcome, judgement: Judgement, constant: RunSummary | None
) -> FleetUse:
    """Returns the figures of an autoscaled fleet; `constant` is the best constant one."""
    lives = outcome.lives
    most_pods = max(
        sum(other.begun_s <= life.begun_s < other.gone_s for other in lives) for life in lives
    )
    return FleetUse(
        mean_pods=pod_seconds(lives) / max(outcome.length_s, 1e-9),
        most_pods=most_pods,
        intervals=intervals_of(outcome, judgement, TABLE_INTERVALS),
        constant=constant,
    )


def intervals_of(
    outcome: SimulationOutcome, judgement: Judgement, count: int
) -> tuple[Interval, ...]:
    """Divides an autoscaled run into `count` intervals.

    Without limits of goodput, the values of the objectives are the limits.
    """
    limits = judgement.limits
    if limits is None:
        limits = {"": _limits_of_objectives(judgement.objectives)}
    good = good_requests(outcome, limits) if any(limits.values()) else []
    begin_s = min(outcome.send_s)
    end_s = max(life.gone_s for life in outcome.lives)
    width_s = max(end_s - begin_s, 1e-9) / count
    indexes = [min(int((send_s - begin_s) / width_s), count - 1) for send_s in outcome.send_s]
    sent = Counter(indexes)
    missed = Counter(index for index, is_good in zip(indexes, good, strict=False) if not is_good)
    devices = outcome.plan.profile.devices
    intervals = []
    for index, phases in enumerate(pods_over(outcome.lives, begin_s, width_s, count)):
        loading, ready, draining = phases
        intervals.append(
            Interval(
                begin_s=index * width_s,
                requests_per_s=sent[index] / width_s,
                loading=loading,
                ready=ready,
                draining=draining,
                missed=missed[index] if good else None,
                gpu_hours=(loading + ready + draining) * width_s * devices / 3600,
            )
        )
    return tuple(intervals)


def _limits_of_objectives(objectives: Sequence[Objective]) -> dict[str, float]:
    limits: dict[str, float] = {}
    for objective in objectives:
        metric = LIMIT_METRICS.get(objective.latency)
        if metric is None:  # gaps belong to no single request
            continue
        # Of two objectives of a latency the stricter value holds.
        limits[metric] = min(objective.limit_s, limits.get(metric, objective.limit_s))
    return limits
