"""The problem of a fit: recorded runs, their replay on virtual time, and the error of a profile."""

from collections.abc import Collection, Sequence
from math import exp, inf, sqrt
from statistics import median
from typing import TypeVar

import msgspec
from msgspec import Struct

from app.shared.statistics import FIGURE_NAMES, mean_and_quantiles
from workbench.engine.steps import Batch, CostConstants, EngineLimits, FrontCosts, Profile
from workbench.runs.fitted_constant import Constant
from workbench.runs.measured_run import MeasuredRun
from workbench.runs.pod import Pod
from workbench.runs.prefix_blocks import OfflineRequest
from workbench.runs.simulation import SimulationPlan, simulate

SMOOTHING = 0.004
"""Error, as a share, below which the loss is flat: two runs of one server differ by as much."""
PULL = 2e-5
"""Loss of a candidate one spread away from the start."""
MAX_IDENTIFIED_DEVIATION = 0.03
"""Greatest standard deviation of an identified constant, as a share."""
MAX_START_RATIO = 1.5
"""Ratio of inter-token latencies from which on the costs of the start are scaled."""
MAX_SCALINGS = 4
TPOT_MEAN = FIGURE_NAMES.index("TPOT mean")
MAX_IDLE_IN_FLIGHT = 1.0
"""Maximum mean number of requests in flight at an idle server."""
NORM_CONSTANTS = ("weights", "expert_weights", "per_token", "p", "tile", "spill")
"""Constants that a table of `products` replaces."""
IDLE_CONSTANTS = ("base", "front")
"""Constants that runs of an idle server show: what host and server add to each step and request."""
UNSCALED_CONSTANTS = frozenset({"p", "tile", "slowdown", "tau"})
"""Constants that are not proportional to the speed of the server."""
CONSTANTS = (
    Constant("base", 0.5, 1e-3),
    Constant("weights", 0.1, 1e-3),
    Constant("expert_weights", 0.3, 0.0),
    Constant("per_token", 0.15, 1e-6),
    Constant("p", 0.4, 6.0, maximum=100.0),
    Constant("tile", 0.5, 0.3, maximum=1.0),
    Constant("spill", 0.5, 0.0),
    Constant("products_scale", 0.1, 0.0, maximum=100.0),
    Constant("per_context", 0.15, 1e-9),
    Constant("per_attention", 0.4, 1e-10),
    Constant("per_sequence", 0.6, 10e-6),
    Constant("mixed_context", 0.7, 3e-9),
    Constant("slowdown", 0.5, 0.2),
    Constant("tau", 0.4, 0.04, maximum=100.0),
    Constant("wake", 0.6, 2e-3),
    Constant("front", 0.3, 2e-3),
    Constant("front_per_token", 0.4, 0.5e-6),
    Constant("out_per_stream", 0.4, 20e-6),
    Constant("engine_step_time", 0.15, 0.0),
)
"""The constants that a fit may change."""

Costs = TypeVar("Costs", CostConstants, FrontCosts, EngineLimits)


class SimulatedRun(Struct):
    """Result of replaying a run."""

    figures: list[float]
    idle_steps: int
    """Steps that began after the end of the step before."""
    max_running: int
    """Sequences in the fullest step."""
    preemptions: int


class Certainty(Struct, frozen=True):
    """A fitted constant, and how certain it is."""

    name: str
    start: float
    value: float
    deviation: float
    """Standard deviation as a share of the value."""

    @property
    def is_identified(self) -> bool:
        """True if the recordings determine the constant."""
        return self.deviation <= MAX_IDENTIFIED_DEVIATION


class IdleSteps:
    """Counts the steps that begin after the end of the step before."""

    def __init__(self) -> None:
        self.count = 0
        self._end_s = -inf

    def watch(self, pod: Pod, batch: Batch[OfflineRequest], start_s: float, end_s: float) -> None:
        """Receives a step."""
        self.count += start_s > self._end_s
        self._end_s = end_s


class Run(Struct, frozen=True):
    """A recording, the limits of its client, and its figures."""

    recording: MeasuredRun
    in_flight: int | None
    turnaround_s: float
    figures: list[float]

    @property
    def name(self) -> str:
        """Name of the recording."""
        return self.recording.name

    @property
    def is_idle(self) -> bool:
        """True if the requests of the recording hardly overlap."""
        send_s = self.recording.send_s
        last_s = self.recording.last_s
        request_s = sum(last_s) - sum(send_s)
        return request_s <= MAX_IDLE_IN_FLIGHT * (max(last_s) - min(send_s))

    def errors(self, simulated: SimulatedRun) -> list[float]:
        """Returns the errors of the simulation as shares of the recorded figures."""
        pairs = zip(simulated.figures, self.figures, strict=True)
        return [figure / recorded_figure - 1 for figure, recorded_figure in pairs]

    def replay(self, profile: Profile) -> SimulatedRun:
        """Simulates the load of the recording."""
        idle_steps = IdleSteps()
        plan = SimulationPlan(
            profile=profile, in_flight=self.in_flight, turnaround_s=self.turnaround_s
        )
        outcome = simulate(self.recording.load, plan, watch=idle_steps.watch)
        figures = []
        for values in outcome.latencies():
            figures += mean_and_quantiles(values)
        return SimulatedRun(
            figures=figures,
            idle_steps=idle_steps.count,
            max_running=outcome.timeline.max_sequences,
            preemptions=outcome.preemptions,
        )


