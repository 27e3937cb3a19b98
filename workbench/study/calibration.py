"""Fits few constants of a profile to the windows of a study. Start reading at `calibrate_study`.

Three factors are fitted: of each step, of the work on prompts, and of the time outside of steps.
Means and buckets do not identify more constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
from msgspec import Struct

from workbench.engine.steps import CostConstants, Profile, read_profile, shipped_profiles
from workbench.study.folder import Study
from workbench.study.quantities import E2E, TPOT, TTFT
from workbench.study.simulated import SimulatedWindow, compared_latencies, mean_of

FITTED = (TTFT, TPOT, E2E)
NAMES = ("step", "prompt", "outside")
PULLS = (0.01, 0.05, 0.05)
"""Weight of the start, for each factor."""
MIN_OUTSIDE_S = 1e-3
"""Least start of the time outside of steps."""
DIFFERENCE = 0.08
"""Change of a factor's logarithm, for derivatives."""
MAX_MOVE = 1.0
MAX_ROUNDS = 6
SHARES = (1.0, 0.5, 0.2)
"""Parts of a move that are tried."""
MIN_IMPROVEMENT = 0.02
UNSCALED = frozenset(
    ("expert_share", "p", "tile", "window", "window_share", "slowdown", "tau", "products_scale")
)
"""Constants that are no times."""
OF_PROMPTS = ("per_token", "spill", "per_attention", "mixed_context", "prefills")
"""Constants of the work on prompts."""
TABLES = ("products", "outputs")
MIN_REQUESTS = 3
DEFAULT_PACE_S = 0.02
"""Seconds of a token, where none was measured."""

Vector = list[float]


class Fit(Struct, frozen=True, kw_only=True):
    """A calibrated profile, and the factors of its constants."""

    profile: Profile
    factors: dict[str, float]
    simulations: int


def scaled_profile(profile: Profile, factors: Sequence[float]) -> Profile:
    """Returns a profile with factors for steps, prompts, and the time outside of steps."""
    step, prompt, outside = factors
    changes: dict[str, object] = {}
    for name, value in msgspec.structs.asdict(profile.cost).items():
        if name in UNSCALED:
            continue
        if name in TABLES:
            changes[name] = tuple((count, min(10.0, step * seconds)) for count, seconds in value)
        else:
            factor = step * prompt if name in OF_PROMPTS else step
            changes[name] = min(10.0, factor * value)
    front = profile.front
    return msgspec.structs.replace(
        profile,
        cost=msgspec.structs.replace(profile.cost, **changes),
        front=msgspec.structs.replace(
            front,
            front=min(10.0, outside * max(MIN_OUTSIDE_S, front.front)),
            out_per_stream=min(10.0, step * front.out_per_stream),
        ),
    )


def calibrate_study(
    study: Study,
    start: Profile,
    run: Callable[[Profile], list[SimulatedWindow]],
    *,
    numbers: Sequence[int],
    progress: Callable[[int], None],
) -> Fit:
    """Fits the factors to the windows with these numbers; `run` simulates a profile.

    `progress` receives the number of simulations.
    """
    problem = _Problem(study, start, run, numbers=numbers, progress=progress)
    factors = problem.fit()
    values = [math.exp(value) for value in factors]
    return Fit(
        profile=scaled_profile(start, values),
        factors=dict(zip(NAMES, values, strict=True)),
        simulations=problem.simulations,
    )


class _Problem:
    def __init__(
        self,
        study: Study,
        start: Profile,
        run: Callable[[Profile], list[SimulatedWindow]],
        *,
        numbers: Sequence[int],
        progress: Callable[[int], None],
    ) -> None:
        self._study = study
        self._start = start
        self._run = run
        self._numbers = numbers
        self._latencies = [name for name in FITTED if name in compared_latencies(study)]
        self._progress = progress
        self.simulations = 0

    def fit(self) -> Vector:
        """Returns the logarithms of the factors: Gauss-Newton steps with a line search."""
        x = [0.0] * len(NAMES)
        residuals = self._residuals(x)
        loss = _squares(residuals)
        for _ in range(MAX_ROUNDS):
            columns = []
            for index in range(len(x)):
                changed = list(x)
                changed[index] += DIFFERENCE
                columns.append(
                    [
                        (after - before) / DIFFERENCE
                        for after, before in zip(self._residuals(changed), residuals, strict=True)
                    ]
                )
            move = _solve(columns, residuals)
            candidates = [
                [
                    value - share * max(-MAX_MOVE, min(MAX_MOVE, part))
                    for value, part in zip(x, move, strict=True)
                ]
                for share in SHARES
            ]
            best = self._first_better(candidates, loss) or self._first_better(_around(x), loss)
            if best is None:
                break
            x, residuals = best
            last_loss = loss
            loss = _squares(residuals)
            if loss > (1 - MIN_IMPROVEMENT) * last_loss:
                break
        return x

    def _first_better(
        self, candidates: Iterable[Vector], loss: float
    ) -> tuple[Vector, Vector] | None:
        """Returns the first candidate with a smaller loss, and its residuals."""
        for candidate in candidates:
            residuals = self._residuals(candidate)
            if _squares(residuals) < loss:
                return candidate, residuals
        return None

    def _residuals(self, x: Sequence[float]) -> Vector:
        """Returns weighted logarithms of simulated by measured means, and the pulls."""
        profile = scaled_profile(self._start, [math.exp(value) for value in x])
        simulated = self._run(profile)
        self.simulations += 1
        self._progress(self.simulations)
        residuals = []
        windows = self._study.measured.windows
        for name in self._latencies:
            total = sum(
                windows[number].latencies[name].count
                for number in self._numbers
                if name in windows[number].latencies
            )
            for number in self._numbers:
                truth = windows[number].latencies.get(name)
                guess = simulated[number].latencies[name].mean
                if truth is None or truth.count < MIN_REQUESTS or not truth.mean or not guess:
                    residuals.append(0.0)
                    continue
                error = math.log(guess / truth.mean)
                residuals.append(math.sqrt(truth.count / total) * error)
        residuals += [pull * value for pull, value in zip(PULLS, x, strict=True)]
        return residuals


