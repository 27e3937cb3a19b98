"""`plan --over-time`: the fewest accelerators at each time, as of a perfect autoscaler.

A perfect autoscaler starts and stops pods at once, and knows the load. A pod sustains the highest
rate of the load's own requests at which the SLO is met; each window then needs its rate divided by
this capacity, in whole pods. The result is a bound: a real autoscaler needs more. A simulation of
the pods of each window shows how near the bound is.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from random import Random

from msgspec import Struct

from app.extensions.plugins.policies import Decide, Look
from config import ConfigError
from workbench.load.autoscaler import Autoscaling, ScalingPolicy
from workbench.load.loads import LoadTrace
from workbench.load.tables import markdown
from workbench.plan.runs import run_fleet
from workbench.plan.slo import Slo
from workbench.runs.job import Job
from workbench.runs.sweeps import MAX_VALUES, PODS

MEASURED_S = 60.0
"""Length of the load that measures a pod."""
MIN_REQUESTS = 64
"""Fewest requests of this load."""
MIN_WINDOW_S = 1.0
"""Shortest time over which requests are a rate."""
MAX_WINDOWS = 100_000
MAX_RATE = 4096.0
MIN_RATE = 1 / 256
HALVINGS = 5
"""Bisections between a rate that meets the SLO and twice this rate: 3 % remain."""
MAX_LINES = 12
"""Most rows of the table over time; later windows are merged."""


class PodsOverTime(Struct, frozen=True, kw_only=True):
    """Pods of an engine in each window of a load."""

    engine: str
    capacity: float
    """Requests per second of a pod within the SLO."""
    price: float
    """Price of an accelerator an hour."""
    window_s: float
    pods: list[int]
    gpus: list[int]
    """Accelerators in each window."""
    slo_share: float
    """Worst latency as a share of its limit, simulated with these pods."""
    length_s: float
    """Length of the load."""

    @property
    def gpu_hours(self) -> float:
        """Accelerators, summed over time."""
        last_s = self.length_s - self.window_s * (len(self.pods) - 1)
        seconds = self.window_s * sum(self.gpus[:-1]) + last_s * self.gpus[-1]
        return seconds / 3600

    @property
    def mean_gpus(self) -> float:
        """Mean accelerators over time."""
        return 3600 * self.gpu_hours / self.length_s


def window_rates(load: LoadTrace, window_s: float) -> tuple[list[float], float]:
    """Returns the requests per second of each window, and the length of the load in seconds.

    Raises:
        ConfigError: The load has too many windows.
    """
    begin_s = load.arrival_s[0]
    length_s = max(load.arrival_s[-1] - begin_s, 1e-3)
    windows = max(1, math.ceil(length_s / window_s))
    if windows > MAX_WINDOWS:
        raise ConfigError(
            f"{load.origin} has {windows:,} windows of {window_s:g} s, but at most"
            f" {MAX_WINDOWS:,} are allowed; increase --over-time"
        )
    counts = [0] * windows
    for arrival_s in load.arrival_s:
        counts[min(windows - 1, int((arrival_s - begin_s) / window_s))] += 1
    last_s = length_s - window_s * (windows - 1)
    rates = [count / window_s for count in counts]
    # A single request at the beginning of a last window is not a rate of thousands a second.
    rates[-1] = counts[-1] / max(last_s, min(window_s, MIN_WINDOW_S))
    return rates, length_s


def capacity(job: Job, load: LoadTrace, slo: Slo) -> float:
    """Returns the highest rate of the load's requests at which a pod meets the SLO; 0 for none."""

    def is_met(rate: float) -> bool:
        return not run_fleet(_at_rate(load, rate), job, slo).misses

    rate = 1.0
    if is_met(rate):
        while rate < MAX_RATE and is_met(2 * rate):
            rate *= 2
    else:
        while not is_met(rate / 2):
            rate /= 2
            if rate < MIN_RATE:
                return 0.0
        rate /= 2
    step = rate / 2
    for _ in range(HALVINGS):
        if is_met(rate + step):
            rate += step
        step /= 2
    return rate


def _at_rate(load: LoadTrace, rate: float) -> LoadTrace:
    """Returns requests of the load in their order, which arrive at random with a rate."""
    rng = Random(len(load))  # not by the path: a copy of a trace has the same plan
    count = max(MIN_REQUESTS, round(MEASURED_S * rate))
    rows = [number % len(load) for number in range(count)]
    arrival_s = array("d")
    now_s = 0.0
    for _ in rows:
        arrival_s.append(now_s)
        now_s += rng.expovariate(rate)
    repeated = replace(load, arrival_s=arrival_s)
    for name in ("input_tokens", "output_tokens", "group", "prefix_tokens", "kind"):
        column = getattr(load, name)
        if column:
            setattr(repeated, name, array(column.typecode, [column[row] for row in rows]))
    if load.images:
        repeated.images = [load.images[row] for row in rows]
    return repeated


