"""Routing policies of a plan: the fewest pods of the cheapest engine with each policy."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, replace

from workbench.load.loads import LoadTrace
from workbench.load.policies import LEAST_REQUESTS, PREFIX_AWARE, RANDOM
from workbench.plan.fleets import PlannedFleet
from workbench.plan.runs import RunFleets
from workbench.plan.slo import Slo
from workbench.runs.job import Job

COMPARED_POLICIES = (LEAST_REQUESTS, RANDOM, PREFIX_AWARE)
MAX_PODS_RATIO = 2
"""Most pods that are tried with another policy, as a multiple of those of the plan."""
STEP = 1.15
"""Ratio of one number of pods to the next, until the answer lies between two."""


@dataclass(slots=True)
class FewestPods:
    """A search for the fewest pods that meet the SLO, which begins near the answer."""

    start: int
    max_pods: int
    failed: int = 0
    """Most pods that missed the SLO."""
    met: int | None = None
    """Fewest pods that met the SLO."""

    def next_pods(self) -> int | None:
        """Returns the next number of pods to simulate; None at the end."""
        if self.met is None:
            if self.failed >= self.max_pods:
                return None
            return min(self.max_pods, max(self.start, self.failed + 1, int(STEP * self.failed)))
        if self.met - self.failed <= 1:
            return None
        return max((self.met + self.failed) // 2, min(self.met - 1, int(self.met / STEP)))

    def learn(self, pods: int, *, is_met: bool) -> None:
        """Stores whether the SLO was met."""
        if is_met:
            self.met = pods
        else:
            self.failed = pods


class RoutingCosts:
    """Fewest pods of the cheapest engine with each other policy."""

    def __init__(self, best: PlannedFleet, load: LoadTrace) -> None:
        self._best = best
        self.policy = best.engine.job.plan.policy
        shares_prefixes = bool(load.group or load.session)
        self.is_prefix_aware_alike = not shares_prefixes and self.policy != PREFIX_AWARE
        """True if prefix-aware routing finds no cached prefix."""
        self.searches: dict[str, FewestPods] = {}
        """Searches by policy; empty for a single pod."""
        if best.pods - best.prefill_pods > 1 or best.prefill_pods > 1:
            self._make_searches()

    def _make_searches(self) -> None:
        best = self._best
        fewest_failed = 1 if best.prefill_pods else 0
        for policy in COMPARED_POLICIES:
            if policy == self.policy or (policy == PREFIX_AWARE and self.is_prefix_aware_alike):
                continue
            # A random choice is never better than the others.
            failed = best.pods - 1 if policy == RANDOM else fewest_failed
            self.searches[policy] = FewestPods(best.pods, MAX_PODS_RATIO * best.pods, failed)

    def run(self, run_fleets: RunFleets, load: LoadTrace, slo: Slo) -> None:
        """Simulates until the fewest pods of each policy are known."""
        while True:
            wanted = [
                (policy, pods)
                for policy, search in self.searches.items()
                if (pods := search.next_pods()) is not None
            ]
            if not wanted:
                return
            runs = run_fleets(self._arguments(wanted, load, slo))
            with closing(runs) as verdicts:
                for (policy, pods), verdict in zip(wanted, verdicts, strict=True):
                    self.searches[policy].learn(pods, is_met=not verdict.misses)

    def _arguments(
        self, wanted: Iterable[tuple[str, int]], load: LoadTrace, slo: Slo
    ) -> Iterable[tuple[LoadTrace, Job, Slo]]:
        for policy, pods in wanted:
            job = PlannedFleet(self._best.engine, pods).job
            yield load, replace(job, plan=replace(job.plan, policy=policy)), slo

    def __str__(self) -> str:
        if not self.searches:
            return f"routing: {self.policy}; with these pods, every policy routes alike"
        parts = [f"routing: {self.policy}"]
        parts += [self._text(policy, search.met) for policy, search in self.searches.items()]
        if self.is_prefix_aware_alike:
            parts.append(f"{PREFIX_AWARE} is {LEAST_REQUESTS} here: no prompts share a prefix")
        return "; ".join(parts)

    def _text(self, policy: str, pods: int | None) -> str:
        best = self._best
        if pods is None:
            return f"{policy} misses the SLO even with {MAX_PODS_RATIO * best.pods} pods"
        if pods == best.pods:
            return f"{policy} also needs {pods} pods"
        ratio = PlannedFleet(best.engine, pods).price / best.price
        return f"{policy} needs {pods} pods ({ratio - 1:+.0%} price)"

    def figures(self) -> dict[str, int | None]:
        """Returns the fewest pods by policy for `--json`."""
        return {
            self.policy: self._best.pods,
            **{policy: search.met for policy, search in self.searches.items()},
        }
