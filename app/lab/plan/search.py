"""Search for the cheapest fleet that meets an SLO:

bounds first, then simulation of the remaining fleets.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import add

import msgspec
from msgspec import Struct

from app.engine.core.batch import Batch
from app.engine.core.step_cost import StepCost
from app.lab.fidelity.goodput import METRICS, Limits, limit_ratios, limits_of
from app.lab.fidelity.pod import OfflineRequest
from app.lab.fidelity.simulate import Job
from app.lab.fidelity.simulation import SimulationOutcome, SimulationPlan, longest_tokens
from app.lab.fidelity.summary import SPLIT, Objective, RunSummary, summarize
from app.lab.load import report
from app.lab.load.loads import LoadTrace
from config.profile import EngineLimits

WITHIN = 1.5
"""Fleets up to this multiple of the cheapest price are simulated, for runners-up and the Pareto
front.
"""
HELPS = 0.98
"""Doubled pods must bring the worst latency below this share of its value, or more pods are no
cure.
"""


class Verdict(Struct, frozen=True):
    """Figures of a fleet beside the SLO."""

    slo_share: float
    """Worst latency of the SLO as a share of its limit; at most 1 where the SLO is met."""
    misses: str
    """Latency that exceeds its limit, and by how much; empty where the SLO is met."""
    summary: RunSummary


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits of single requests, which a share of all requests must meet, and objectives of all
    requests.
    """

    limits: Limits
    attainment: float
    objectives: tuple[Objective, ...]

    def __str__(self) -> str:
        words = [
            f"{name and name + ' '}{metric} {1000 * limit_s:g} ms"
            for name, own in self.limits.items()
            for metric, limit_s in own.items()
        ]
        shared = (
            [f"{', '.join(words)} for {100 * self.attainment:g} % of requests"] if words else []
        )
        return ", ".join(shared + [str(it) for it in self.objectives])

    def judge(self, outcome: SimulationOutcome, summary: RunSummary) -> Verdict:
        found = [(0.0, "")]
        for its in self.objectives:
            excess = report.milliseconds(its.seconds(summary) - its.limit_s)
            found.append((its.ratio(summary), f"{its.latency}_{its.statistic} by {excess}"))
        if self.limits:
            found.append(self._shared(outcome))
        share, text = max(found)
        return Verdict(share, text if share > 1 else "", summary)

    def _shared(self, outcome: SimulationOutcome) -> tuple[float, str]:
        """Returns the share of the limits that enough requests keep, and the limit that is worst."""
        ratios = list(limit_ratios(outcome, self.limits))
        share = self._most([max(its.values(), default=0.0) for its in ratios])
        worst, metric = max(
            (self._most(own), metric)
            for metric in METRICS
            if (own := [its[metric] for its in ratios if metric in its])
        )
        limits_s = {own[metric] for own in self.limits.values() if metric in own}
        if worst <= 1:
            good = sum(max(its.values(), default=0.0) <= 1 for its in ratios) / len(ratios)
            return share, f"goodput by {self.attainment - good:.1%}"
        if len(limits_s) > 1:
            return share, f"{metric} by {worst - 1:.0%}"
        return share, f"{metric} by {report.milliseconds((worst - 1) * limits_s.pop())}"

    def _most(self, values: list[float]) -> float:
        """Returns the greatest value of the best requests that make up the attainment."""
        return sorted(values)[self.good(len(values)) - 1]

    def good(self, requests: int) -> int:
        """Returns the least number of requests that must meet their limits."""
        return max(1, math.ceil(requests * self.attainment - 1e-9))

    def longest_s(self, load: LoadTrace) -> float:
        """Returns the most seconds that a good request may take; inf without such a limit."""
        kinds = [limits_of(self.limits, name) for name in load.classes or [""]]
        ttft, tpot, e2el = (max(its.get(metric, math.inf) for its in kinds) for metric in METRICS)
        return min(e2el, ttft + tpot * max(load.output_tokens))


