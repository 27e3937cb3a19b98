"""Recorded runs, their replay on virtual time, and the errors of a profile's constants."""

from collections.abc import Collection, Sequence
from math import exp, inf, sqrt
from statistics import median
from typing import TypeVar

import msgspec
from msgspec import Struct

from app.engine.core.batch import Batch
from app.lab.fidelity.benchmark_files import MeasuredRun
from app.lab.fidelity.pod import OfflineRequest, Pod
from app.lab.fidelity.simulation import SimulationPlan, simulate
from app.lab.load.report import four
from config.profile import CostConstants, EngineLimits, FrontCosts, Profile


class SimulatedRun(Struct):
    figures: list[float]
    idle_steps: int
    most_running: int
    """Sequences in the fullest step."""
    preemptions: int


SOFT = 0.004
"""Error, as a share, below which the loss is flat: two runs of one server differ by as much."""
PULL = 2e-5
"""Loss of a candidate one spread away from the start."""
KNOWN = 0.03
"""Greatest standard deviation of an identified constant, as a share."""

FAR = 1.5
"""Ratio of inter-token latencies from which on the costs of the start are scaled."""
SCALINGS = 4
ITL_MEAN = 4
"""Place of the mean inter-token latency among the figures of a run."""

Costs = TypeVar("Costs", CostConstants, FrontCosts, EngineLimits)


class Constant(Struct, frozen=True):
    """A fitted constant, on a logarithmic scale."""

    name: str
    spread: float
    """Plausible distance from the start: natural logarithm of the ratio."""
    least: float
    """Start when the profile has 0, typical of measured devices."""
    most: float = 10.0


CONSTANTS = (
    Constant("base", 0.5, 1e-3),
    Constant("weights", 0.1, 1e-3),
    Constant("expert_weights", 0.3, 0.0),
    Constant("per_token", 0.15, 1e-6),
    Constant("p", 0.4, 6.0, most=100.0),
    Constant("tile", 0.5, 0.3, most=1.0),
    Constant("spill", 0.5, 0.0),
    Constant("products_scale", 0.1, 0.0, most=100.0),
    Constant("per_context", 0.15, 1e-9),
    Constant("per_attention", 0.4, 1e-10),
    Constant("per_sequence", 0.6, 10e-6),
    Constant("mixed_context", 0.7, 3e-9),
    Constant("slowdown", 0.5, 0.2),
    Constant("tau", 0.4, 0.04, most=100.0),
    Constant("wake", 0.6, 2e-3),
    Constant("front", 0.3, 2e-3),
    Constant("front_per_token", 0.4, 0.5e-6),
    Constant("out_per_stream", 0.4, 20e-6),
    Constant("engine_step_time", 0.15, 0.0),
)
OF_NORM = ("weights", "expert_weights", "per_token", "p", "tile", "spill")
"""Constants that a table of `products` replaces."""
OF_IDLE_RUNS = ("base", "front")
"""Constants that runs of an idle server show:

additions of host and server to each step and request.
"""
IDLE = 1.0
"""Most requests in flight, on average, at an idle server."""


class Certainty(Struct, frozen=True):
    """A fitted constant; `off` is its standard deviation as a share."""

    name: str
    start: float
    value: float
    off: float

    @property
    def identified(self) -> bool:
        return self.off <= KNOWN


class Run(Struct, frozen=True):
    """A recording, the limits of its client, and its figures."""

    recording: MeasuredRun
    in_flight: int | None
    turnaround_s: float
    figures: list[float]

    @property
    def name(self) -> str:
        return self.recording.name

    @property
    def is_idle(self) -> bool:
        """Returns whether the requests of the recording hardly overlap."""
        send_s, last_s = self.recording.send_s, self.recording.last_s
        return sum(last_s) - sum(send_s) <= IDLE * (max(last_s) - min(send_s))

    def errors(self, simulated: SimulatedRun) -> list[float]:
        """Returns the errors of the simulation as shares of the recorded figures."""
        return [
            ours / theirs - 1 for ours, theirs in zip(simulated.figures, self.figures, strict=True)
        ]

    def replay(self, profile: Profile) -> SimulatedRun:
        idle, end_s = 0, -inf

        def watch(
            pod: Pod, batch: Batch[OfflineRequest], start_s: float, step_end_s: float
        ) -> None:
            nonlocal idle, end_s
            idle += start_s > end_s
            end_s = step_end_s

        plan = SimulationPlan(
            profile=profile, in_flight=self.in_flight, turnaround_s=self.turnaround_s
        )
        outcome = simulate(self.recording.load, plan, watch=watch)
        return SimulatedRun(
            figures=[figure for its in outcome.latencies() for figure in four(its)],
            idle_steps=idle,
            most_running=outcome.timeline.most_sequences,
            preemptions=outcome.preemptions,
        )


