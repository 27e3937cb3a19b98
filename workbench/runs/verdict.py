"""The first line of `simulate`: whether a run meets its limits, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.load.tables import milliseconds
from workbench.runs.summary import (
    DEFAULT_STATISTIC,
    Judgement,
    Objective,
    RunSummary,
)

SHOWN = ("ttft", "tpot")
"""Latencies of the verdict on a run without limits."""


def run_verdict(summary: RunSummary, judgement: Judgement) -> str:
    """Returns the verdict on a run."""
    parts = []
    if judgement.objectives:
        parts.append(_objectives_text(summary, judgement.objectives))
    if summary.goodput is not None:
        share = f"{summary.goodput.share:.1%} of the requests meet their limits"
        parts.append(share if parts else f"{share}, {summary.goodput.good_per_s:.2f}/s")
    return "; ".join(parts) or _plain_text(summary)


def _objectives_text(summary: RunSummary, objectives: Sequence[Objective]) -> str:
    missed = [objective for objective in objectives if not objective.is_met(summary)]
    if missed:
        texts = [
            f"{objective.latency}_{objective.statistic} is {_seconds_text(objective, summary)},"
            f" above its limit of {objective.limit_s * 1000:g} ms"
            for objective in missed
        ]
        return f"No: {'; '.join(texts)}"
    nearest = max(objectives, key=lambda objective: objective.ratio(summary))
    return (
        f"Yes: {nearest.latency}_{nearest.statistic} is {_seconds_text(nearest, summary)},"
        f" {nearest.ratio(summary):.0%} of its limit"
    )


def _seconds_text(objective: Objective, summary: RunSummary) -> str:
    return milliseconds(objective.seconds(summary))


def _plain_text(summary: RunSummary) -> str:
    latencies = ", ".join(
        f"{name.upper()} {DEFAULT_STATISTIC}"
        f" {milliseconds(summary.latency(name).statistic(DEFAULT_STATISTIC))}"
        for name in SHOWN
    )
    pods = len(summary.requests_per_pod)
    plural = "s" if pods > 1 else ""
    return f"{latencies} at {summary.requests_per_s:.2f} requests/s on {pods} pod{plural}"