@dataclass(slots=True, eq=False)
class Candidate:
    """An engine for a load, and the verdicts on its pods so far."""

    name: str
    job: Job
    prefill_share: float = 0.0
    """Share of the pods that only prefill; 0 for pods that do both."""
    failed: int = 0
    """Most pods that missed the SLO, or that cannot do the work."""
    met: int | None = None
    """Fewest pods that met the SLO."""
    hopeless: bool = False
    """More pods are no cure."""
    runs: dict[int, Verdict] = field(default_factory=dict)

    @property
    def price(self) -> float:
        """Price of a pod, an hour."""
        return (self.job.judgement.gpu_hour_price or 0.0) * self.job.plan.profile.devices

    @property
    def device(self) -> str:
        return self.name.partition(" ")[0]

    @property
    def limits(self) -> EngineLimits:
        return self.job.plan.profile.engine

    @property
    def settings(self) -> str:
        its = self.limits
        return f"--max-num-seqs {its.max_num_seqs} --max-num-batched-tokens {its.max_num_batched_tokens}"

    def next_pods(self, most: int, ceiling: int | None) -> int | None:
        """Returns the next pods to simulate, at most `most`; None at the end.

        `ceiling` pods met the SLO.
        """
        if self.failed >= most or self.hopeless:
            return None
        if self.met is not None:
            return (self.failed + self.met) // 2 if self.met - self.failed > 1 else None
        if ceiling is not None:
            return most
        return min(2 * self.failed if self.runs else self.failed + 1, most)

    def learn(self, pods: int, verdict: Verdict) -> None:
        self.runs[pods] = verdict
        if not verdict.misses:
            self.met = min(pods, self.met or pods)
            return
        before = [its.slo_share for count, its in self.runs.items() if 2 * count <= pods]
        self.hopeless = bool(before) and verdict.slo_share > HELPS * min(before)
        self.failed = max(pods, self.failed)


@dataclass(frozen=True, slots=True)
class PlannedFleet:
    """Pods of an engine, with their price an hour."""

    engine: Candidate
    pods: int

    @property
    def price(self) -> float:
        return round(self.engine.price * self.pods, 6)

    @property
    def prefill_pods(self) -> int:
        share = self.engine.prefill_share
        return min(self.pods - 1, max(1, round(share * self.pods))) if share else 0

    @property
    def kind(self) -> tuple[int, int]:
        """Returns the differences between fleets of a group besides pods and `max-num-seqs`."""
        return self.engine.limits.max_num_batched_tokens, self.prefill_pods

    @property
    def job(self) -> Job:
        job = self.engine.job.at("pods", self.pods)
        return job.at(SPLIT, self.prefill_pods) if self.prefill_pods else job

    @property
    def verdict(self) -> Verdict:
        return self.engine.runs[self.pods]

    def __str__(self) -> str:
        first = self.prefill_pods
        return f"{self.engine.name} x {f'{first}:{self.pods - first}' if first else self.pods}"


