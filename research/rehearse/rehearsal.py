"""A rehearsal: an engine that is there plays a load twice, and the simulation plays it on what that
one cost.

How far both of its plays are apart is the noise of the machine. The profile is fitted to the steps
of other loads, which are played before each of the two: what is compared was never seen by the fit.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

from msgspec import Struct

from app.core.engine.profile import EngineLimits, Profile
from app.shared.statistics import FIGURE_NAMES
from config import ConfigError
from research.rehearse.playing import (
    Clock,
    Played,
    RecordedStep,
    ServingEngine,
    play_offline,
    play_on,
)
from research.rehearse.step_fitting import StepFit, fit_steps
from workbench.load.loads import LoadTrace
from workbench.load.synthetic import Recipe, draw_load

MOST_MEDIAN = 0.05
MOST_SINGLE = 0.10
"""By which the error may exceed the noise: in the median of the figures, and of any single one."""
LONGEST = 2048
"""Tokens to which lengths are cut that are drawn without an end."""
SPANS = 256
"""The engine's memory for decodes grows by so many tokens, and by `ROWS` sequences."""
ROWS = 4
JUDGED = tuple(place for place, name in enumerate(FIGURE_NAMES) if not name.endswith("p99"))
"""Of a few dozen requests a p99 is the slowest one."""

Tell = Callable[[str], None]


class Figure(Struct, frozen=True):
    """One of TTFT, ITL and E2E, by mean, p50 or p90; seconds."""

    name: str
    first_s: float
    again_s: float
    simulated_s: float

    @property
    def real_s(self) -> float:
        return (self.first_s + self.again_s) / 2

    @property
    def noise(self) -> float:
        """By which both plays of the engine differ, as a share."""
        return abs(self.first_s - self.again_s) / self.real_s

    @property
    def error(self) -> float:
        """Of the simulation, as a share of what the engine took."""
        return self.simulated_s / self.real_s - 1

    @property
    def most(self) -> float:
        """The error that it may have."""
        return self.noise + MOST_SINGLE


class Comparison(Struct, frozen=True):
    """One load, with so many requests in flight."""

    in_flight: int
    first: Played
    again: Played
    simulated: Played

    @property
    def figures(self) -> list[Figure]:
        columns = [it.recording.figures() for it in (self.first, self.again, self.simulated)]
        return [
            Figure(FIGURE_NAMES[place], *(column[place] for column in columns)) for place in JUDGED
        ]

    @property
    def noise(self) -> float:
        """The median of all figures."""
        return median(it.noise for it in self.figures)

    @property
    def error(self) -> float:
        """The same, of the errors' sizes."""
        return median(abs(it.error) for it in self.figures)

    @property
    def most(self) -> float:
        """That the median may be."""
        return self.noise + MOST_MEDIAN

    @property
    def within(self) -> bool:
        return self.error <= self.most and all(abs(it.error) <= it.most for it in self.figures)

    @property
    def same_steps(self) -> bool:
        """Whether every step of the simulation held what that of the engine held, both times."""
        held = [[step.held for step in it.steps] for it in (self.first, self.again, self.simulated)]
        return held[0] == held[1] == held[2]


class Rehearsal(Struct, frozen=True):
    profile: Profile
    fit: StepFit
    calibrated: list[RecordedStep]
    """The steps that the profile was fitted to."""
    comparisons: list[Comparison]

    @property
    def within(self) -> bool:
        return all(it.within for it in self.comparisons)


class Loads(Struct, frozen=True):
    """What is played, by the number of requests in flight."""

    compared: dict[int, LoadTrace]
    calibrating: tuple[dict[int, LoadTrace], dict[int, LoadTrace]]
    """Other requests of the same kind:

    one play of each before each of the two that are compared.
    """

    @property
    def longest(self) -> int:
        """Most tokens of a request."""
        loads = [
            it for by_places in (self.compared, *self.calibrating) for it in by_places.values()
        ]
        return max(
            sum(tokens)
            for it in loads
            for tokens in zip(it.input_tokens, it.output_tokens, strict=True)
        )


def draw_loads(recipe: Recipe, in_flight: Sequence[int]) -> Loads:
    """`recipe` says how many requests each of the compared loads has; those that calibrate have
    half of that, and twice as many as are in flight at least. ConfigError when no reply has two
    tokens.
    """
    assert recipe.requests is not None
    compared = draw_load(recipe, LONGEST)
    if max(compared.output_tokens) < 2:
        raise ConfigError(
            "output-tokens: no reply has two tokens, so there is no time between tokens"
        )
    others = []
    for round_ in (1, 2):
        half = {
            places: replace(
                recipe, seed=recipe.seed + round_, requests=max(recipe.requests // 2, 2 * places)
            )
            for places in in_flight
        }
        others.append({places: draw_load(it, LONGEST) for places, it in half.items()})
    return Loads(dict.fromkeys(in_flight, compared), (others[0], others[1]))


def limits_for(loads: Loads, max_num_batched_tokens: int) -> EngineLimits:
    """Of an engine that has room for all that is in flight, and one step under way at a time."""
    places, block_size = max(loads.compared), 16
    rows, tokens = -(-places // ROWS) * ROWS, -(-(loads.longest + 1) // SPANS) * SPANS
    return EngineLimits(
        num_gpu_blocks=rows * tokens // block_size + 1,
        block_size=block_size,
        max_num_seqs=places,
        max_num_batched_tokens=max(max_num_batched_tokens, places),
        max_model_len=tokens,
        async_scheduling=False,
    )


def rehearse(
    engine: ServingEngine, blank: Profile, loads: Loads, clock: Clock, tell: Tell
) -> Rehearsal:
    """Play all loads. `blank` says what is known of the engine besides its costs."""

    def play(load: LoadTrace, places: int) -> Played:
        gc.collect()
        gc.disable()  # a collection would make a step long
        try:
            return play_on(engine, load, places, clock)
        finally:
            gc.enable()

    most = max(loads.compared)
    tell("warming up")
    play(loads.calibrating[0][most], most)
    steps: list[RecordedStep] = []
    plays: list[dict[int, Played]] = []
    for round_, others in enumerate(loads.calibrating, 1):
        for places, load in others.items():
            tell(f"calibrating, {places} in flight, {round_} of 2")
            steps += play(load, places).steps
        plays.append({})
        for places, load in loads.compared.items():
            tell(f"playing, {places} in flight, {round_} of 2")
            plays[-1][places] = play(load, places)
    fit = fit_steps(steps)
    profile = Profile(
        source=f"fitted to {fit.steps} steps that the engine made",
        model=blank.model,
        device=blank.device,
        engine=engine.limits,
        cost=fit.cost,
    )
    compared = [
        Comparison(places, plays[0][places], plays[1][places], play_offline(profile, load, places))
        for places, load in loads.compared.items()
    ]
    return Rehearsal(profile, fit, steps, compared)
