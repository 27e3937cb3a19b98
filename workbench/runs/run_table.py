"""Text of a simulated run: its table, the figures of a comparison, and its requests as CSV."""

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from app.extensions.console import compare
from workbench.engine.costs import Energy
from workbench.load.loads import COLUMNS, NO_GROUP, SESSION_COLUMNS
from workbench.load.output_files import write_rows
from workbench.load.pod_lives import Interval
from workbench.load.tables import markdown, milliseconds
from workbench.runs.goodput import goodput_lines
from workbench.runs.intervals import Intervals
from workbench.runs.simulation import SimulationOutcome
from workbench.runs.summary import (
    LATENCIES,
    STATISTICS,
    FleetUse,
    Judgement,
    PoolUse,
    RunSummary,
    Spread,
    Transferred,
    objective_columns,
)


def run_table(summary: RunSummary, judgement: Judgement) -> str:
    """Returns the latencies as a Markdown table, then the other figures, a line each."""
    pods = summary.requests_per_pod
    cache = summary.kv_cache_usage
    running = summary.running
    lines = [
        _latency_table(summary),
        f"requests: {summary.requests:,} in {summary.duration_s:,.1f} s,"
        f" {summary.requests_per_s:.2f}/s",
        f"tokens: {summary.input_tokens_per_s:,.0f}/s in, {summary.output_tokens_per_s:,.0f}/s out",
        str(summary.memory),
        f"KV cache: {cache.mean:.1%} used on average, {cache.peak:.1%} at the most",
        f"running: {running.mean:.1f} on average, {running.peak:.0f} at the most"
        + (", of a pod" if len(pods) > 1 else ""),
        f"steps: {summary.steps:,}; preemptions: {summary.preemptions:,}",
    ]
    if summary.cached_tokens:
        share = summary.cached_tokens / summary.input_tokens
        lines.append(f"cached: {share:.1%} of the prompts' tokens")
    lines += _optional_lines(summary, judgement)
    if isinstance(summary.disaggregation, Transferred):
        lines += _transfer_lines(summary.disaggregation)
    elif len(pods) > 1:
        lines.append(f"pods: {len(pods)}, with {min(pods):,} to {max(pods):,} requests")
    if summary.goodput is not None and judgement.limits is not None:
        lines += goodput_lines(summary.goodput, judgement.limits)
    if summary.price is not None:
        price = summary.price
        lines.append(
            f"price: {price.total:,.2f} for {summary.gpu_hours:,.2f} GPU-hours; of a million tokens"
            f" {price.per_million_input_tokens:,.2f} in,"
            f" {price.per_million_output_tokens:,.2f} out"
        )
    if isinstance(summary.fleet, FleetUse):
        lines += [
            _intervals_table(summary.fleet.intervals),
            _fleets_table(summary, summary.fleet, judgement),
        ]
    for objective in judgement.objectives:
        lines.append(f"{objective}: {'met' if objective.is_met(summary) else 'not met'}")
    return "\n".join(lines)


def _optional_lines(summary: RunSummary, judgement: Judgement) -> list[str]:
    """Returns lines about tiers, classes and energy, as far as a run has them."""
    lines = []
    if isinstance(summary.tiers, tuple):
        lines += [str(tier) for tier in summary.tiers]
    if isinstance(summary.classes, tuple):
        lines += [part.text(judgement.objectives) for part in summary.classes]
    if isinstance(summary.energy, Energy):
        lines.append(str(summary.energy))
    return lines


def _latency_table(summary: RunSummary) -> str:
    spreads: dict[str, Spread] = {name.upper(): summary.latency(name) for name in LATENCIES}
    if isinstance(summary.disaggregation, Transferred):
        spreads["prefill"] = summary.disaggregation.prefill_s
        spreads["waiting"] = summary.disaggregation.waiting_s
        spreads["transfer"] = summary.disaggregation.transfer_s
    rows: list[list[str]] = [["", *STATISTICS]]
    for name, spread in spreads.items():
        rows.append([name, *(milliseconds(spread.statistic(part)) for part in STATISTICS)])
    intervals = summary.intervals
    if not isinstance(intervals, Intervals):
        return markdown(rows)
    rows[0].append(f"{intervals.coverage:.0%} interval")
    for row in rows[1:]:
        row.append(str(getattr(intervals, row[0].lower(), "")))
    return f"{markdown(rows)}\n{intervals}"


def _transfer_lines(figures: Transferred) -> list[str]:
    size = figures.transferred_bytes
    requests = sum(figures.decode.requests_per_pod)
    return [
        _pool_line("prefill", figures.prefill),
        _pool_line("decode", figures.decode),
        f"transfers: {size / 1e9:,.1f} GB, {size / requests / 1e6:,.1f} MB a request",
    ]


