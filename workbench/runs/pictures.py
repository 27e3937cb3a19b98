"""Pictures of simulations: latencies, batch and cache over time; curves of sweeps."""

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from app.shared.statistics import quantile
from workbench.load.plotting import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    Axes,
    picture_file,
    start_at_zero,
)
from workbench.load.pod_lives import Interval, pods_over
from workbench.runs.simulation import SimulationOutcome
from workbench.runs.summary import (
    STATISTICS,
    Judgement,
    Objective,
    RunSummary,
    intervals_of,
)
from workbench.runs.sweeps import (
    IN_FLIGHT,
    PODS,
    PREFILL_PODS,
    RATE,
    Point,
    best_value,
    point_label,
    setting_label,
)

BINS = 120
MAX_TICKS = 12
AXIS_LABELS = {"ttft": "TTFT (ms)", "tpot": "TPOT (ms)", "itl": "ITL (ms)", "e2e": "E2E (s)"}
UNITS_PER_SECOND = {"ttft": 1000, "tpot": 1000, "itl": 1000, "e2e": 1}
LINE_STYLES = {
    "mean": {"color": GREY, "marker": "D"},
    "p50": {"color": BLUE, "marker": "o"},
    "p90": {"color": ORANGE, "marker": "s"},
    "p95": {"color": ORANGE, "marker": "v"},
    "p99": {"color": RED, "marker": "^"},
    "p99.9": {"color": RED, "marker": "*"},
}
SWEEP_LABELS = {
    RATE: "rate (requests/s)",
    IN_FLIGHT: "requests in flight",
    PODS: "pods",
    PREFILL_PODS: "prefill pods:decode pods",
}
MIN_LOGARITHMIC_RATIO = 20
"""Ratio of the highest to the lowest value of a latency from which its axis is logarithmic."""


def draw_run(
    outcome: SimulationOutcome, summary: RunSummary, judgement: Judgement, title: str, path: Path
) -> None:
    """Writes a picture: latencies by time of sending, sequences in a step, use of the cache.

    For an autoscaled run it also has pods and load.
    """
    size = (8, 4.8)
    rows = 2
    if outcome.lives:
        size = (8, 7.2)
        rows = 3
    with picture_file(path, title, size, (rows, 2)) as panels:
        _draw_latencies(panels, outcome, judgement.objectives)
        _draw_use(panels[2:], outcome)
        if summary.fleet:
            intervals = intervals_of(outcome, judgement, BINS)
            _draw_pods(panels[4:], intervals, summary.fleet.constant)
        for axes in panels:
            start_at_zero(axes)


def _draw_latencies(
    panels: Sequence[Axes], outcome: SimulationOutcome, objectives: Sequence[Objective]
) -> None:
    ttft_s, _, e2e_s = outcome.latencies()
    begin_s = min(outcome.send_s)
    width_s = max(max(outcome.send_s) - begin_s, 1e-9) / BINS
    for axes, latency, values in ((panels[0], "ttft", ttft_s), (panels[1], "e2e", e2e_s)):
        bins: defaultdict[int, list[float]] = defaultdict(list)
        for send_s, value in zip(outcome.send_s, values, strict=True):
            bins[int((send_s - begin_s) / width_s)].append(value)
        times_s = [(index + 0.5) * width_s for index in sorted(bins)]
        per_s = UNITS_PER_SECOND[latency]
        for share, label in ((0.5, "p50"), (0.99, "p99")):
            heights = [quantile(sorted(bins[index]), share) * per_s for index in sorted(bins)]
            axes.plot(times_s, heights, color=LINE_STYLES[label]["color"], label=label)
        axes.set(xlabel="time of sending (s)", ylabel=AXIS_LABELS[latency])
        _draw_objectives(axes, latency, objectives)


def _draw_use(panels: Sequence[Axes], outcome: SimulationOutcome) -> None:
    plan = outcome.plan
    timeline = outcome.timeline
    capacity = plan.profile.engine.num_gpu_blocks - 1
    times_s = [index * timeline.bin_s for index in range(len(timeline.blocks))]
    pod_bins_s = [timeline.bin_s * plan.pods] * len(times_s)
    if outcome.lives:
        phases = pods_over(outcome.lives, timeline.begin_s, timeline.bin_s, len(times_s))
        pod_bins_s = [timeline.bin_s * max(ready + draining, 1e-9) for _, ready, draining in phases]
    sequences = [total / pod_s for total, pod_s in zip(timeline.sequences, pod_bins_s, strict=True)]
    used_blocks = [total / pod_s for total, pod_s in zip(timeline.blocks, pod_bins_s, strict=True)]
    # A step belongs to the bin of its start, so a short bin may get more than its time.
    percent = [min(100.0, used / capacity * 100) for used in used_blocks]
    panels[0].plot(times_s, sequences, color=BLUE)
    panels[1].plot(times_s, percent, color=BLUE)
    scope = "of a pod" if plan.pods > 1 or outcome.lives else "in use"
    panels[0].set(xlabel="time (s)", ylabel=f"sequences {scope}")
    panels[1].set(xlabel="time (s)", ylabel=f"KV cache {scope} (%)")


