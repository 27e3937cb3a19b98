"""The figures as text for people."""

from __future__ import annotations

import math
from collections.abc import Sequence

from app.fleet.summary import Summary

HEADINGS = ("policy", "TTFT mean", "p50", "p90", "p99", "cached", "requests/s", "per pod", "failed")


def table(summaries: Sequence[Summary]) -> str:
    """A Markdown table, a row for each policy."""
    rows = [HEADINGS, *(_row(summary) for summary in summaries)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    ruler = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = [_line(rows[0], widths), "| " + " | ".join(ruler) + " |"]
    return "\n".join(lines + [_line(row, widths) for row in rows[1:]])


def notes(summaries: Sequence[Summary]) -> list[str]:
    """What a reader of the table must know besides, a line each; most runs need none."""
    lines = []
    for at in summaries:
        if at.fallbacks:
            lines.append(
                f"{at.policy}: {at.fallbacks} requests were routed without the indexer, which failed"
            )
        if at.failed:
            lines.append(f"{at.policy}: {at.failed} requests failed, most of them so: {at.errors[0]}")
    return lines


def _row(at: Summary) -> tuple[str, ...]:
    counts = at.per_pod.values()
    return (
        at.policy,
        *(_ms(time_s) for time_s in (at.ttft_mean_s, at.ttft_p50_s, at.ttft_p90_s, at.ttft_p99_s)),
        f"{at.cached_share:.0%}",
        f"{at.requests_per_s:.1f}",
        f"{min(counts, default=0)}-{max(counts, default=0)}",
        str(at.failed),
    )


def _ms(time_s: float) -> str:
    return "-" if math.isnan(time_s) else f"{time_s * 1000:.0f} ms"


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [row[0].ljust(widths[0])]
    cells += [text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)]
    return "| " + " | ".join(cells) + " |"