class Problem(Struct, frozen=True):
    """A start, the constants to fit, and the runs to predict.

    A candidate `x` has the distance of each constant from its start, in spreads.
    """

    start: Profile
    constants: tuple[Constant, ...]
    values: tuple[float, ...]
    """Start of each constant."""
    runs: tuple[Run, ...]

    @property
    def only_constants(self) -> Sequence[str]:
        """`IDLE_CONSTANTS` if no others are fitted, else nothing."""
        names = tuple(constant.name for constant in self.constants)
        return IDLE_CONSTANTS if names == IDLE_CONSTANTS else ()

    def candidate(self, x: Collection[float]) -> dict[str, float]:
        """Returns the constants of a candidate, by name."""
        return {
            constant.name: min(value * exp(constant.spread * step), constant.maximum)
            for constant, value, step in zip(self.constants, self.values, x, strict=True)
        }

    def profile(self, x: Collection[float]) -> Profile:
        """Returns the profile of a candidate."""
        values = self.candidate(x)
        values["p"] = max(1.0, values.get("p", self.start.cost.p))
        return msgspec.structs.replace(
            self.start,
            cost=_replace_known(self.start.cost, values),
            front=_replace_known(self.start.front, values),
            engine=_replace_known(self.start.engine, values),
        )

    def replay(self, x: Collection[float]) -> list[SimulatedRun]:
        """Simulates all runs with a candidate."""
        profile = self.profile(x)
        return [run.replay(profile) for run in self.runs]

    def errors(self, x: Collection[float]) -> list[list[float]]:
        """Returns the errors of each run with a candidate."""
        return [
            run.errors(simulated) for run, simulated in zip(self.runs, self.replay(x), strict=True)
        ]

    def loss(self, x: Collection[float]) -> float:
        """Returns the mean smoothed error of a candidate, plus the pull towards the start."""
        errors = [error for run in self.errors(x) for error in run]
        smoothed = (sqrt(error * error + SMOOTHING * SMOOTHING) - SMOOTHING for error in errors)
        return sum(smoothed) / len(errors) + PULL * sum(step * step for step in x)


def _replace_known(costs: Costs, values: dict[str, float]) -> Costs:
    """Replaces the fields that `costs` has among `values`."""
    fields = {name: value for name, value in values.items() if name in costs.__struct_fields__}
    return msgspec.structs.replace(costs, **fields)


def scale_start(start: Profile, runs: Sequence[Run]) -> Profile:
    """Returns the start with costs of the recorded server's size.

    It is scaled if the inter-token latencies differ by more than `MAX_START_RATIO`. The search
    moves each constant by a few spreads, and would not get there.
    """
    for _ in range(MAX_SCALINGS):
        ratios = [run.figures[TPOT_MEAN] / run.replay(start).figures[TPOT_MEAN] for run in runs]
        factor = median(ratios)
        if 1 / MAX_START_RATIO <= factor <= MAX_START_RATIO:
            break
        values: dict[str, object] = {}
        for constant in CONSTANTS:
            name = constant.name
            if name in CostConstants.__struct_fields__ and name not in UNSCALED_CONSTANTS:
                values[name] = factor * getattr(start.cost, name)
        if not start.cost.products:
            values["products_scale"] = 1.0
        values["outputs"] = [(count, factor * value) for count, value in start.cost.outputs]
        start = msgspec.structs.replace(start, cost=msgspec.structs.replace(start.cost, **values))
    return start


def make_problem(start: Profile, runs: Sequence[Run], fixed: Sequence[str] = ()) -> Problem:
    """Chooses the constants to fit.

    These are all but `fixed`, or only `IDLE_CONSTANTS` if all runs are of an idle server.
    """
    if not fixed and all(run.is_idle for run in runs):
        fixed = [constant.name for constant in CONSTANTS if constant.name not in IDLE_CONSTANTS]
    start_values: dict[str, float] = {}
    for part in (start.engine, start.cost, start.front):
        start_values.update(msgspec.structs.asdict(part))
    skipped = {*fixed}
    if start.cost.products:
        skipped.update(NORM_CONSTANTS)
    else:
        skipped.add("products_scale")
    constants = []
    values = []
    for constant in CONSTANTS:
        value = start_values[constant.name] or constant.default
        if value and constant.name not in skipped:
            constants.append(constant)
            values.append(value)
    return Problem(start, tuple(constants), tuple(values), tuple(runs))
