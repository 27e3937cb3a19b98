"""An autoscaled run in equal parts of time: load, pods and missed limits, as a table and a picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from app.lab.fidelity.autoscaler import Life
from app.lab.load import report

ROWS = 12
"""Intervals of the table."""
Pods = tuple[float, float, float]
"""Pods that load, are ready and drain."""
HEAD = ("from", "requests/s", "loading", "ready", "draining", "missed", "GPU-hours")


class Interval(Struct, frozen=True):
    """A part of the run; pods are means."""

    begin_s: float
    requests_per_s: float
    loading: float
    ready: float
    draining: float
    missed: int | None
    """Requests sent then that missed a limit; None without limits."""
    gpu_hours: float


def pods_over(lives: Sequence[Life], begin_s: float, width_s: float, count: int) -> Iterator[Pods]:
    """Yields the mean pods that load, are ready and drain in each interval of `width_s` seconds."""
    phases = (
        [(it.begun_s, min(it.ready_s, it.gone_s)) for it in lives],
        [(it.ready_s, min(it.drain_s, it.gone_s)) for it in lives],
        [(max(it.drain_s, it.ready_s), it.gone_s) for it in lives],
    )
    for place in range(count):
        low_s, high_s = begin_s + place * width_s, begin_s + (place + 1) * width_s
        loading, ready, draining = (
            sum(max(0.0, min(end_s, high_s) - max(start_s, low_s)) for start_s, end_s in spans) / width_s
            for spans in phases
        )
        yield loading, ready, draining


def intervals(
    lives: Sequence[Life], send_s: Sequence[float], missed: Sequence[bool], devices: int, count: int = ROWS
) -> tuple[Interval, ...]:
    """Divides a run; `missed` has a value for each request, or is empty without limits."""
    begin_s = min(send_s)
    width_s = max(max(it.gone_s for it in lives) - begin_s, 1e-9) / count
    places = [min(int((at_s - begin_s) / width_s), count - 1) for at_s in send_s]
    sent, late = Counter(places), Counter(it for it, is_late in zip(places, missed, strict=False) if is_late)
    parts = []
    for place, pods in enumerate(pods_over(lives, begin_s, width_s, count)):
        missed_then, hours = late[place] if missed else None, sum(pods) * width_s * devices / 3600
        parts.append(Interval(place * width_s, sent[place] / width_s, *pods, missed_then, hours))
    return tuple(parts)


def pod_seconds(lives: Iterable[Life]) -> float:
    """Returns the seconds of all pods, from the start of their loading until they are gone."""
    return sum(it.gone_s - it.begun_s for it in lives)


def table(parts: Sequence[Interval]) -> str:
    """Returns a Markdown table: load, pods and misses over time."""
    rows: list[tuple[str, ...]] = [HEAD]
    for it in parts:
        pods = (f"{count:.1f}" for count in (it.loading, it.ready, it.draining))
        missed = "-" if it.missed is None else f"{it.missed:,}"
        rows.append(
            (f"{it.begin_s:,.0f} s", f"{it.requests_per_s:.2f}", *pods, missed, f"{it.gpu_hours:.2f}")
        )
    return report.markdown(rows)


def draw(axes: Sequence[report.Axes], parts: Sequence[Interval], constant: int | None) -> None:
    """Draws pods by phase and the pods of a constant fleet, then load and misses, over time."""
    times_s = [it.begin_s for it in parts]
    phases = {"ready": report.BLUE, "loading": report.GREY, "draining": report.ORANGE}
    heights = [[getattr(it, phase) for it in parts] for phase in phases]
    style = {"colors": phases.values(), "labels": [f"{it} pods" for it in phases], "alpha": 0.6}
    axes[0].stackplot(times_s, heights, step="post", **style)
    if constant is not None:
        label = f"best constant fleet: {constant}"
        axes[0].axhline(constant, color=report.GREEN, linestyle="--", label=label)
    axes[1].plot(times_s, [it.requests_per_s for it in parts], color=report.BLUE, label="load")
    if parts[0].missed is not None:
        late = [(it.missed or 0) / times_s[1] for it in parts]
        axes[1].fill_between(times_s, late, color=report.RED, alpha=0.6, label="missed")
    axes[0].set(xlabel="time (s)", ylabel="pods")
    axes[1].set(xlabel="time (s)", ylabel="requests/s")
