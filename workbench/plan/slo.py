"""The SLO of a plan, and the verdict on a simulated fleet."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from msgspec import Struct

from workbench.load.loads import LoadTrace
from workbench.load.tables import milliseconds
from workbench.runs.goodput import METRICS, Limits, limit_ratios, limits_of
from workbench.runs.simulation import SimulationOutcome
from workbench.runs.summary import (
    DEFAULT_STATISTIC,
    LIMIT_METRICS,
    QUANTILES,
    Objective,
    RunSummary,
    objective_columns,
)

TOKEN_TIMES = ("tpot", "itl")
"""Latencies that are times of single tokens."""
COLUMN_LATENCIES = ("ttft", "tpot", "e2e")
"""Latencies that a table shows, besides those of the objectives."""


class Verdict(Struct, frozen=True):
    """Figures of a fleet beside the SLO."""

    slo_share: float
    """Worst latency of the SLO as a share of its limit; at most 1 where the SLO is met."""
    misses: str
    """Latency that exceeds its limit, and by how much; empty where the SLO is met."""
    summary: RunSummary
    binds: str
    """Latency that is nearest to its limit, or furthest above."""


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits of single requests, and objectives of all requests."""

    limits: Limits
    attainment: float
    """Share of the requests that must meet the limits."""
    objectives: tuple[Objective, ...]
    confidence: float | None = None
    """Probability with which a fleet must meet the SLO; None takes the simulation as exact."""

    def __str__(self) -> str:
        limits = [
            f"{name} {metric} {1000 * limit_s:g} ms".lstrip()
            for name, class_limits in self.limits.items()
            for metric, limit_s in class_limits.items()
        ]
        parts = []
        if limits:
            parts.append(f"{', '.join(limits)} for {100 * self.attainment:g} % of requests")
        parts += map(str, self.objectives)
        text = ", ".join(parts)
        if self.confidence is not None:
            text += f", met with a probability of {self.confidence:.0%}"
        return text

    def judge(self, outcome: SimulationOutcome, summary: RunSummary) -> Verdict:
        """Returns the verdict on a run."""
        shares = [(0.0, "", "")]
        for objective in self.objectives:
            excess = milliseconds(objective.seconds(summary) - objective.limit_s)
            text = f"{objective.latency}_{objective.statistic} by {excess}"
            name = f"{objective.latency}_{objective.statistic}"
            shares.append((objective.ratio(summary), text, name))
        if self.limits:
            shares.append(self._judge_limits(outcome))
        share, text, binds = max(shares)
        if share <= 1:
            text = ""
        return Verdict(share, text, summary, binds)

    def columns(self) -> list[tuple[str, str]]:
        """Returns the latency and the statistic of each column of a table.

        The limits of single requests have the first quantile that is at least the attainment.
        """
        quantiles = (name for name, share in QUANTILES.items() if share >= self.attainment)
        statistic = next(quantiles, DEFAULT_STATISTIC)
        latency_of = {metric: latency for latency, metric in LIMIT_METRICS.items()}
        limited = [
            Objective(latency_of[metric], statistic, limit_s)
            for class_limits in self.limits.values()
            for metric, limit_s in class_limits.items()
        ]
        return objective_columns([*self.objectives, *limited], COLUMN_LATENCIES)

    def tightened(self, ttft_factor: float) -> Slo:
        """Returns the SLO for first tokens that may take `ttft_factor` times as long."""
        limits = {
            name: {
                metric: limit_s / ttft_factor if metric == "ttft" else limit_s
                for metric, limit_s in class_limits.items()
            }
            for name, class_limits in self.limits.items()
        }
        objectives = tuple(
            replace(objective, limit_s=objective.limit_s / ttft_factor)
            if objective.latency == "ttft"
            else objective
            for objective in self.objectives
        )
        return replace(self, limits=limits, objectives=objectives)

    def _judge_limits(self, outcome: SimulationOutcome) -> tuple[float, str, str]:
        """Returns the share of the limits that enough requests meet, the miss and the metric."""
        ratios = list(limit_ratios(outcome, self.limits))
        worst_ratios = [max(request.values(), default=0.0) for request in ratios]
        share = self._attained(worst_ratios)
        shares_by_metric = []
        for metric in METRICS:
            metric_ratios = [request[metric] for request in ratios if metric in request]
            if metric_ratios:
                shares_by_metric.append((self._attained(metric_ratios), metric))
        worst, metric = max(shares_by_metric)
        if worst <= 1:
            good_share = sum(ratio <= 1 for ratio in worst_ratios) / len(ratios)
            return share, f"goodput by {self.attainment - good_share:.1%}", metric
        limits_s = {limits[metric] for limits in self.limits.values() if metric in limits}
        if len(limits_s) > 1:
            return share, f"{metric} by {worst - 1:.0%}", metric
        return share, f"{metric} by {milliseconds((worst - 1) * limits_s.pop())}", metric

    def _attained(self, values: list[float]) -> float:
        """Returns the greatest value of the best requests that make up the attainment."""
        return sorted(values)[self.min_good(len(values)) - 1]

    def min_good(self, requests: int) -> int:
        """Returns the least number of requests that must meet their limits."""
        return max(1, math.ceil(requests * self.attainment - 1e-9))

    def guarantees(self, load: LoadTrace) -> list[tuple[int, float]]:
        """Returns how many requests take at most so many seconds where the SLO is met."""
        return [
            (self.min_good(len(load)), self._max_request_s(load)),
            self._objective_guarantee(load),
        ]

    def max_token_s(self, load: LoadTrace) -> float:
        """Returns the longest mean time between tokens that the SLO allows a good request."""
        limits = [limits_of(self.limits, name) for name in load.classes or [""]]
        limits_s = [max(part.get("tpot", math.inf) for part in limits)]
        limits_s += [
            objective.limit_s for objective in self.objectives if objective.latency in TOKEN_TIMES
        ]
        max_e2e_s = max(part.get("e2el", math.inf) for part in limits)
        e2e_s = [objective.limit_s for objective in self.objectives if objective.latency == "e2e"]
        return min(*limits_s, min([max_e2e_s, *e2e_s]) / max(load.output_tokens))

    def _max_request_s(self, load: LoadTrace) -> float:
        """Returns the most seconds that a good request may take; infinite without such a limit."""
        classes = [limits_of(self.limits, name) for name in load.classes or [""]]
        ttft_s, tpot_s, e2e_s = (
            max(limits.get(metric, math.inf) for limits in classes) for metric in METRICS
        )
        return min(e2e_s, ttft_s + tpot_s * max(load.output_tokens))

    def _objective_guarantee(self, load: LoadTrace) -> tuple[int, float]:
        """Returns the requests that meet all objectives for quantiles, and their most seconds."""
        max_s = dict.fromkeys(LIMIT_METRICS, math.inf)
        good = len(load)
        for objective in self.objectives:
            share = QUANTILES.get(objective.statistic)
            if share is None or objective.latency not in max_s:
                continue
            # A quantile is the value at index int(n * share) of the ascending values.
            good -= len(load) - int(len(load) * share) - 1
            max_s[objective.latency] = min(max_s[objective.latency], objective.limit_s)
        request_s = min(max_s["e2e"], max_s["ttft"] + max_s["tpot"] * max(load.output_tokens))
        return max(0, good), request_s