class Problem(Struct, frozen=True):
    """A start and the runs to predict.

    A candidate has the distance of each constant, in spreads.
    """

    start: Profile
    constants: tuple[Constant, ...]
    values: tuple[float, ...]
    runs: tuple[Run, ...]

    @property
    def alone(self) -> Sequence[str]:
        """`OF_IDLE_RUNS` if they are fitted alone, else nothing."""
        return OF_IDLE_RUNS if tuple(it.name for it in self.constants) == OF_IDLE_RUNS else ()

    def candidate(self, x: Collection[float]) -> dict[str, float]:
        return {
            constant.name: min(value * exp(constant.spread * step), constant.most)
            for constant, value, step in zip(self.constants, self.values, x, strict=True)
        }

    def profile(self, x: Collection[float]) -> Profile:
        given = self.candidate(x)
        given["p"] = max(1.0, given.get("p", self.start.cost.p))

        def changed(costs: Costs) -> Costs:
            own = {name: value for name, value in given.items() if name in costs.__struct_fields__}
            return msgspec.structs.replace(costs, **own)

        parts = {name: changed(getattr(self.start, name)) for name in ("cost", "front", "engine")}
        return msgspec.structs.replace(self.start, **parts)

    def play(self, x: Collection[float]) -> list[SimulatedRun]:
        profile = self.profile(x)
        return [run.replay(profile) for run in self.runs]

    def errors(self, x: Collection[float]) -> list[list[float]]:
        return [run.errors(it) for run, it in zip(self.runs, self.play(x), strict=True)]

    def loss(self, x: Collection[float]) -> float:
        """Returns the mean error of a candidate, smoothed by `SOFT`, plus the pull towards the
        start.
        """
        errors = [error for run in self.errors(x) for error in run]
        misfit = sum(sqrt(error * error + SOFT * SOFT) - SOFT for error in errors) / len(errors)
        return misfit + PULL * sum(step * step for step in x)


def scaled(start: Profile, runs: Sequence[Run]) -> Profile:
    """Returns the start with costs of the recorded server's size, if those differ by more than
    `FAR`.

    The search moves each constant by a few spreads, and would not get there.
    """
    for _ in range(SCALINGS):
        ratios = [run.figures[ITL_MEAN] / run.replay(start).figures[ITL_MEAN] for run in runs]
        factor = median(ratios)
        if 1 / FAR <= factor <= FAR:
            break
        names = [it.name for it in CONSTANTS if it.name in CostConstants.__struct_fields__]
        values = {
            name: factor * getattr(start.cost, name)
            for name in set(names) - {"p", "tile", "slowdown", "tau"}
        }
        if not start.cost.products:
            values["products_scale"] = 1.0
        values["outputs"] = [(count, factor * value) for count, value in start.cost.outputs]
        start = msgspec.structs.replace(start, cost=msgspec.structs.replace(start.cost, **values))
    return start


def make_problem(start: Profile, runs: Sequence[Run], fixed: Sequence[str] = ()) -> Problem:
    """Chooses the constants to fit:

    all but `fixed`, or `OF_IDLE_RUNS` if all runs are of an idle server.
    """
    if not fixed and all(run.is_idle for run in runs):
        fixed = [it.name for it in CONSTANTS if it.name not in OF_IDLE_RUNS]
    parts = start.engine, start.cost, start.front
    values = {name: value for part in parts for name, value in msgspec.structs.asdict(part).items()}
    without = {*fixed, *(OF_NORM if start.cost.products else ("products_scale",))}
    constants = tuple(
        it for it in CONSTANTS if it.name not in without and (values[it.name] or it.least)
    )
    starts = tuple(values[it.name] or it.least for it in constants)
    return Problem(start, constants, starts, tuple(runs))
