"""The answer of a plan in words: the cheapest fleet, its warnings, the reasons, and the commands.

Start at `PlanAnswer`.
"""

from __future__ import annotations

from workbench.engine.costs import MeasuredErrors
from workbench.load.policies import RANDOM
from workbench.plan.fleets import (
    PlannedFleet,
    price_difference,
    price_order,
)
from workbench.plan.search import FleetSearch
from workbench.plan.slo import Slo
from workbench.runs.intervals import FactorRange, Intervals

LATENCY_OF = {"e2el": "e2e"}
"""Latency of a limit of single requests, where the name differs."""


class PlanAnswer:
    """The answer for one load."""

    def __init__(self, search: FleetSearch, slo: Slo) -> None:
        self._search = search
        self._slo = slo
        self._best = search.cheapest()

    def headline(self, load: str = "") -> str:
        """Returns the verdict as one sentence; `load` names the load if a plan has several."""
        best = self._best
        suffix = f" for {load}" if load else ""
        if best is None:
            return f"No fleet meets the limits{suffix}; nearest: {self._search.nearest()}"
        conditions = []
        if not is_measured(best):
            conditions.append("if its figures hold, which were never measured")
        if self._random_fleet() != best:
            conditions.append(f"with {self._search.policy} routing only")
        condition = "".join(f", {text}" for text in conditions)
        return (
            f"Cheapest{suffix}{condition}: {best}, {best.price:,.2f} per hour;"
            f" {self._certainty(best)}"
        )

    def _certainty(self, best: PlannedFleet) -> str:
        """Returns how near the tightest latency is to its limit, with its interval."""
        verdict = best.verdict
        text = f"{verdict.binds} is at {verdict.slo_share:.0%} of its limit"
        if self._slo.confidence is not None:
            return f"{self._slo.confidence:.0%} sure within the limits"
        interval = _interval_of(best)
        if interval is None:
            return text
        low = verdict.slo_share * interval.low
        high = verdict.slo_share * interval.high
        text += f", 80% sure between {low:.0%} and {high:.0%}"
        if high > 1:
            text += "; --confidence 90% finds a safer fleet"
        return text

    def warnings(self) -> list[str]:
        """Returns a line for each reservation, with the simple fleet beside the cheapest one."""
        best = self._best
        if best is None:
            return []
        lines = []
        if not is_measured(best):
            lines.append(f"warning: {_unmeasured_part(best)}; {self._measured_alternative(best)}")
        random_fleet = self._random_fleet()
        if random_fleet is None:
            lines.append(
                f"warning: the fleet depends on {self._search.policy} routing; with random routing,"
                " twice as many pods miss the limits"
            )
        elif random_fleet != best:
            ratio = random_fleet.price / best.price
            lines.append(
                f"warning: the fleet depends on {self._search.policy} routing; with random routing,"
                f" the limits require {random_fleet}, {random_fleet.price:,.2f} per hour"
                f" ({ratio - 1:+.0%})"
            )
        return lines

    def _random_fleet(self) -> PlannedFleet | None:
        """Returns the fewest pods with random routing: those of the plan if it is not known."""
        routing = self._search.routing
        if self._best is None or routing is None or RANDOM not in routing.searches:
            return self._best
        pods = routing.searches[RANDOM].met
        return None if pods is None else PlannedFleet(self._best.engine, pods)

    def _measured_alternative(self, best: PlannedFleet) -> str:
        """Returns a text about the cheapest fleet whose figures were measured."""
        fleets = [
            fleet
            for fleet in self._search.fleets()
            if not fleet.verdict.misses and is_measured(fleet)
        ]
        fleet = min(fleets, key=price_order, default=None)
        if fleet is None:
            return self._dearer_alternative()
        return (
            f"the cheapest fleet with measured figures is {fleet}, {fleet.price:,.2f} per hour"
            f" ({fleet.price / best.price - 1:+.0%})"
        )

    def _dearer_alternative(self) -> str:
        """Returns a text about measured fleets that are too dear to be simulated."""
        prices = []
        for group in self._search.groups:
            price = group.least_price()
            if price is not None and is_measured(PlannedFleet(group.engines[0], 1)):
                prices.append((price, group.name))
        if not prices:
            return "no fleet with measured figures meets the limits"
        price, name = min(prices)
        return f"the cheapest with measured figures, {name}, costs at least {price:,.2f} per hour"

    def reasons(self, *, is_long: bool) -> list[str]:
        """Returns lines about the alternatives; with `is_long` also those about the figures."""
        best = self._best
        if best is None:
            return []
        search = self._search
        lines = []
        others = search.others(best)
        if others:
            lines.append(
                f"runner-up: {others[0]}, {price_difference(others[0].price / best.price)}"
            )
        cheaper = search.next_cheaper(best)
        if cheaper is not None:
            lines.append(
                f"next cheaper: {cheaper} {cheaper.engine.flags},"
                f" {1 - cheaper.price / best.price:.0%} cheaper, misses {cheaper.verdict.misses}"
            )
        if search.uncertainty is not None:
            lines.append(str(search.uncertainty))
        if is_long:
            lines += self._long_reasons(best)
        return lines

    def _long_reasons(self, best: PlannedFleet) -> list[str]:
        search = self._search
        verdict = best.verdict
        lines = [f"binds: {verdict.binds} at {verdict.slo_share:.0%} of its limit"]
        safer = search.next_safer(best)
        if safer is not None:
            lines.append(
                f"next safer: {safer} {safer.engine.flags},"
                f" {price_difference(safer.price / best.price)},"
                f" {safer.verdict.binds} at {safer.verdict.slo_share:.0%}"
            )
        if search.routing is not None:
            lines.append(str(search.routing))
        lines.append(str(verdict.summary.memory))
        errors = best.measured_errors
        if errors is not None:
            lines.append(str(errors))
        return lines

    def commands(self, *, is_long: bool) -> list[str]:
        """Returns the commands of the cheapest fleet; with `is_long` also those of the others."""
        best = self._best
        if best is None:
            return []
        lines = command_lines(best)
        if is_long:
            lines += _interval_lines(best)
            for fleet in self._search.others(best):
                lines += [f"{fleet}:", *command_lines(fleet), *_interval_lines(fleet)]
        return lines