def plan_over_time(
    name: str, job: Job, load: LoadTrace, *, slo: Slo, window_s: float
) -> PodsOverTime | None:
    """Returns the pods of an engine over time; None if no pod meets the SLO at any rate.

    Raises:
        ConfigError: The load has too many windows, or needs too many pods.
    """
    rates, length_s = window_rates(load, window_s)
    pod_rate = capacity(job, load, slo)
    if not pod_rate:
        return None
    pods = [math.ceil(rate / pod_rate - 1e-9) for rate in rates]
    most_pods = MAX_VALUES[PODS]
    if max(pods) > most_pods:
        raise ConfigError(
            f"{load.origin}: in one window, {name} requires {max(pods):,} pods, but at most "
            f"{most_pods:,} can be simulated"
        )
    verdict = run_fleet(load, _scheduled(job, pods, window_s), slo)
    return PodsOverTime(
        engine=name,
        capacity=pod_rate,
        price=job.judgement.gpu_hour_price or 0.0,
        window_s=window_s,
        pods=pods,
        gpus=[job.rented(job.plan.profile.devices * count) for count in pods],
        slo_share=verdict.slo_share,
        length_s=length_s,
    )


def _scheduled(job: Job, pods: Sequence[int], window_s: float) -> Job:
    """Returns the job with the pods of each window, which start at once."""
    counts = [max(1, count) for count in pods]
    policy = ScalingPolicy(min(counts), max(counts), partial(_start, counts, window_s))
    scaling = Autoscaling(
        policy=policy, cold_start_s=0.0, every_s=window_s, policy_text="a perfect autoscaler"
    )
    return replace(job, plan=replace(job.plan, pods=counts[0], autoscaling=scaling))


def _start(counts: Sequence[int], window_s: float, pods: int) -> Decide:
    return partial(_decide, counts, window_s)


def _decide(counts: Sequence[int], window_s: float, look: Look) -> int:
    window = min(len(counts) - 1, int(look.at_s / window_s + 1e-6))
    return counts[window]


def over_time_table(name: str, load: LoadTrace, slo: Slo, plans: Sequence[PodsOverTime]) -> str:
    """Returns the verdict, the engines by price, and the accelerators of the cheapest over time."""
    rows = [("", "a pod", "peak GPUs", "mean GPUs", "GPU-hours", "price", "of the limit")]
    for plan in plans:
        rows.append(
            (
                plan.engine,
                f"{plan.capacity:.3g}/s",
                str(max(plan.gpus)),
                f"{plan.mean_gpus:.1f}",
                f"{plan.gpu_hours:.2f}",
                f"{plan.gpu_hours * plan.price:,.2f}",
                f"{plan.slo_share:.0%}",
            )
        )
    best = plans[0]
    heading = f"{name}: {len(load):,} requests; {slo}; windows of {best.window_s:g} s"
    verdict = (
        f"Cheapest over time: {best.engine}, {best.mean_gpus:.1f} GPUs on average and"
        f" {max(best.gpus)} at the most, {best.gpu_hours * best.price:,.2f} in total"
    )
    return "\n".join([verdict, heading, markdown(rows), *_series_lines(best)])


def _series_lines(plan: PodsOverTime) -> list[str]:
    """Returns lines with the time at which the accelerators change, and their number."""
    changes = []
    for window, count in enumerate(plan.gpus):
        if not window or count != plan.gpus[window - 1]:
            changes.append(f"{window * plan.window_s:g}s={count}")
    hidden = len(changes) - MAX_LINES
    text = ", ".join(changes[:MAX_LINES])
    if hidden > 0:
        text += f", and {hidden} more changes (--json has all)"
    lines = [f"GPUs of {plan.engine} over time: {text}"]
    if plan.slo_share > 1:
        lines.append(
            f"with these pods, a latency reaches {plan.slo_share:.0%} of its limit: bursts within a"
            " window need more, or shorter windows"
        )
    return lines


def over_time_order(plan: PodsOverTime) -> tuple[float, float]:
    """Returns a key that sorts the cheapest engines first."""
    return plan.gpu_hours * plan.price, plan.gpu_hours


def over_time_figures(plan: PodsOverTime) -> dict[str, object]:
    """Returns the figures of one engine for `--json`."""
    return {
        "engine": plan.engine,
        "requests_per_s_of_a_pod": plan.capacity,
        "window_s": plan.window_s,
        "gpus": plan.gpus,
        "pods": plan.pods,
        "peak_gpus": max(plan.gpus),
        "mean_gpus": plan.mean_gpus,
        "gpu_hours": plan.gpu_hours,
        "price": plan.gpu_hours * plan.price,
        "slo_share": plan.slo_share,
    }
