"""Figures of routing policies: as JSON, as a table and as a picture."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from app.shared.statistics import mean_and_quantiles
from workbench.load.plotting import BLUE, GREY, RED, picture_file
from workbench.load.tables import markdown
from workbench.runs.recording_client import RecordedRequest

HEADINGS = ("policy", "TTFT mean", "p50", "p90", "p99", "cached", "requests/s", "per pod", "failed")
COLORS = (GREY, BLUE, RED)


class PolicySummary(Struct, frozen=True, kw_only=True):
    """Figures of a policy, as in JSON.

    Times are seconds; NaN (null) without an answered request.
    """

    policy: str
    requests: int
    failed: int
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    ttfts_s: tuple[float, ...]
    cached_share: float
    requests_per_s: float
    """Answered requests per second of the whole run."""
    per_pod: dict[str, int]
    fallbacks: int
    """Requests routed without scores, because the indexer failed."""
    errors: tuple[str, ...]
    """Distinct errors, the most frequent first."""


def summarize(
    policy: str,
    answered: Sequence[RecordedRequest],
    errors: Sequence[str],
    *,
    duration_s: float,
    pods: Sequence[str],
    fallbacks: int,
) -> PolicySummary:
    """Returns the figures of a policy; `errors` has the errors of the failed requests."""
    ttfts_s = tuple(sorted(request.text_s - request.send_s for request in answered))
    mean_s, p50_s, p90_s, p99_s = mean_and_quantiles(ttfts_s) if ttfts_s else [math.nan] * 4
    counts = Counter(request.pod for request in answered)
    input_tokens = sum(request.input_tokens for request in answered)
    cached_tokens = sum(request.cached_tokens for request in answered)
    return PolicySummary(
        policy=policy,
        requests=len(answered) + len(errors),
        failed=len(errors),
        ttft_mean_s=mean_s,
        ttft_p50_s=p50_s,
        ttft_p90_s=p90_s,
        ttft_p99_s=p99_s,
        ttfts_s=ttfts_s,
        cached_share=cached_tokens / max(1, input_tokens),
        requests_per_s=len(answered) / duration_s if duration_s > 0 else 0.0,
        per_pod={pod: counts[pod] for pod in pods},
        fallbacks=fallbacks,
        errors=tuple(error for error, _ in Counter(errors).most_common()),
    )


def policy_table(summaries: Sequence[PolicySummary]) -> str:
    """Returns a Markdown table with a row for each policy."""
    rows: list[Sequence[str]] = [HEADINGS]
    for summary in summaries:
        counts = summary.per_pod.values()
        rows.append(
            (
                summary.policy,
                _milliseconds(summary.ttft_mean_s),
                _milliseconds(summary.ttft_p50_s),
                _milliseconds(summary.ttft_p90_s),
                _milliseconds(summary.ttft_p99_s),
                f"{summary.cached_share:.0%}",
                f"{summary.requests_per_s:.1f}",
                f"{min(counts)}-{max(counts)}",
                str(summary.failed),
            )
        )
    return markdown(rows)


def _milliseconds(seconds: float) -> str:
    return "-" if math.isnan(seconds) else f"{seconds * 1000:.0f} ms"


def failure_notes(summaries: Sequence[PolicySummary]) -> list[str]:
    """Returns lines about failed requests, and requests routed without the indexer."""
    lines = []
    for summary in summaries:
        if summary.fallbacks:
            lines.append(
                f"{summary.policy}: {summary.fallbacks} requests were routed without the indexer,"
                " which failed"
            )
        if summary.failed:
            lines.append(
                f"{summary.policy}: {summary.failed} requests failed, most often with:"
                f" {summary.errors[0]}"
            )
    return lines


def draw_policies(summaries: Sequence[PolicySummary], title: str, path: Path) -> None:
    """Writes a picture: the TTFTs, and the cached share of the prompts.

    Raises:
        OSError: The file cannot be written.
    """
    names = [summary.policy for summary in summaries]
    with picture_file(path, title, (8, 3.2), (1, 2), widths=(5, 3)) as (ttft_axes, cache_axes):
        for summary, color in zip(summaries, COLORS, strict=False):
            count = len(summary.ttfts_s)
            percent = [(rank + 1) / count * 100 for rank in range(count)]
            times_ms = [time_s * 1000 for time_s in summary.ttfts_s]
            ttft_axes.step(times_ms, percent, where="post", label=summary.policy, color=color)
        ttft_axes.set(xlabel="TTFT (ms)", ylabel="requests with a first token (%)", ylim=(0, 102))
        ttft_axes.set_xlim(left=0)
        cached_percent = [summary.cached_share * 100 for summary in summaries]
        bars = cache_axes.bar(names, cached_percent, color=COLORS[: len(names)])
        cache_axes.bar_label(bars, fmt="%.0f")
        cache_axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
        cache_axes.set(ylabel="cached prompt tokens (%)", ylim=(0, 105))