def is_measured(fleet: PlannedFleet) -> bool:
    """Returns whether servers like those of the fleet were measured.

    Profiles of plugins and files are taken as they are. Separate prefill pods were not measured.
    """
    if fleet.prefill_pods:
        return False
    errors = fleet.measured_errors
    return errors is None or _has_figures(errors)


def _has_figures(errors: MeasuredErrors) -> bool:
    return errors.tpot is not None or errors.ttft is not None


def _unmeasured_part(fleet: PlannedFleet) -> str:
    errors = fleet.measured_errors
    if errors is not None and not _has_figures(errors):
        return f"no server like this was measured ({errors.situation})"
    return "no fleet with separate prefill pods was measured"


def command_lines(fleet: PlannedFleet) -> list[str]:
    """Returns the commands that start a pod and that repeat the figures."""
    return [
        f"{fleet.replicas}: {fleet.serve_command}",
        f"repeat: {fleet.simulate_command}",
    ]


def _interval_lines(fleet: PlannedFleet) -> list[str]:
    intervals = fleet.verdict.summary.intervals
    if not isinstance(intervals, Intervals):
        return []
    parts = [f"{name.upper()} {getattr(intervals, name)}" for name in ("ttft", "tpot", "e2e")]
    return [f"{intervals.coverage:.0%} intervals: {', '.join(parts)}"]


def _interval_of(fleet: PlannedFleet) -> FactorRange | None:
    """Returns the interval of the latency that is nearest to its limit; None if not known."""
    verdict = fleet.verdict
    intervals = verdict.summary.intervals
    if not isinstance(intervals, Intervals):
        return None
    name = verdict.binds.partition("_")[0]
    interval: FactorRange | None = getattr(intervals, LATENCY_OF.get(name, name), None)
    return interval
