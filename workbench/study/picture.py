"""Draws a comparison: latencies over time, and shares of buckets, measured and simulated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from workbench.load.plotting import BLUE, RED, Axes, picture_file, start_at_zero
from workbench.study.folder import Distribution, Study
from workbench.study.quantities import E2E, TPOT, TTFT
from workbench.study.simulated import SimulatedWindow
from workbench.study.window_comparison import NAMES, means_by_window, shares_below

DRAWN = (TTFT, TPOT, E2E)
HOUR_S = 3600.0


def draw_comparison(
    study: Study, simulated: Sequence[SimulatedWindow], verdict: str, path: Path
) -> None:
    """Writes a picture with means over time above, and the shares up to each bound below.

    Raises:
        OSError: The file cannot be written.
    """
    title = f"{study.workload.model}: {verdict}"
    with picture_file(path, title, (10, 6.4), (2, len(DRAWN) + 1)) as panels:
        for column, name in enumerate(DRAWN):
            _draw_times(panels[column], study, simulated, name)
            _draw_shares(panels[column + len(DRAWN) + 1], study, simulated, name)
        _draw_load(panels[len(DRAWN)], study, simulated)
        _draw_usage(panels[-1], study, simulated)


def _times(study: Study) -> tuple[list[float], str]:
    """Returns the middles of the windows since the start, and the unit."""
    windows = study.measured.windows
    begin_s = windows[0].start
    is_long = windows[-1].end - begin_s > 2 * HOUR_S
    unit_s = HOUR_S if is_long else 60.0
    times = [((window.start + window.end) / 2 - begin_s) / unit_s for window in windows]
    return times, "time (h)" if is_long else "time (min)"


def _draw_pair(
    axes: Axes,
    times: Sequence[float],
    measured: Sequence[float | None],
    simulated: Sequence[float | None],
) -> None:
    nan = float("nan")
    for values, color, label in ((measured, BLUE, "measured"), (simulated, RED, "simulated")):
        heights = [nan if value is None else value for value in values]
        axes.plot(times, heights, color=color, marker="o", label=label)
    start_at_zero(axes)


def _draw_times(axes: Axes, study: Study, simulated: Sequence[SimulatedWindow], name: str) -> None:
    times, label = _times(study)
    truths = means_by_window([window.latencies for window in study.measured.windows], name)
    guesses = means_by_window([window.latencies for window in simulated], name)
    _draw_pair(axes, times, _milliseconds(truths), _milliseconds(guesses))
    axes.set(xlabel=label, ylabel=f"mean {NAMES[name]} (ms)")


def _milliseconds(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else 1000 * value for value in values]


def _draw_shares(axes: Axes, study: Study, simulated: Sequence[SimulatedWindow], name: str) -> None:
    truths = _distributions([window.latencies for window in study.measured.windows], name)
    guesses = _distributions([window.latencies for window in simulated], name)
    bounds = sorted({high for each in truths for _, high, _ in each.buckets if high is not None})
    positions = range(len(bounds))
    _draw_pair(
        axes,
        positions,
        [100 * share for share in shares_below(truths, bounds)],
        [100 * share for share in shares_below(guesses, bounds)],
    )
    labels = [f"{1000 * bound:g}" for bound in bounds]
    axes.set_xticks(positions, labels, rotation=60, fontsize=7)
    axes.set(xlabel=f"{NAMES[name]} up to (ms)", ylabel="requests (%)")


def _distributions(windows: Sequence[dict[str, Distribution]], name: str) -> list[Distribution]:
    return [window[name] for window in windows if name in window]


def _draw_load(axes: Axes, study: Study, simulated: Sequence[SimulatedWindow]) -> None:
    times, label = _times(study)
    measured = [window.running for window in study.measured.windows]
    _draw_pair(axes, times, measured, [window.running for window in simulated])
    axes.set(xlabel=label, ylabel="running requests")


def _draw_usage(axes: Axes, study: Study, simulated: Sequence[SimulatedWindow]) -> None:
    times, label = _times(study)
    measured = [
        None if window.kv_usage is None else 100 * window.kv_usage
        for window in study.measured.windows
    ]
    _draw_pair(axes, times, measured, [100 * window.kv_usage for window in simulated])
    axes.set(xlabel=label, ylabel="KV cache used (%)")
