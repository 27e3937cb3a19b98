"""Results of a simulation: figures, sweeps, objectives, tables, pictures, rows of requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from app.lab.fidelity.simulation import Outcome, Plan
from app.lab.load.report import (
    BLUE,
    RED,
    Axes,
    four,
    markdown,
    milliseconds,
    new_figure,
    quantile,
    write_rows,
)
from app.lab.load.trace import COLUMNS, Load
from config.durations import parse_duration

STATISTICS = ("mean", "p50", "p90", "p99")
LATENCIES = ("ttft", "itl", "e2e")
MOST = {"rate": 1_000_000, "in-flight": 1_000_000, "pods": 10_000}
"""Greatest values of settings that can be swept."""
MOST_POINTS = 1000
CURVE = (
    "requests/s",
    "tokens/s",
    "TTFT p50",
    "p99",
    "ITL p50",
    "p99",
    "E2E p99",
    "running",
    "KV peak",
    "preempted",
)
BINS = 120
"""Bins of time in a picture of a run."""


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


class Summary(Struct, frozen=True, kw_only=True):
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
    """Prompt tokens found in the cache, left there by other requests."""
    kv_cache_usage: Use
    """Shares from 0 to 1: the mean over all pods, the peak of any pod."""
    running: Use
    """Sequences in the steps of a pod."""
    requests_per_pod: tuple[int, ...]

    def latency(self, name: str) -> Spread:
        spread: Spread = getattr(self, f"{name}_s")
        return spread


def summarize(load: Load, plan: Plan, outcome: Outcome, profile: str) -> Summary:
    send_s, first_s, last_s = outcome.send_s, outcome.first_s, outcome.last_s
    begin_s, end_s = min(send_s), max(last_s)
    duration_s = end_s - begin_s
    per_s = 1 / duration_s if duration_s > 0 else 0.0
    tokens_in, tokens_out = sum(load.input_tokens), sum(load.output_tokens)
    per_pod = [0] * plan.pods
    for pod in outcome.pod:
        per_pod[pod] += 1
    timeline, capacity = outcome.timeline, plan.profile.engine.num_gpu_blocks - 1
    pod_seconds_share = per_s / plan.pods
    return Summary(
        profile=profile,
        requests=len(load),
        steps=outcome.steps,
        preemptions=outcome.preemptions,
        ttft_s=spread([first - send for send, first in zip(send_s, first_s, strict=True)]),
        itl_s=spread(
            [
                (last - first) / (tokens - 1)
                for first, last, tokens in zip(first_s, last_s, load.output_tokens, strict=True)
                if tokens > 1
            ]
        ),
        e2e_s=spread([last - send for send, last in zip(send_s, last_s, strict=True)]),
        duration_s=duration_s,
        requests_per_s=len(load) * per_s,
        input_tokens_per_s=tokens_in * per_s,
        output_tokens_per_s=tokens_out * per_s,
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        cached_tokens=outcome.cached_tokens,
        kv_cache_usage=Use(
            sum(timeline.blocks) * pod_seconds_share / capacity, timeline.most_blocks / capacity
        ),
        running=Use(sum(timeline.sequences) * pod_seconds_share, timeline.most_sequences),
        requests_per_pod=tuple(per_pod),
    )


def spread(values: list[float]) -> Spread:
    if not values:
        return Spread(None, None, None, None)
    return Spread(*four(values))


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

    def met(self, summary: Summary) -> bool:
        seconds: float | None = getattr(summary.latency(self.latency), self.statistic)
        return seconds is None or seconds <= self.limit_s

    def __str__(self) -> str:
        return f"{self.latency}_{self.statistic} <= {self.limit_s * 1000:g} ms"


class Point(Struct, frozen=True, kw_only=True):
    value: float
    meets_slo: bool | None
    summary: Summary


def read_sweep(text: str) -> Sweep:
    """Reads a sweep such as `rate=2:30:2`. Raises ValueError with the rule."""
    name, _, span = text.partition("=")
    if name not in MOST:
        raise ValueError(f"must be NAME=FROM:TO:STEP with one of {', '.join(MOST)}")
    try:
        low, high, step = map(float, span.split(":"))
    except ValueError:
        raise ValueError(f"must be {name}=FROM:TO:STEP, in numbers") from None
    if not (0 < low <= high < math.inf and 0 < step < math.inf):
        raise ValueError("must go up from a number above 0, in steps above 0")
    if (high - low) / step >= MOST_POINTS:
        raise ValueError(f"must have at most {MOST_POINTS} points")
    values = [round(low + number * step, 9) for number in range(int((high - low) / step + 1e-9) + 1)]
    if name != "rate" and not all(value.is_integer() for value in values):
        raise ValueError(f"must be whole numbers for {name}")
    if high > MOST[name]:
        raise ValueError(f"must not exceed {MOST[name]:,} for {name}")
    return Sweep(name, tuple(values))


def read_objectives(text: str) -> tuple[Objective, ...]:
    """Reads objectives such as `ttft_p99=500ms,itl_p99=50ms`. Raises ValueError with the rule."""
    return tuple(_objective(part.strip()) for part in text.split(","))


def _objective(text: str) -> Objective:
    name, _, limit = text.partition("=")
    latency, _, statistic = name.partition("_")
    if latency not in LATENCIES or statistic not in STATISTICS:
        raise ValueError(
            f"must be {'|'.join(LATENCIES)}_{'|'.join(STATISTICS)}=DURATION, several with commas between"
        )
    limit_s = parse_duration(limit)
    if limit_s <= 0:
        raise ValueError(f"must have limits above 0, not {limit}")
    return Objective(latency, statistic, limit_s)


def best(name: str, points: Sequence[Point]) -> tuple[str, float | None]:
    """Returns the fewest pods, or the highest other value, that met the objectives, after its word.

    The value is None when no point met the objectives.
    """
    met = [point.value for point in points if point.meets_slo]
    return ("fewest", min(met, default=None)) if name == "pods" else ("highest", max(met, default=None))


def table(summary: Summary) -> str:
    """Returns the latencies as a Markdown table, then the other figures, a line each."""
    rows = [(name.upper(), *_cells(summary.latency(name))) for name in LATENCIES]
    return "\n".join([markdown([("", *STATISTICS), *rows]), *_lines(summary)])


def _cells(spread: Spread) -> list[str]:
    return [milliseconds(getattr(spread, name)) for name in STATISTICS]


def _lines(its: Summary) -> list[str]:
    pods = its.requests_per_pod
    lines = [
        f"requests: {its.requests:,} in {its.duration_s:,.1f} s, {its.requests_per_s:.2f}/s",
        f"tokens: {its.input_tokens_per_s:,.0f}/s in, {its.output_tokens_per_s:,.0f}/s out",
        f"KV cache: {its.kv_cache_usage.mean:.1%} used on average, {its.kv_cache_usage.peak:.1%} at the most",
        f"running: {its.running.mean:.1f} on average, {its.running.peak:.0f} at the most"
        + (", of a pod" if len(pods) > 1 else ""),
        f"steps: {its.steps:,}; preemptions: {its.preemptions:,}",
    ]
    if its.cached_tokens:
        lines.append(f"cached: {its.cached_tokens / its.input_tokens:.1%} of the prompts' tokens")
    if len(pods) > 1:
        lines.append(f"pods: {len(pods)}, with {min(pods):,} to {max(pods):,} requests")
    return lines


def curve(name: str, points: Sequence[Point], objectives: Sequence[Objective]) -> str:
    """Returns the saturation curve as a Markdown table, and the best value that meets the objectives."""
    judged = ("meets SLO",) if objectives else ()
    rows = [(name, *CURVE, *judged)]
    for point in points:
        verdict = ("yes" if point.meets_slo else "no",) if objectives else ()
        rows.append((f"{point.value:g}", *_curve_cells(point.summary), *verdict))
    lines = [markdown(rows)]
    if objectives:
        (word, value), wanted = best(name, points), ", ".join(map(str, objectives))
        found = f"none meets {wanted}" if value is None else f"{value:g} meets {wanted}"
        lines.append(f"{word} {name}: {found}")
    return "\n".join(lines)


def _curve_cells(its: Summary) -> tuple[str, ...]:
    times = (its.ttft_s.p50, its.ttft_s.p99, its.itl_s.p50, its.itl_s.p99, its.e2e_s.p99)
    return (
        f"{its.requests_per_s:.2f}",
        f"{its.output_tokens_per_s:,.0f}",
        *map(milliseconds, times),
        f"{its.running.mean:.1f}",
        f"{its.kv_cache_usage.peak:.0%}",
        f"{its.preemptions:,}",
    )


def write_requests(path: Path, load: Load, outcome: Outcome) -> None:
    """Writes a CSV row for each request, in order of arrival: the columns of a trace, then times and pod."""
    columns = (load.arrival_s, load.input_tokens, load.output_tokens)
    moments = (outcome.send_s, outcome.first_s, outcome.last_s)
    header = (*COLUMNS, "send_s", "first_s", "last_s", "pod")
    write_rows(
        path,
        header,
        (
            (f"{arrival:.6f}", tokens_in, tokens_out, f"{send:.6f}", f"{first:.6f}", f"{last:.6f}", pod)
            for arrival, tokens_in, tokens_out, send, first, last, pod in zip(
                *columns, *moments, outcome.pod, strict=True
            )
        ),
    )


def draw_run(load: Load, plan: Plan, outcome: Outcome, title: str, path: Path) -> None:
    """Writes a PNG: latencies by time of sending, sequences per step, use of the cache."""
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
    canvas, axes = new_figure(title)
    draw_curves(axes, name, points)
    canvas.print_png(path)


def draw_curves(axes: Sequence[Axes], name: str, points: Sequence[Point]) -> None:
    """Draws latencies and throughput over the swept setting, into four axes."""
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


def _draw_quantiles(axes: Axes, times_s: Sequence[float], values: Sequence[float]) -> None:
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
