"""The figures of a policy from its samples: as JSON, as a table, and as a picture with matplotlib."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from app.lab.load.report import BLUE, GREY, RED, four, markdown, new_figure
from app.lab.load.workload import Sample

HEADINGS = ("policy", "TTFT mean", "p50", "p90", "p99", "cached", "requests/s", "per pod", "failed")
COLORS = (GREY, BLUE, RED)
QUANTILES = ("mean", "p50", "p90", "p99")


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of a policy. Times are seconds; NaN without an answered request.

    JSON has the fields by these names, with null for NaN.
    """

    policy: str
    requests: int
    failed: int
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    ttfts_s: tuple[float, ...]
    """TTFTs, ascending."""
    cached_share: float
    """Share of cached tokens among prompt tokens."""
    requests_per_s: float
    """Answered requests per second of the whole run."""
    per_pod: dict[str, int]
    """Answered requests by pod."""
    fallbacks: int
    """Requests routed without scores, because the indexer failed."""
    errors: tuple[str, ...]
    """Distinct errors, the most frequent first."""


def summarize(
    policy: str, samples: Sequence[Sample], took_s: float, pods: Sequence[str], fallbacks: int
) -> Summary:
    answered = [sample for sample in samples if not sample.error]
    ttfts_s = tuple(sorted(sample.ttft_s for sample in answered))
    mean, p50, p90, p99 = four(ttfts_s) if ttfts_s else [math.nan] * 4
    prompt_tokens = sum(sample.prompt_tokens for sample in answered)
    counts = Counter(sample.pod for sample in answered)
    return Summary(
        policy=policy,
        requests=len(samples),
        failed=len(samples) - len(answered),
        ttft_mean_s=mean,
        ttft_p50_s=p50,
        ttft_p90_s=p90,
        ttft_p99_s=p99,
        ttfts_s=ttfts_s,
        cached_share=sum(sample.cached_tokens for sample in answered) / max(1, prompt_tokens),
        requests_per_s=len(answered) / took_s if took_s > 0 else 0.0,
        per_pod={pod: counts[pod] for pod in pods},
        fallbacks=fallbacks,
        errors=tuple(error for error, _ in Counter(s.error for s in samples if s.error).most_common()),
    )


def table(summaries: Sequence[Summary]) -> str:
    """Returns a Markdown table, a row for each policy."""
    rows: list[tuple[str, ...]] = [HEADINGS]
    for at in summaries:
        times_s = (at.ttft_mean_s, at.ttft_p50_s, at.ttft_p90_s, at.ttft_p99_s)
        counts = at.per_pod.values()
        rows.append(
            (
                at.policy,
                *("-" if math.isnan(time_s) else f"{time_s * 1000:.0f} ms" for time_s in times_s),
                f"{at.cached_share:.0%}",
                f"{at.requests_per_s:.1f}",
                f"{min(counts, default=0)}-{max(counts, default=0)}",
                str(at.failed),
            )
        )
    return markdown(rows)


def notes(summaries: Sequence[Summary]) -> list[str]:
    """Returns a line for each failure behind the table; most runs have none."""
    lines = []
    for at in summaries:
        if at.fallbacks:
            lines.append(
                f"{at.policy}: {at.fallbacks} requests were routed without the indexer, which failed"
            )
        if at.failed:
            lines.append(f"{at.policy}: {at.failed} requests failed, most of them so: {at.errors[0]}")
    return lines


def draw(summaries: Sequence[Summary], title: str, path: Path) -> None:
    """Writes a PNG: the TTFTs, their quantiles, the cached share of the prompts. Raises OSError."""
    canvas, (shares, bars, cached) = new_figure(title, (11, 4.2), (1, 3), (5, 4, 2))
    width = 0.8 / len(summaries)
    for number, (at, color) in enumerate(zip(summaries, COLORS, strict=False)):
        percents = [(rank + 1) / len(at.ttfts_s) * 100 for rank in range(len(at.ttfts_s))]
        times_ms = [time_s * 1000 for time_s in at.ttfts_s]
        shares.step(times_ms, percents, where="post", label=at.policy, color=color)
        quantiles_s = (at.ttft_mean_s, at.ttft_p50_s, at.ttft_p90_s, at.ttft_p99_s)
        places = [place + (number - (len(summaries) - 1) / 2) * width for place in range(len(QUANTILES))]
        bars.bar(places, [time_s * 1000 for time_s in quantiles_s], width, label=at.policy, color=color)
    shares.set(title="requests that have their first token", xlabel="ms", ylabel="%", ylim=(0, 102))
    shares.set_xlim(left=0)
    shares.legend(frameon=False, loc="lower right")
    bars.set_xticks(range(len(QUANTILES)), QUANTILES)
    bars.set(title="time to first token", ylabel="ms")
    names = [at.policy for at in summaries]
    drawn = cached.bar(names, [at.cached_share * 100 for at in summaries], color=COLORS[: len(names)])
    cached.bar_label(drawn, fmt="%.0f")
    cached.set_xticks(range(len(names)), names, rotation=30, ha="right")
    cached.set(title="cached prompt tokens", ylabel="%", ylim=(0, 105))
    canvas.print_png(path)