@dataclass(slots=True)
class Group:
    """Engines of one device and tensor-parallel size, vLLM's defaults first, or why there is none."""

    name: str
    engines: list[Candidate]
    reason: str = ""
    idle_share: float = math.inf
    """Worst latency on an idle pod as a share of its limit, where the SLO is missed even there."""

    def best(self) -> PlannedFleet | None:
        met = [PlannedFleet(its, its.met) for its in self.engines if its.met is not None]
        return min(met, key=_order, default=None)

    def wanted(self, best: float | None, most: int) -> Iterator[PlannedFleet]:
        """Yields the fleets to simulate next.

        `best` is the cheapest price so far, `most` the most pods.
        """
        kinds = set()
        for place, its in enumerate(self.engines):
            base = self.engines[0].met if place else None
            top = most if best is None else min(most, int(WITHIN * best / its.price + 1e-9))
            if base is not None:  # other settings are of use if they save a pod
                top = min(top, base - 1)
            if (pods := its.next_pods(top, base)) and (
                fleet := PlannedFleet(its, pods)
            ).kind not in kinds:
                kinds.add(fleet.kind)
                yield fleet
                if not place:
                    return

    def learn(self, fleet: PlannedFleet, verdict: Verdict) -> None:
        """Takes a verdict, also for engines whose larger or smaller `max-num-seqs` was never
        reached.
        """
        own, running = fleet.engine.limits, verdict.summary.running.peak
        for its in self.engines:
            unlimited = min(its.limits.max_num_seqs, own.max_num_seqs) > running
            same = (
                unlimited
                and its.failed < fleet.pods
                and PlannedFleet(its, fleet.pods).kind == fleet.kind
            )
            if its is fleet.engine or same:
                its.learn(fleet.pods, verdict)

    def why(self, cheapest: PlannedFleet | None) -> str:
        """Returns the reason for which the group has not the cheapest fleet."""
        if self.reason or not self.engines:
            return self.reason
        if cheapest is not None:
            if own := self.best():
                return "cheapest" if own == cheapest else _dearer(own.price / cheapest.price)
            open_at = [its.price * (its.failed + 1) for its in self.engines if not its.hopeless]
            if open_at and min(open_at) > cheapest.price:
                return f"at least {_dearer(min(open_at) / cheapest.price)}"
        nearest = min(
            (PlannedFleet(its, pods) for its in self.engines for pods in its.runs), key=_nearness
        )
        return f"misses {nearest.verdict.misses} with {nearest.pods} pod{'s' * (nearest.pods > 1)}"


def _dearer(ratio: float) -> str:
    return f"{ratio - 1:.0%} dearer" if ratio > 1 else "as dear, and slower"


def _nearness(fleet: PlannedFleet) -> tuple[float, float]:
    return fleet.verdict.slo_share, fleet.price


def _order(fleet: PlannedFleet) -> tuple[float, float, int]:
    return fleet.price, fleet.verdict.slo_share, fleet.pods


def make_group(name: str, jobs: Sequence[tuple[Job, float]], reason: str, load: LoadTrace) -> Group:
    """Makes engines of jobs and their prefill shares; `reason` is of a job that could not be made."""
    longest, engines = max(map(add, load.input_tokens, load.output_tokens)), []
    for job, share in jobs:
        if longest <= (most := longest_tokens(job.plan.profile.engine)):
            engines.append(Candidate(name, job, share, failed=1 if share else 0))
        else:
            reason = f"{job.profile_name}: holds {most} tokens of a request of {longest}"
    return Group(name, engines, "" if engines else re.split("[;,]", reason)[0].partition(": ")[2])


class FleetSearch:
    """Search for one load, in rounds:

    simulate the fleets of `wanted`, and hand their verdicts to `learn`.
    """

    def __init__(self, load: LoadTrace, slo: Slo, groups: Sequence[Group], most_pods: int) -> None:
        self.load, self.groups, self._most = load, groups, most_pods
        for group in groups:
            if group.engines and group.engines[0].job.plan.step_costs is None:
                _bound(group, load, slo, most_pods)

    def wanted(self) -> list[PlannedFleet]:
        best = self.cheapest()
        price = None if best is None else best.price
        found = [its for group in self.groups for its in group.wanted(price, self._most)]
        if best is None and found:  # cheap fleets first: one may spare the others
            least = min(its.price for its in found)
            found = [its for its in found if its.price <= WITHIN * least]
        return found

    def learn(self, fleet: PlannedFleet, verdict: Verdict) -> None:
        for group in self.groups:
            if fleet.engine in group.engines:
                group.learn(fleet, verdict)

    def cheapest(self) -> PlannedFleet | None:
        return min(filter(None, (group.best() for group in self.groups)), key=_order, default=None)

    def ranking(self) -> list[str]:
        """Returns lines with the cheapest fleet and the next one; none if no fleet meets the SLO."""
        best = sorted(filter(None, (group.best() for group in self.groups)), key=_order)
        lines = [
            f"cheapest: {its} {its.engine.settings}, {its.price:,.2f} an hour" for its in best[:1]
        ]
        return lines + [
            f"runner-up: {its}, {_dearer(its.price / best[0].price)}" for its in best[1:2]
        ]

    def nearest(self) -> str:
        """Returns the fleet that comes closest to the SLO, and by how much it misses, where none
        meets it.
        """
        if fleets := self.fleets():
            fleet = min(fleets, key=_nearness)
            return f"{fleet} {fleet.engine.settings} misses {fleet.verdict.misses}"
        group = min(self.groups, key=lambda its: its.idle_share)
        return f"{group.name} {group.reason}"

    def fleets(self) -> list[PlannedFleet]:
        """Returns all fleets that were simulated, the cheapest first."""
        engines = [its for group in self.groups for its in group.engines]
        simulated: dict[
            int, PlannedFleet
        ] = {}  # one for each verdict, which several engines may share
        for fleet in (PlannedFleet(its, pods) for its in engines for pods in its.runs):
            simulated.setdefault(id(fleet.verdict), fleet)
        return sorted(simulated.values(), key=_order)

    def front(self) -> list[PlannedFleet]:
        """Returns the Pareto front of price and worst latency: no fleet is cheaper and as fast."""
        front: list[PlannedFleet] = []
        for its in self.fleets():
            if not front or its.verdict.slo_share < front[-1].verdict.slo_share:
                front.append(its)
        return front


