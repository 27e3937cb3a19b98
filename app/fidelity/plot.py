"""Pictures of simulations, with matplotlib, which is optional."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from app.fidelity.figures import quantile
from app.fidelity.simulation import Outcome, Plan
from app.fidelity.summary import LATENCIES
from app.fidelity.sweep import Point
from app.load.trace import Load

BINS = 120
BLUE, RED, GREY = "#5b8db8", "#d1495b", "#9a9a9a"
Axes = Any
"""Of matplotlib."""


def draw_run(load: Load, plan: Plan, outcome: Outcome, title: str, path: Path) -> None:
    """Write a PNG: latencies by the moment of sending, what steps held, use of the cache."""
    canvas, axes = new_figure(title)
    begin_s = min(outcome.send_s)
    ttft_s = [first - send for send, first in zip(outcome.send_s, outcome.first_s, strict=True)]
    e2e_s = [last - send for send, last in zip(outcome.send_s, outcome.last_s, strict=True)]
    sent_s = [send - begin_s for send in outcome.send_s]
    for its, name, values in ((axes[0], "TTFT", ttft_s), (axes[1], "E2E", e2e_s)):
        _draw_quantiles(its, sent_s, values)
        its.set(title=f"{name} of requests sent then", ylabel="s")
        its.legend(frameon=False, loc="upper left")
    timeline, capacity = outcome.timeline, plan.profile.engine.num_gpu_blocks - 1
    times_s = [place * timeline.bin_s for place in range(len(timeline.blocks))]
    pod_bin_s = timeline.bin_s * plan.pods
    axes[2].plot(times_s, [it / pod_bin_s for it in timeline.sequences], color=BLUE)
    axes[2].set(title="sequences in a step", ylim=(0, None))
    axes[3].plot(times_s, [it / pod_bin_s / capacity * 100 for it in timeline.blocks], color=BLUE)
    axes[3].set(title="KV cache", ylabel="% used", ylim=(0, None))
    for its in axes:
        its.set_xlabel("s")
    canvas.print_png(path)


def draw_sweep(name: str, points: Sequence[Point], title: str, path: Path) -> None:
    """Write a PNG: the latencies and the throughput over what was swept."""
    canvas, axes = new_figure(title)
    draw_curves(axes, name, points)
    canvas.print_png(path)


def draw_curves(axes: Sequence[Axes], name: str, points: Sequence[Point]) -> None:
    """Latencies and throughput over what was swept, into four axes."""
    values = [point.value for point in points]
    for its, latency in zip(axes, LATENCIES, strict=False):
        spreads = [point.summary.latency(latency) for point in points]
        its.plot(values, [_ms(it.p50) for it in spreads], "o-", color=BLUE, markersize=3, label="p50")
        its.plot(values, [_ms(it.p99) for it in spreads], "o-", color=RED, markersize=3, label="p99")
        its.set(title=latency.upper(), ylabel="ms", yscale="log")
        its.legend(frameon=False, loc="upper left")
    throughput = [point.summary.output_tokens_per_s for point in points]
    axes[3].plot(values, throughput, "o-", color=BLUE, markersize=3)
    axes[3].set(title="output tokens/s", ylim=(0, None))
    for its in axes:
        its.set_xlabel(name)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def new_figure(title: str) -> tuple[Any, list[Axes]]:
    """A canvas, which writes files, and four axes on it."""
    # Imported when needed: it is optional, and takes a second.
    figure = import_module("matplotlib.figure").Figure(figsize=(11, 6.4), layout="constrained")
    canvas = import_module("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=10)
    axes = list(figure.subplots(2, 2).flat)
    for its in axes:
        its.spines[["top", "right"]].set_visible(False)
        its.grid(axis="y", alpha=0.3)
        its.set_axisbelow(True)
    return canvas, axes


def _draw_quantiles(axes: Axes, times_s: Sequence[float], values: Sequence[float]) -> None:
    """p50 and p99 of `values`, by the bin of their moments."""
    width_s = max(times_s[-1], 1e-9) / BINS
    bins: dict[int, list[float]] = {}
    for at_s, value in zip(times_s, values, strict=True):
        bins.setdefault(int(at_s / width_s), []).append(value)
    places = sorted(bins)
    for its in bins.values():
        its.sort()
    for share, label, color in ((0.5, "p50", BLUE), (0.99, "p99", RED)):
        moments = [(place + 0.5) * width_s for place in places]
        axes.plot(moments, [quantile(bins[place], share) for place in places], color=color, label=label)
    axes.set_ylim(bottom=0)
