"""Candidates of a plan: engines, fleets, and the state of their search."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from workbench.engine.costs import MeasuredErrors, errors_like
from workbench.engine.steps import EngineLimits
from workbench.plan.repeat_command import simulate_command
from workbench.plan.serve_command import serve_command
from workbench.plan.slo import Verdict
from workbench.runs.job import Job
from workbench.runs.job_spec import JobSpec
from workbench.runs.sweeps import PODS, PREFILL_PODS

MAX_PRICE_RATIO = 1.5
"""Fleets up to this multiple of the cheapest price are simulated, for runners-up and the Pareto
front.
"""
MAX_GROWTH = 2.0
"""Ratio of the next number of pods to the latest one, at most."""
MAX_IMPROVED_SHARE = 0.98
"""Doubled pods must bring the worst latency below this share of its value; otherwise more pods do
not help.
"""


@dataclass(slots=True, eq=False)
class Candidate:
    """An engine for a load, and the verdicts on its pods so far."""

    name: str
    job: Job
    shared: JobSpec = JobSpec()
    """The load, and the options of all engines."""
    prefill_share: float = 0.0
    """Share of the pods that only prefill; 0 for pods that do both."""
    failed: int = 0
    """Most pods that missed the SLO, or that cannot do the work."""
    met: int | None = None
    """Fewest pods that met the SLO."""
    is_hopeless: bool = False
    """True if more pods do not help."""
    verdicts: dict[int, Verdict] = field(default_factory=dict)

    @property
    def price(self) -> float:
        """Price of a pod, an hour."""
        return (self.job.judgement.gpu_hour_price or 0.0) * self.job.plan.profile.devices

    def affordable(self, max_price: float | None, max_pods: int) -> int:
        """Returns the pods for at most `max_price` an hour, and at most `max_pods`."""
        if max_price is None:
            return max_pods
        return min(max_pods, int(max_price / self.price + 1e-9))

    @property
    def device(self) -> str:
        """Name of the device."""
        return self.name.partition(" ")[0]

    @property
    def limits(self) -> EngineLimits:
        """Limits of the engine."""
        return self.job.plan.profile.engine

    @property
    def flags(self) -> str:
        """Flags of vLLM for the engine."""
        limits = self.limits
        options = self.job.options
        tokens = limits.max_num_batched_tokens // options.parallel_batches
        return (
            f"--max-num-seqs {limits.max_num_seqs // options.data_parallel_size}"
            f" --max-num-batched-tokens {tokens}"
        )

    def next_pods(self, start: int, max_pods: int) -> int | None:
        """Returns the next number of pods to simulate, at most `max_pods`; None at the end.

        The search begins with `start` pods.
        """
        if self.failed >= max_pods or self.is_hopeless:
            return None
        if self.met is None:
            pods = self._more_pods() if self.verdicts else start
        elif self.met - self.failed > 1:
            pods = self._fewer_pods(self.met)
        else:
            return None
        return min(max(pods, self.failed + 1), max_pods)

    def _more_pods(self) -> int:
        """Returns pods for which a latency would be within its limit if it fell in proportion."""
        most_pods = max(self.verdicts)
        return int(most_pods * min(MAX_GROWTH, self.verdicts[most_pods].slo_share))

    def _fewer_pods(self, met: int) -> int:
        """Returns fewer than the `met` pods: near them where a limit is, too, and later halfway."""
        met_verdicts = [pods for pods, verdict in self.verdicts.items() if not verdict.misses]
        if len(met_verdicts) > 1:
            return (self.failed + met) // 2
        return min(met - 1, int(met * (1 + self.verdicts[met].slo_share) / 2))

    def learn(self, pods: int, verdict: Verdict) -> None:
        """Stores a verdict."""
        self.verdicts[pods] = verdict
        if not verdict.misses:
            self.met = min(pods, self.met or pods)
            return
        smaller_fleets = [
            smaller.slo_share for count, smaller in self.verdicts.items() if 2 * count <= pods
        ]
        self.is_hopeless = bool(smaller_fleets) and (
            verdict.slo_share > MAX_IMPROVED_SHARE * min(smaller_fleets)
        )
        self.failed = max(pods, self.failed)


@dataclass(frozen=True, slots=True)
class PlannedFleet:
    """Pods of an engine, with their price an hour."""

    engine: Candidate
    pods: int

    @property
    def price(self) -> float:
        """Price of the fleet, an hour; nodes are rented as a whole."""
        job = self.engine.job
        return round((job.judgement.gpu_hour_price or 0.0) * job.rented(self.devices), 6)

    @property
    def devices(self) -> int:
        """Devices in use."""
        return self.engine.job.plan.profile.devices * self.pods

    @property
    def prefill_pods(self) -> int:
        """Number of the pods that only prefill."""
        share = self.engine.prefill_share
        if not share:
            return 0
        return min(self.pods - 1, max(1, round(share * self.pods)))

    @property
    def kind(self) -> tuple[int, int]:
        """The differences between fleets of a group besides pods and `max-num-seqs`."""
        return self.engine.limits.max_num_batched_tokens, self.prefill_pods

    @property
    def job(self) -> Job:
        """The job that simulates the fleet."""
        job = self.engine.job.with_value(PODS, self.pods)
        if self.prefill_pods:
            return job.with_value(PREFILL_PODS, self.prefill_pods)
        return job

    @property
    def verdict(self) -> Verdict:
        """The verdict on the fleet."""
        return self.engine.verdicts[self.pods]

    @property
    def measured_errors(self) -> MeasuredErrors | None:
        """Errors of measured servers like a pod; None without a computed profile."""
        situation = self.engine.job.situation
        return None if situation is None else errors_like(situation)

    @property
    def serve_command(self) -> str:
        """The command that starts a pod."""
        return serve_command(self.engine.job, transfers=self.prefill_pods > 0)

    @property
    def simulate_command(self) -> str:
        """The command that repeats the figures of the fleet."""
        return simulate_command(
            self.engine.job,
            self.engine.shared,
            pods=self.pods,
            prefill_pods=self.prefill_pods,
        )

    @property
    def replicas(self) -> str:
        """The number of pods with their devices, as text."""
        devices = self.engine.job.plan.profile.devices
        device = self.engine.device
        plural = "s" if self.pods > 1 else ""
        text = f"{self.pods} replica{plural} of {devices} {device}"
        if self.prefill_pods:
            text += f", {self.prefill_pods} of them for prefill and {self.pods - self.prefill_pods}"
            text += " for decode"
        return text

    def __str__(self) -> str:
        prefill_pods = self.prefill_pods
        if prefill_pods:
            return f"{self.engine.name} x {prefill_pods}:{self.pods - prefill_pods}"
        return f"{self.engine.name} x {self.pods}"


@dataclass(slots=True)
class Group:
    """Engines of one device and tensor-parallel size, vLLM's defaults first."""

    name: str
    engines: list[Candidate]
    reason: str = ""
    """Why the group has no engines."""
    start: int = 1
    """Pods of the default engine that are simulated first."""
    idle_share: float = math.inf
    """Worst latency on an idle pod as a share of its limit, where the SLO is missed even there."""

    def best(self) -> PlannedFleet | None:
        """Returns the best fleet that met the SLO, if any."""
        fleets = [PlannedFleet(engine, engine.met) for engine in self.engines if engine.met]
        return min(fleets, key=price_order, default=None)

    def next_default(self, max_price: float | None, max_pods: int) -> PlannedFleet | None:
        """Returns the next fleet to simulate with vLLM's default limits; None at the end."""
        if not self.engines:
            return None
        engine = self.engines[0]
        pods = engine.next_pods(self.start, engine.affordable(max_price, max_pods))
        return PlannedFleet(engine, pods) if pods else None

    def next_alternatives(self, max_price: float | None, max_pods: int) -> Iterator[PlannedFleet]:
        """Yields the next fleets to simulate with other limits, or with pods that only prefill.

        These are of use if they save a pod of the best fleet of the group.
        """
        best = self.best()
        kinds = set()
        for engine in self.engines[1:]:
            limit = engine.affordable(max_price, max_pods)
            start = max(self.engines[0].verdicts, default=1)
            if best is not None:
                limit = min(limit, best.pods - 1)
                start = limit
            pods = engine.next_pods(start, limit)
            if not pods:
                continue
            fleet = PlannedFleet(engine, pods)
            if fleet.kind not in kinds:
                kinds.add(fleet.kind)
                yield fleet

    def learn(self, fleet: PlannedFleet, verdict: Verdict, *, is_overloaded: bool) -> None:
        """Stores a verdict, also for engines with another `max-num-seqs` that was never reached.

        No other limits help pods that are overloaded, except for more sequences.
        """
        running = verdict.summary.running.peak
        fleet_seqs = fleet.engine.limits.max_num_seqs
        for engine in self.engines:
            max_num_seqs = engine.limits.max_num_seqs
            is_equivalent = (
                min(max_num_seqs, fleet_seqs) > running
                and engine.failed < fleet.pods
                and PlannedFleet(engine, fleet.pods).kind == fleet.kind
            )
            if engine is fleet.engine or is_equivalent:
                engine.learn(fleet.pods, verdict)
            elif is_overloaded and (running < fleet_seqs or max_num_seqs <= fleet_seqs):
                engine.failed = max(engine.failed, fleet.pods)

    def least_price(self) -> float | None:
        """Returns the least price of pods that may meet the SLO; None if no pods do."""
        prices = [
            engine.price * (engine.failed + 1) for engine in self.engines if not engine.is_hopeless
        ]
        return min(prices, default=None)

    def explain(self, cheapest: PlannedFleet | None) -> str:
        """Returns the reason why the cheapest fleet is in this group, or is not."""
        if self.reason or not self.engines:
            return self.reason
        if cheapest is not None:
            best = self.best()
            if best is not None:
                if best == cheapest:
                    return "cheapest"
                return price_difference(best.price / cheapest.price)
            least_price = self.least_price()
            if least_price is not None and least_price > cheapest.price:
                return f"at least {price_difference(least_price / cheapest.price)}"
        nearest = min(
            (PlannedFleet(engine, pods) for engine in self.engines for pods in engine.verdicts),
            key=slo_order,
        )
        plural = "s" if nearest.pods > 1 else ""
        return f"misses {nearest.verdict.misses} with {nearest.pods} pod{plural}"


def price_difference(ratio: float) -> str:
    """Returns the text about a fleet that costs `ratio` times as much as the cheapest."""
    return f"{ratio - 1:.0%} more expensive" if ratio > 1 else "same price, slower"


def slo_order(fleet: PlannedFleet) -> tuple[float, float]:
    """Returns a key that sorts the fleets nearest to the SLO first."""
    return fleet.verdict.slo_share, fleet.price


def price_order(fleet: PlannedFleet) -> tuple[float, float, int]:
    """Returns a key that sorts the cheapest fleets first."""
    return fleet.price, fleet.verdict.slo_share, fleet.pods