def _pool_line(name: str, pool: PoolUse) -> str:
    pods = pool.requests_per_pod
    cache = pool.kv_cache_usage
    return (
        f"{name} pods: {len(pods)}, with {min(pods):,} to {max(pods):,} requests;"
        f" KV cache {cache.mean:.1%}, {cache.peak:.1%} at the most;"
        f" running {pool.running.mean:.1f}, {pool.running.peak:.0f} at the most"
    )


def _intervals_table(intervals: Sequence[Interval]) -> str:
    """Returns a Markdown table: load, pods and misses over time."""
    rows = [("from", "requests/s", "loading", "ready", "draining", "missed", "GPU-hours")]
    for interval in intervals:
        rows.append(
            (
                f"{interval.begin_s:,.0f} s",
                f"{interval.requests_per_s:.2f}",
                f"{interval.loading:.1f}",
                f"{interval.ready:.1f}",
                f"{interval.draining:.1f}",
                "-" if interval.missed is None else f"{interval.missed:,}",
                f"{interval.gpu_hours:.2f}",
            )
        )
    return markdown(rows)


def _fleets_table(summary: RunSummary, fleet: FleetUse, judgement: Judgement) -> str:
    """Returns a Markdown table of an autoscaled fleet beside the best constant one."""
    columns = objective_columns(judgement.objectives, ("ttft",))
    heads = (f"{latency.upper()} {statistic}" for latency, statistic in columns)
    rows = [["fleet", "pods", *heads, "good", "GPU-hours", "price"]]
    pods = f"{fleet.mean_pods:.1f}, {fleet.most_pods} at the most"
    rows.append(["autoscaled", pods, *_fleet_cells(summary, columns)])
    if fleet.constant is not None:
        pods = str(len(fleet.constant.requests_per_pod))
        rows.append(["best constant", pods, *_fleet_cells(fleet.constant, columns)])
    return markdown(rows)


def _fleet_cells(run: RunSummary, columns: Sequence[tuple[str, str]]) -> list[str]:
    cells = [milliseconds(run.latency(name).statistic(statistic)) for name, statistic in columns]
    good = "-"
    if run.goodput is not None:
        good = f"{run.goodput.good:,}"
    price = "-"
    if run.price is not None:
        price = f"{run.price.total:,.2f}"
    return [*cells, good, f"{run.gpu_hours:.2f}", price]


def compared_figures(
    summary: RunSummary, *, mean_queue_s: float, mean_prefill_s: float
) -> dict[str, float]:
    """Returns the figures that a comparison shows: milliseconds, shares and counts."""
    seconds: dict[str, float | None] = {}
    for name in compare.TIMES:
        for part in compare.PARTS:
            seconds[f"{name} {part}"] = summary.latency(name.lower()).statistic(part)
    seconds[compare.QUEUE] = mean_queue_s
    seconds[compare.PREFILL] = mean_prefill_s
    figures = {name: value * 1000 for name, value in seconds.items() if value is not None}
    figures[compare.REQUESTS] = summary.requests
    figures[compare.PROMPTS] = summary.input_tokens
    figures[compare.FAILED] = 0.0
    if summary.cached_tokens:
        figures[compare.CACHED] = summary.cached_tokens / summary.input_tokens
    figures[compare.OUTPUT] = summary.output_tokens_per_s
    figures[compare.GPU_HOURS] = summary.gpu_hours
    return figures


def write_requests(path: Path, outcome: SimulationOutcome) -> None:
    """Writes a CSV row for each request, in order of the load.

    The columns of a trace come first, then times and pod.
    """
    names = [*COLUMNS, "send_s", "first_s", "last_s", "pod"]
    if outcome.load.session:
        names += SESSION_COLUMNS
    write_rows(path, names, _request_rows(outcome))


def _request_rows(outcome: SimulationOutcome) -> Iterator[list[object]]:
    load = outcome.load
    later_turns = frozenset(chain.from_iterable(load.followers().values()))
    for number, arrival_s in enumerate(load.arrival_s):
        row: list[object] = [
            "" if number in later_turns else f"{arrival_s:.6f}",
            load.input_tokens[number],
            load.output_tokens[number],
            f"{outcome.send_s[number]:.6f}",
            f"{outcome.first_s[number]:.6f}",
            f"{outcome.last_s[number]:.6f}",
            outcome.pod[number],
        ]
        if load.session:
            session = load.session[number]
            row.append("" if session == NO_GROUP else session)
            row.append(f"{load.think_s[number]:.6f}")
        yield row
