"""Search for the cheapest fleet that meets an SLO.

Bounds exclude fleets first, then the remaining fleets are simulated.
"""

import re
from collections.abc import Sequence
from operator import add

from workbench.load.loads import LoadTrace
from workbench.plan.bounds import apply_bounds
from workbench.plan.fleets import (
    MAX_PRICE_RATIO,
    Candidate,
    Group,
    PlannedFleet,
    price_order,
    slo_order,
)
from workbench.plan.guess import guess_pods
from workbench.plan.routing import RoutingCosts
from workbench.plan.runs import RunFleets
from workbench.plan.slo import Slo, Verdict
from workbench.plan.uncertainty import Uncertainty, find_uncertainty
from workbench.runs.engine_limits import max_request_tokens
from workbench.runs.job import Job
from workbench.runs.job_spec import JobSpec

MAX_NEAR_MISS = 2.0
"""Most that a latency of a cheaper fleet may be, as a share of its limit: a fleet that misses by
more does not matter for the choice.
"""
MIN_SAVING = 1e-6
"""Least difference of two prices an hour."""
OVERLOADED_SHARE = 10.0
OVERLOADED_BACKLOG = 0.2
"""A fleet is overloaded if a latency is this many times its limit, and requests wait for this share
of the length of the load: the pods do about five sixths of the work.
"""


def make_group(
    name: str,
    jobs: Sequence[tuple[Job, float]],
    reason: str,
    *,
    load: LoadTrace,
    shared: JobSpec,
) -> Group:
    """Makes a group of jobs and their prefill shares.

    `reason` is that of a job that could not be made. `shared` has the load, and the options of all
    engines.
    """
    load_tokens = max(map(add, load.input_tokens, load.output_tokens))
    engines = []
    for job, share in jobs:
        max_tokens = max_request_tokens(job.plan.profile.engine)
        if load_tokens <= max_tokens:
            failed = 1 if share else 0
            engines.append(Candidate(name, job, shared, prefill_share=share, failed=failed))
        else:
            reason = f"{job.profile_name}: holds {max_tokens} tokens of a request of {load_tokens}"
    if engines:
        return Group(name, engines)
    return Group(name, [], re.split("[;,]", reason)[0].partition(": ")[2])