def _draw_pods(
    panels: Sequence[Axes], intervals: Sequence[Interval], constant: RunSummary | None
) -> None:
    """Draws pods by phase and the pods of a constant fleet, then load and misses, over time."""
    pod_axes, load_axes = panels
    times_s = [interval.begin_s for interval in intervals]
    colors = {"ready": BLUE, "loading": GREY, "draining": ORANGE}
    pod_axes.stackplot(
        times_s,
        [[getattr(interval, phase) for interval in intervals] for phase in colors],
        step="post",
        colors=colors.values(),
        labels=[f"{phase} pods" for phase in colors],
        alpha=0.6,
    )
    if constant is not None:
        pods = len(constant.requests_per_pod)
        label = f"best constant fleet: {pods}"
        pod_axes.axhline(pods, color=GREEN, linestyle="--", label=label)
    rates = [interval.requests_per_s for interval in intervals]
    load_axes.plot(times_s, rates, color=BLUE, label="load")
    if intervals[0].missed is not None:
        missed_per_s = [(interval.missed or 0) / times_s[1] for interval in intervals]
        load_axes.fill_between(times_s, missed_per_s, color=RED, alpha=0.6, label="missed")
    pod_axes.set(xlabel="time (s)", ylabel="pods")
    load_axes.set(xlabel="time (s)", ylabel="requests/s")


def draw_curves(
    panels: Sequence[Axes],
    name: str,
    points: Sequence[Point],
    objectives: Sequence[Objective] = (),
) -> None:
    """Draws a saturation curve, the objectives, and the best value.

    The panels are three latencies and the output tokens/s, over the swept setting.
    """
    labels = [point_label(name, point) for point in points]
    values = [point.value for point in points]
    positions = values
    parts = [slice(None)]
    if name == PREFILL_PODS:
        positions = [float(index) for index in range(len(points))]
        # The ordinary pods stand alone: a line from them to the first split would mean nothing.
        parts = [slice(1), slice(1, None)]
    pace = "tpot"
    if any(objective.latency == "itl" for objective in objectives):
        pace = "itl"
    for axes, latency in zip(panels, ("ttft", pace, "e2e"), strict=False):
        lines = [(positions[part], part) for part in parts]
        _draw_latency(axes, latency, points, objectives=objectives, lines=lines)
    good_percent = [
        100 * point.summary.goodput.good / point.summary.goodput.requests
        for point in points
        if point.summary.goodput
    ]
    heights = good_percent or [point.summary.output_tokens_per_s for point in points]
    panels[3].set(ylabel="good requests (%)" if good_percent else "output tokens/s")
    for part in parts:
        panels[3].plot(positions[part], heights[part], **LINE_STYLES["p50"])
    start_at_zero(panels[3])
    word, value = best_value(name, points, objectives)
    for axes in panels:
        axes.set(xlabel=SWEEP_LABELS[name])
        if len(positions) <= MAX_TICKS:
            axes.set_xticks(positions, labels)
        if value is not None:
            index = values.index(value)
            label = f"{word} {setting_label(name)}"
            if objectives:
                label += " within the SLO"
            axes.axvline(
                positions[index],
                color=GREEN,
                linewidth=4,
                alpha=0.3,
                label=f"{label}: {labels[index]}",
            )


def _draw_latency(
    axes: Axes,
    latency: str,
    points: Sequence[Point],
    *,
    objectives: Sequence[Objective],
    lines: Sequence[tuple[list[float], slice]],
) -> None:
    """Draws a latency; each of `lines` has the positions of a slice of the points."""
    per_s = UNITS_PER_SECOND[latency]
    own_objectives = [objective for objective in objectives if objective.latency == latency]
    drawn = [objective.limit_s * per_s for objective in own_objectives]
    statistics = {"p50", "p99", *(objective.statistic for objective in own_objectives)}
    for statistic in STATISTICS:
        if statistic not in statistics:
            continue
        heights = []
        for point in points:
            seconds = point.summary.latency(latency).statistic(statistic)
            heights.append(math.nan if seconds is None else seconds * per_s)
        drawn += [height for height in heights if height > 0]
        for positions, part in lines:
            axes.plot(positions, heights[part], **LINE_STYLES[statistic], label=statistic)
    axes.set(ylabel=AXIS_LABELS[latency])
    _draw_objectives(axes, latency, objectives)
    if drawn and max(drawn) > MIN_LOGARITHMIC_RATIO * min(drawn):
        axes.set_yscale("log")
    else:
        start_at_zero(axes)


def _draw_objectives(axes: Axes, latency: str, objectives: Sequence[Objective]) -> None:
    for objective in objectives:
        if objective.latency == latency:
            axes.axhline(
                objective.limit_s * UNITS_PER_SECOND[latency],
                color=LINE_STYLES[objective.statistic]["color"],
                linestyle="--",
                linewidth=1,
                label=f"SLO, {objective.statistic}",
            )
