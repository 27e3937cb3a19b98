"""Pictures of simulations: latencies, batch and cache over time; curves of sweeps."""

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from app.lab.fidelity.simulation import SimulationOutcome
from app.lab.fidelity.summary import (
    LATENCIES,
    SPLIT,
    STATISTICS,
    Judgement,
    Objective,
    Point,
    RunSummary,
    best,
    label_of,
    over_time,
)
from app.lab.load import report
from app.lab.load.autoscale import Interval, pods_over

BINS = 120
MOST_TICKS = 12
_UNITS = {"ttft": ("TTFT (ms)", 1000), "itl": ("ITL (ms)", 1000), "e2e": ("E2E (s)", 1)}
"""Names of axes, and units in a second."""
_LINES = {
    "mean": {"color": report.GREY, "marker": "D"},
    "p50": {"color": report.BLUE, "marker": "o"},
    "p90": {"color": report.ORANGE, "marker": "s"},
    "p99": {"color": report.RED, "marker": "^"},
}
_SWEPT = {
    "rate": "rate (requests/s)",
    "in-flight": "requests in flight",
    "pods": "pods",
    SPLIT: "prefill pods:decode pods",
}
_LOG_FROM = 20
"""Ratio of the highest to the lowest value of a latency from which its axis is logarithmic."""


def draw_run(
    outcome: SimulationOutcome, summary: RunSummary, judgement: Judgement, title: str, path: Path
) -> None:
    """Writes a picture: latencies by time of sending, sequences in a step, use of the cache.

    Of an autoscaled run also pods and load.
    """
    size, rows = ((8, 7.2), 3) if outcome.lives else ((8, 4.8), 2)
    with report.picture_file(path, title, size, (rows, 2)) as axes:
        _draw_latencies(axes, outcome, judgement.objectives)
        _draw_use(axes[2:], outcome)
        if summary.fleet:
            _draw_pods(axes[4:], over_time(outcome, judgement, BINS), summary.fleet.constant)
        for its in axes:
            report.from_zero(its)


def _draw_latencies(
    axes: Sequence[report.Axes], outcome: SimulationOutcome, objectives: Sequence[Objective]
) -> None:
    ttft_s, _, e2e_s = outcome.latencies()
    begin_s = min(outcome.send_s)
    width_s = max(max(outcome.send_s) - begin_s, 1e-9) / BINS
    for its, latency, values in ((axes[0], "ttft", ttft_s), (axes[1], "e2e", e2e_s)):
        bins: defaultdict[int, list[float]] = defaultdict(list)
        for send_s, value in zip(outcome.send_s, values, strict=True):
            bins[int((send_s - begin_s) / width_s)].append(value)
        moments = [(place + 0.5) * width_s for place in sorted(bins)]
        name, per_s = _UNITS[latency]
        for share, label in ((0.5, "p50"), (0.99, "p99")):
            heights = [
                report.quantile(sorted(bins[place]), share) * per_s for place in sorted(bins)
            ]
            its.plot(moments, heights, color=_LINES[label]["color"], label=label)
        its.set(xlabel="time of sending (s)", ylabel=name)
        _draw_limits(its, latency, objectives)


def _draw_use(axes: Sequence[report.Axes], outcome: SimulationOutcome) -> None:
    plan = outcome.plan
    timeline, capacity = outcome.timeline, plan.profile.engine.num_gpu_blocks - 1
    times_s = [place * timeline.bin_s for place in range(len(timeline.blocks))]
    pod_bins_s = [timeline.bin_s * plan.pods] * len(times_s)
    if outcome.lives:
        phases = pods_over(outcome.lives, timeline.begin_s, timeline.bin_s, len(times_s))
        pod_bins_s = [timeline.bin_s * max(ready + draining, 1e-9) for _, ready, draining in phases]
    sequences = [it / pod_s for it, pod_s in zip(timeline.sequences, pod_bins_s, strict=True)]
    used = [it / pod_s for it, pod_s in zip(timeline.blocks, pod_bins_s, strict=True)]
    # A step belongs to the bin of its start, so a short bin may get more than its time.
    shares = [min(100.0, it / capacity * 100) for it in used]
    axes[0].plot(times_s, sequences, color=report.BLUE)
    axes[1].plot(times_s, shares, color=report.BLUE)
    of = "of a pod" if plan.pods > 1 or outcome.lives else "in use"
    axes[0].set(xlabel="time (s)", ylabel=f"sequences {of}")
    axes[1].set(xlabel="time (s)", ylabel=f"KV cache {of} (%)")