def run_fleet(load: LoadTrace, job: Job, slo: Slo) -> Verdict:
    """Simulates a fleet, in this process or in a worker's."""
    return slo.judge(*job.run(load))


def _bound(group: Group, load: LoadTrace, slo: Slo, most_pods: int) -> None:
    """Drops engines that miss the SLO on an idle pod, and sets the fewest pods that can do the
    work.
    """
    first = group.engines[0].job.plan
    widest = max(its.limits.max_num_batched_tokens for its in group.engines)
    outcome, work_s = _least_times(load, first, widest)
    idle = slo.judge(outcome, summarize(outcome, group.name))
    if idle.misses:
        group.reason, group.engines = f"misses {idle.misses} even on an idle pod", []
        group.idle_share = idle.slo_share
        return
    time_s = load.arrival_s[-1] - load.arrival_s[0] + slo.longest_s(load)
    if first.in_flight is None and not load.session and time_s < math.inf:
        least = math.ceil(sum(sorted(work_s)[: slo.good(len(load))]) / time_s)
        if least > most_pods:
            group.reason, group.engines = f"needs {least} pods at least", []
        for its in group.engines:
            its.failed = max(its.failed, least - 1)


def _least_times(
    load: LoadTrace, plan: SimulationPlan, budget: int
) -> tuple[SimulationOutcome, list[float]]:
    """Returns the outcome on idle pods, and the seconds of a pod that each request needs at best."""
    profile = plan.profile
    cost, front = msgspec.structs.replace(profile.cost, slowdown=0.0), profile.front
    step, outcome = StepCost(cost), SimulationOutcome(load, plan)

    def seconds(tokens: int, context: int = 0, prefills: int = 0) -> float:
        its = Batch[OfflineRequest](tokens=tokens, sequences=1, context=context, prefills=prefills)
        return step.seconds(its, 0.0, False)

    a_token = min(
        seconds(count) / count for count in (min(budget, 1 << power) for power in range(15))
    )
    a_decode, a_context = (
        cost.per_decode + cost.per_sequence,
        cost.per_context * (1 - cost.window_share),
    )
    whole_s, alone = seconds(budget, prefills=1), dict[int, float]()
    work_s = []
    for number, (prompt, output) in enumerate(
        zip(load.input_tokens, load.output_tokens, strict=True)
    ):
        shared = load.prefix_tokens[number] if load.group else 0
        computed = 1 if load.session else max(1, prompt - shared)  # the rest may be cached
        if computed not in alone:
            steps, rest = divmod(computed, budget)
            alone[computed] = steps * whole_s + (seconds(rest, prefills=1) if rest else 0.0)
        first_s = (
            front.front + front.front_per_token * prompt + alone[computed] + front.out_per_stream
        )
        outcome.first_s[number] = first_s
        outcome.last_s[number] = first_s + (output - 1) * seconds(1, prompt)
        work_s.append(
            (computed + output - 1) * a_token + (output - 1) * (a_decode + a_context * prompt)
        )
    return outcome, work_s