class FleetSearch:
    """Search for one load, in rounds.

    The caller simulates the fleets of `wanted`, and hands their verdicts to `learn`.
    """

    def __init__(self, load: LoadTrace, slo: Slo, groups: Sequence[Group], max_pods: int) -> None:
        self.load = load
        self.groups = groups
        self._max_pods = max_pods
        engines = (engine for group in groups for engine in group.engines)
        self.policy = next((engine.job.plan.policy for engine in engines), "no policy")
        """Routing policy of all fleets."""
        for group in groups:
            # The bounds know the costs of the profile, and not those of a plugin.
            if group.engines and group.engines[0].job.plan.step_costs is None:
                apply_bounds(group, load, slo, max_pods)
            if group.engines:
                group.start = guess_pods(load, group.engines[0].job.plan, slo, max_pods)
        self.routing: RoutingCosts | None = None
        """Costs of other policies, once they are known."""
        self.other_draws: list[Job] = []
        """Jobs with other draws of the load; none for a trace."""
        self.uncertainty: Uncertainty | None = None
        """Pods by uncertainty, with a confidence and once they are known."""

    def wanted(self) -> list[PlannedFleet]:
        """Returns the fleets to simulate next; none at the end of the search."""
        best = self.cheapest()
        max_price = None if best is None else MAX_PRICE_RATIO * best.price
        defaults = (group.next_default(max_price, self._max_pods) for group in self.groups)
        fleets = [fleet for fleet in defaults if fleet is not None]
        if not fleets:
            max_price = self._max_alternative_price()
            fleets = [
                fleet
                for group in self.groups
                for fleet in group.next_alternatives(max_price, self._max_pods)
            ]
        if best is None and fleets:  # cheap fleets first: a success spares the others
            min_price = min(fleet.price for fleet in fleets)
            fleets = [fleet for fleet in fleets if fleet.price <= MAX_PRICE_RATIO * min_price]
        return fleets

    def _max_alternative_price(self) -> float | None:
        """Returns the maximum price of fleets with other limits of the engine, if there is one.

        Beyond, they would change neither the cheapest fleet nor the runner-up.
        """
        prices = sorted(fleet.price for fleet in self.best_of_groups())
        if len(prices) > 1:
            return prices[1] - MIN_SAVING
        return MAX_PRICE_RATIO * prices[0] if prices else None

    def learn(self, fleet: PlannedFleet, verdict: Verdict) -> None:
        """Stores the verdict on a fleet."""
        is_overloaded = self._is_overloaded(fleet, verdict)
        for group in self.groups:
            if fleet.engine in group.engines:
                group.learn(fleet, verdict, is_overloaded=is_overloaded)

    def _is_overloaded(self, fleet: PlannedFleet, verdict: Verdict) -> bool:
        """Returns whether a fleet of default engines is far from keeping up with the load."""
        load = self.load
        plan = fleet.engine.job.plan
        if load.session or plan.in_flight is not None or fleet.engine.prefill_share:
            return False
        length_s = load.arrival_s[-1] - load.arrival_s[0]
        ttft_s = verdict.summary.ttft_s.p95 or 0.0
        return verdict.slo_share > OVERLOADED_SHARE and ttft_s > OVERLOADED_BACKLOG * length_s

    def examine(self, run_fleets: RunFleets, slo: Slo) -> None:
        """Finds the fewest pods of the cheapest engine by routing policy and by uncertainty."""
        best = self.cheapest()
        if best is not None:
            self.routing = RoutingCosts(best, self.load)
            self.routing.run(run_fleets, self.load, slo)
            cheaper = [
                fleet
                for fleet in self.fleets()
                if fleet.price < best.price and fleet.verdict.slo_share <= OVERLOADED_SHARE
            ]
            self.uncertainty = find_uncertainty(
                best,
                cheaper,
                self.load,
                draws=self.other_draws,
                slo=slo,
                run_fleets=run_fleets,
            )

    def cheapest(self) -> PlannedFleet | None:
        """Returns the cheapest fleet that met the SLO, if any."""
        return min(self.best_of_groups(), key=price_order, default=None)

    def others(self, best: PlannedFleet) -> list[PlannedFleet]:
        """Returns the best fleets of the other devices and sizes, the cheapest first."""
        return [fleet for fleet in sorted(self.best_of_groups(), key=price_order) if fleet != best]

    def next_safer(self, best: PlannedFleet) -> PlannedFleet | None:
        """Returns the cheapest simulated fleet that is farther below the limits, if any."""
        for fleet in self.fleets():
            if fleet.verdict.slo_share < best.verdict.slo_share and fleet.price >= best.price:
                return fleet
        return None

    def next_cheaper(self, best: PlannedFleet) -> PlannedFleet | None:
        """Returns the dearest simulated fleet that costs less than `best`, if it is a near miss.

        Of several with this price, it is the one nearest to the limits.
        """
        cheaper = [
            fleet
            for fleet in self.fleets()
            if fleet.price < best.price and fleet.verdict.slo_share <= MAX_NEAR_MISS
        ]
        return max(cheaper, key=lambda fleet: (fleet.price, -fleet.verdict.slo_share), default=None)

    def best_of_groups(self) -> list[PlannedFleet]:
        """Returns the best fleet of each device and size that met the SLO."""
        return [fleet for fleet in (group.best() for group in self.groups) if fleet is not None]

    def nearest(self) -> str:
        """Returns the fleet that comes closest to the SLO, and by how much it misses the SLO."""
        fleets = self.fleets()
        if fleets:
            fleet = min(fleets, key=slo_order)
            return f"{fleet} {fleet.engine.flags} misses {fleet.verdict.misses}"
        group = min(self.groups, key=lambda group: group.idle_share)
        return f"{group.name} {group.reason}"

    def fleets(self) -> list[PlannedFleet]:
        """Returns all fleets that were simulated, the cheapest first."""
        # Several engines may share a verdict; the first engine is returned.
        by_verdict: dict[int, PlannedFleet] = {}
        for group in self.groups:
            for engine in group.engines:
                for pods, verdict in engine.verdicts.items():
                    by_verdict.setdefault(id(verdict), PlannedFleet(engine, pods))
        return sorted(by_verdict.values(), key=price_order)

    def front(self) -> list[PlannedFleet]:
        """Returns the Pareto front of price and worst latency: no fleet is cheaper and as fast."""
        front: list[PlannedFleet] = []
        for fleet in self.fleets():
            if not front or fleet.verdict.slo_share < front[-1].verdict.slo_share:
                front.append(fleet)
        return front