def _around(x: Vector) -> Iterator[Vector]:
    """Yields changes of one factor: few requests make derivatives rough."""
    for index in range(len(x)):
        for change in (DIFFERENCE, -DIFFERENCE):
            changed = list(x)
            changed[index] += change
            yield changed


def _squares(values: Sequence[float]) -> float:
    return sum(value * value for value in values)


def _solve(columns: Sequence[Vector], residuals: Vector) -> Vector:
    """Returns the least-squares solution of the system with these columns."""
    size = len(columns)
    rows = []
    for row, column in enumerate(columns):
        values = [sum(a * b for a, b in zip(column, other, strict=True)) for other in columns]
        values[row] += 1e-9
        values.append(sum(a * b for a, b in zip(column, residuals, strict=True)))
        rows.append(values)
    for pivot in range(size):
        largest = max(range(pivot, size), key=lambda row: abs(rows[row][pivot]))
        rows[pivot], rows[largest] = rows[largest], rows[pivot]
        for row in range(size):
            if row != pivot:
                factor = rows[row][pivot] / rows[pivot][pivot]
                rows[row] = [
                    value - factor * other
                    for value, other in zip(rows[row], rows[pivot], strict=True)
                ]
    return [rows[row][size] / rows[row][row] for row in range(size)]


def start_name(study: Study) -> str:
    """Returns the shipped profile from which a calibration for an unknown device starts.

    It is the one whose ratio of a prompt's token to a step is closest to the measured one, which
    separates CPUs from accelerators.
    """
    prefill_s = _measured_mean(study, "prefill_s")
    tokens = _new_tokens(study)
    names = shipped_profiles()
    if not prefill_s or not tokens:
        return names[0]
    ratio = prefill_s / tokens / _pace_s(study)

    def distance(name: str) -> float:
        cost = read_profile(name).cost
        return abs(math.log(max(_token_s(cost), 1e-9) / _step_s(cost) / ratio))

    return min(names, key=distance)


def scaled_start(study: Study, profile: Profile) -> Profile:
    """Returns a profile whose steps have the measured pace, with the limits of `profile`."""
    scaled = scaled_profile(profile, (_pace_s(study) / _step_s(profile.cost), 1.0, 1.0))
    return msgspec.structs.replace(
        scaled,
        source=f"start of a calibration, scaled from {profile.model} on {profile.device}",
        model=study.workload.model or "unknown",
        device="unknown",
        checked="not compared with any recording",
        errors={},
    )


def _pace_s(study: Study) -> float:
    return _measured_mean(study, TPOT) or DEFAULT_PACE_S


def _token_s(cost: CostConstants) -> float:
    """Returns the cost of each further token of a large step."""
    if not cost.products:
        return cost.per_token
    tokens, seconds = cost.products[-1]
    return cost.products_scale * seconds / tokens


def _step_s(cost: CostConstants) -> float:
    products = cost.products_scale * cost.products[0][1] if cost.products else cost.weights
    outputs = cost.outputs[0][1] if cost.outputs else 0.0
    return cost.base + products + outputs + cost.decodes + cost.per_decode + cost.per_sequence


def _measured_mean(study: Study, name: str) -> float | None:
    return mean_of(
        [window.latencies[name] for window in study.measured.windows if name in window.latencies]
    )


def _new_tokens(study: Study) -> float:
    """Returns the mean tokens of a prompt that were not cached."""
    windows = [window for window in study.workload.windows if window.requests]
    requests = sum(window.requests for window in windows)
    tokens = sum(
        window.requests * window.input_tokens.mean * (1 - window.cached_share) for window in windows
    )
    return tokens / requests if requests else 0.0
