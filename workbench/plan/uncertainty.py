"""Which uncertainty asks for more pods: the model's error, the chance of the load, or the routing.

`plan --confidence` makes allowance for the error of the model. This module finds the cheapest fleet
without that allowance. For the chosen engine, it finds the pods without allowance, and beside it
those for other draws of the load, and for requests that are routed at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from workbench.load.loads import LoadTrace
from workbench.load.policies import RANDOM
from workbench.plan.fleets import PlannedFleet
from workbench.plan.routing import MAX_PODS_RATIO, FewestPods
from workbench.plan.runs import RunFleets
from workbench.plan.slo import Slo
from workbench.runs.intervals import confidence_factors
from workbench.runs.job import Job

OTHER_DRAWS = 3
"""Number of other draws of the load."""


@dataclass(slots=True)
class Uncertainty:
    """Fewest pods of the chosen engine by the uncertainty that counts."""

    best: PlannedFleet
    confidence: float
    plain: PlannedFleet
    """Cheapest fleet without allowance for any uncertainty."""
    plain_pods: int
    """Pods of the chosen engine without allowance for any uncertainty."""
    load_pods: int | None
    """For all other draws of the load; None for a trace, or beyond the pods that are tried."""
    routing_pods: int | None
    """With random routing; None beyond the pods that are tried."""
    ttft_factor: float
    token_factor: float
    """Factors that latencies do not exceed with the confidence."""
    has_draws: bool

    @property
    def cause(self) -> str:
        """The uncertainty that asks for the most pods: model, load, routing, or none."""
        pods = {"model": self.best.pods, "load": self.load_pods, "routing": self.routing_pods}
        if not self.has_draws:
            del pods["load"]
        most = MAX_PODS_RATIO * self.best.pods + 1
        ratios = {name: (count or most) / self.plain_pods for name, count in pods.items()}
        if self._changes_engine:
            ratios["model"] = max(ratios["model"], self.best.price / self.plain.price)
        cause = max(ratios, key=ratios.__getitem__)
        return cause if ratios[cause] > 1 else "none"

    @property
    def _changes_engine(self) -> bool:
        return self.plain.engine is not self.best.engine

    def __str__(self) -> str:
        more = self.best.pods - self.plain_pods
        text = f"confidence {self.confidence:.0%}: {self.best.pods} pods"
        if self._changes_engine:
            ratio = self.best.price / self.plain.price
            text += f", {ratio - 1:.0%} more expensive than {self.plain} without it"
            text += ", for the model's error"
        elif more:
            text += f", {more} more than without it, for the model's error"
        else:
            text += ", as many as without it"
        ttft = f"TTFT up to {self.ttft_factor - 1:+.0%}"
        text += f" ({ttft}, time per token {self.token_factor - 1:+.0%})"
        load = "a trace has no other draws"
        if self.has_draws:
            load = f"{OTHER_DRAWS} other draws of the load alone need {self._count(self.load_pods)}"
        routing = f"random routing alone needs {self._count(self.routing_pods)}"
        return f"{text}; {load}, {routing}; largest uncertainty: {self.cause}"

    def _count(self, pods: int | None) -> str:
        return str(pods or f"more than {MAX_PODS_RATIO * self.best.pods}")

    def figures(self) -> dict[str, object]:
        """Returns the figures for `--json`."""
        return {
            "cause": self.cause,
            "pods": self.best.pods,
            "plain_fleet": str(self.plain),
            "plain_price_per_hour": self.plain.price,
            "plain_pods": self.plain_pods,
            "load_pods": self.load_pods,
            "routing_pods": self.routing_pods,
            "ttft_factor": self.ttft_factor,
            "token_factor": self.token_factor,
        }


def find_uncertainty(
    best: PlannedFleet,
    cheaper: Sequence[PlannedFleet],
    load: LoadTrace,
    *,
    draws: Sequence[Job],
    slo: Slo,
    run_fleets: RunFleets,
) -> Uncertainty | None:
    """Returns the pods by uncertainty; None without a confidence, or without known errors.

    Args:
        best: The cheapest fleet.
        cheaper: Fleets that cost less and miss the SLO with its confidence, the cheapest first.
        load: The load of the plan.
        draws: Jobs whose loads are other draws; none for a trace.
        slo: The SLO with its confidence.
        run_fleets: Simulates fleets.
    """
    errors = best.engine.job.errors(best.verdict.summary)
    if slo.confidence is None or errors is None:
        return None
    exact = replace(slo, confidence=None)
    fewest = 1 if best.prefill_pods else 0
    plain = FewestPods(best.pods, best.pods, failed=fewest, met=best.pods)
    _search(plain, best, [load], exact=exact, run_fleets=run_fleets)
    plain_pods = plain.met or best.pods
    max_pods = MAX_PODS_RATIO * best.pods
    by_load = FewestPods(plain_pods, max_pods, failed=plain_pods - 1)
    if draws:
        loads = [job.load() for job in draws]
        _search(by_load, best, loads, exact=exact, run_fleets=run_fleets)
    by_routing = FewestPods(plain_pods, max_pods, failed=plain_pods - 1)
    _search(by_routing, best, [load], exact=exact, run_fleets=run_fleets, policy=RANDOM)
    ttft_factor, token_factor = confidence_factors(errors, slo.confidence)
    own_plain = PlannedFleet(best.engine, plain_pods)
    other_plain = _cheapest_exact(cheaper, load, exact=exact, run_fleets=run_fleets)
    return Uncertainty(
        best=best,
        confidence=slo.confidence,
        plain=min(filter(None, [own_plain, other_plain]), key=_price),
        plain_pods=plain_pods,
        load_pods=by_load.met,
        routing_pods=by_routing.met,
        ttft_factor=ttft_factor,
        token_factor=token_factor,
        has_draws=bool(draws),
    )


def _price(fleet: PlannedFleet) -> float:
    return fleet.price


def _cheapest_exact(
    fleets: Sequence[PlannedFleet], load: LoadTrace, *, exact: Slo, run_fleets: RunFleets
) -> PlannedFleet | None:
    """Returns the first fleet that meets the SLO without allowance; None if no fleet does."""
    with closing(run_fleets((load, fleet.job, exact) for fleet in fleets)) as verdicts:
        for fleet, verdict in zip(fleets, verdicts, strict=True):
            if not verdict.misses:
                return fleet
    return None


def _search(
    search: FewestPods,
    best: PlannedFleet,
    loads: Sequence[LoadTrace],
    *,
    exact: Slo,
    run_fleets: RunFleets,
    policy: str = "",
) -> None:
    """Simulates until the fewest pods that meet the SLO with all loads are known."""
    while (pods := search.next_pods()) is not None:
        job = PlannedFleet(best.engine, pods).job
        if policy:
            job = replace(job, plan=replace(job.plan, policy=policy))
        with closing(run_fleets((load, job, exact) for load in loads)) as verdicts:
            misses = [verdict.misses for verdict in verdicts]
        search.learn(pods, is_met=not any(misses))
