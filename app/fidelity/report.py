"""What a simulation came to: a table for people, the requests as CSV."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from typing import TextIO

from app.fidelity.simulation import Outcome
from app.fidelity.summary import LATENCIES, STATISTICS, Spread, Summary
from app.fidelity.sweep import Objective, Point, best
from app.load.trace import COLUMNS, Load

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


def table(summary: Summary) -> str:
    """Latencies as a Markdown table, then the other figures, a line each."""
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
    """The saturation curve as a Markdown table, and the best value that meets the objectives."""
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


def milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    thousandths = seconds * 1000
    return f"{thousandths:,.0f} ms" if thousandths >= 1000 else f"{thousandths:.1f} ms"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table, the first of `rows` being its head and the first column its names."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    ruler = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = [_line(rows[0], widths), "| " + " | ".join(ruler) + " |"]
    return "\n".join(lines + [_line(row, widths) for row in rows[1:]])


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [row[0].ljust(widths[0])]
    cells += [text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)]
    return "| " + " | ".join(cells) + " |"


def write_requests(file: TextIO, load: Load, outcome: Outcome) -> None:
    """A row for each request, in order of arrival; a trace again, with what became of it."""
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow((*COLUMNS, "send_s", "first_s", "last_s", "pod"))
    columns = (load.arrival_s, load.input_tokens, load.output_tokens)
    moments = (outcome.send_s, outcome.first_s, outcome.last_s)
    for arrival, tokens_in, tokens_out, send, first, last, pod in zip(
        *columns, *moments, outcome.pod, strict=True
    ):
        rows.writerow(
            (f"{arrival:.6f}", tokens_in, tokens_out, f"{send:.6f}", f"{first:.6f}", f"{last:.6f}", pod)
        )