def _draw_pods(
    axes: Sequence[report.Axes], parts: Sequence[Interval], constant: RunSummary | None
) -> None:
    """Draws pods by phase and the pods of a constant fleet, then load and misses, over time."""
    times_s = [it.begin_s for it in parts]
    phases = {"ready": report.BLUE, "loading": report.GREY, "draining": report.ORANGE}
    heights = [[getattr(it, phase) for it in parts] for phase in phases]
    style = {"colors": phases.values(), "labels": [f"{it} pods" for it in phases], "alpha": 0.6}
    axes[0].stackplot(times_s, heights, step="post", **style)
    if constant is not None:
        pods = len(constant.requests_per_pod)
        axes[0].axhline(
            pods, color=report.GREEN, linestyle="--", label=f"best constant fleet: {pods}"
        )
    axes[1].plot(times_s, [it.requests_per_s for it in parts], color=report.BLUE, label="load")
    if parts[0].missed is not None:
        late = [(it.missed or 0) / times_s[1] for it in parts]
        axes[1].fill_between(times_s, late, color=report.RED, alpha=0.6, label="missed")
    axes[0].set(xlabel="time (s)", ylabel="pods")
    axes[1].set(xlabel="time (s)", ylabel="requests/s")


def draw_curves(
    axes: Sequence[report.Axes],
    name: str,
    points: Sequence[Point],
    objectives: Sequence[Objective] = (),
) -> None:
    """Draws latencies and output tokens/s over the swept setting, the objectives, and the best
    value.
    """
    labels, values = [label_of(name, point) for point in points], [point.value for point in points]
    if name == SPLIT:  # the ordinary pods stand alone, as their line leads nowhere
        places, parts = list(map(float, range(len(points)))), [slice(1), slice(1, None)]
    else:
        places, parts = values, [slice(None)]
    for its, latency in zip(axes, LATENCIES, strict=False):
        _draw_latency(its, latency, points, objectives, [(places[part], part) for part in parts])
    heights = [point.summary.output_tokens_per_s for point in points]
    goods = [100 * it.good / it.requests for point in points if (it := point.summary.goodput)]
    axes[3].set(ylabel="good requests (%)" if goods else "output tokens/s")
    for part in parts:
        axes[3].plot(places[part], (goods or heights)[part], **_LINES["p50"])
    report.from_zero(axes[3])
    word, value = best(name, points, objectives)
    for its in axes:
        its.set(xlabel=_SWEPT[name])
        if len(places) <= MOST_TICKS:
            its.set_xticks(places, labels)
        if value is not None:
            place = values.index(value)
            found = f"{word} {'P:D' if name == SPLIT else name}{' within the SLO' if objectives else ''}"
            style = {"color": report.GREEN, "linewidth": 4, "alpha": 0.3}
            its.axvline(places[place], **style, label=f"{found}: {labels[place]}")


def _draw_latency(
    axes: report.Axes,
    latency: str,
    points: Sequence[Point],
    objectives: Sequence[Objective],
    parts: Sequence[tuple[list[float], slice]],
) -> None:
    label, per_s = _UNITS[latency]
    own = [it for it in objectives if it.latency == latency]
    drawn = [it.limit_s * per_s for it in own]
    for statistic in STATISTICS:
        if statistic not in {"p50", "p99", *(it.statistic for it in own)}:
            continue
        seconds = [getattr(point.summary.latency(latency), statistic) for point in points]
        heights = [math.nan if it is None else it * per_s for it in seconds]
        drawn += [it for it in heights if it > 0]
        for places, part in parts:
            axes.plot(places, heights[part], **_LINES[statistic], label=statistic)
    axes.set(ylabel=label)
    _draw_limits(axes, latency, objectives)
    if drawn and max(drawn) > _LOG_FROM * min(drawn):
        axes.set_yscale("log")
    else:
        report.from_zero(axes)


def _draw_limits(axes: report.Axes, latency: str, objectives: Sequence[Objective]) -> None:
    for it in objectives:
        if it.latency == latency:
            style = {"color": _LINES[it.statistic]["color"], "linestyle": "--", "linewidth": 1}
            axes.axhline(it.limit_s * _UNITS[latency][1], **style, label=f"SLO, {it.statistic}")
