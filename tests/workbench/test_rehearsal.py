"""A rehearsal recovers the cost model of a stand-in for an engine."""

import csv
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.engine.batch import Batch, SchedulerRules
from app.core.engine.kvcache.counted_blocks import CountedBlocks
from app.core.engine.profile import CostConstants, EngineLimits, Profile
from app.core.engine.scheduler import Scheduler
from app.core.engine.schedulers import make_scheduler
from app.core.engine.step_cost import StepCost
from app.core.engine.waiting_queue import WaitingQueue
from config import ConfigError
from research.rehearse import report
from research.rehearse.playing import (
    TURNAROUND_S,
    Clock,
    Played,
    RecordedStep,
    Token,
    play_offline,
    play_on,
)
from research.rehearse.rehearsal import Comparison, Rehearsal, draw_loads, limits_for, rehearse
from research.rehearse.step_fitting import fit_steps, predicted
from tests.callbacks import ignore
from workbench.load.loads import LoadTrace
from workbench.load.synthetic import Between, Recipe
from workbench.runs.benchmark_files import MeasuredRun, read_recordings
from workbench.runs.pod import OfflineRequest, scheduler_limits

pytestmark = pytest.mark.usefixtures("few_objects_to_collect")

LIMITS = EngineLimits(
    num_gpu_blocks=40, block_size=4, max_num_seqs=6, max_num_batched_tokens=32, max_model_len=100,
    async_scheduling=False,
)  # fmt: skip
CPU = CostConstants(
    base=2e-3, weights=16e-3, per_token=1e-3, p=4.0, spill=5e-7, per_context=5e-6, per_attention=1e-6,
    per_sequence=5e-4,
)  # fmt: skip
RECIPE = Recipe(input_tokens=Between(20, 90), output_tokens=Between(4, 24), requests=12)
REQUESTS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.003, 0.05, 2.0]), st.integers(1, 70), st.integers(1, 30)),
    min_size=1,
    max_size=25,
)
"""Gap, input and output tokens of each."""
LATER = 2.0 + TURNAROUND_S


def no_noise() -> float:
    return 1.0


class StandIn:
    """An engine that takes the seconds of a cost model. Each step is multiplied by `noise()`."""

    def __init__(
        self, limits: EngineLimits, cost: CostConstants, noise: Callable[[], float] = no_noise
    ) -> None:
        self.limits = limits
        self.now_s = 0.0
        self.clock = Clock(self._now, self._pass)
        self.pauses: list[float] = []
        self._cost = StepCost(cost)
        self._noise = noise
        self._blocks = CountedBlocks(
            limits.num_gpu_blocks, limits.block_size, limits.enable_prefix_caching
        )
        self._scheduler: Scheduler[OfflineRequest] = make_scheduler(
            scheduler_limits(limits, SchedulerRules()), self._blocks, WaitingQueue()
        )
        self._numbers: dict[OfflineRequest, int] = {}

    def add(self, number: int, input_tokens: int, output_tokens: int) -> None:
        request = OfflineRequest(0.0, input_tokens, output_tokens)
        self._numbers[request] = number
        self._scheduler.waiting.add(request)

    def step(self) -> tuple[Batch[Any], Sequence[Token]]:
        batch = self._scheduler.schedule()
        assert batch is not None
        self.now_s += self._cost.seconds(batch, self.now_s, False) * self._noise()
        self._scheduler.complete(batch)
        requests = [*batch.decodes, *batch.prefilled]
        return batch, [Token(self._numbers[step], step in batch.ends) for step in requests]

    def reset(self) -> None:
        assert self._scheduler.idle

    def _now(self) -> float:
        return self.now_s

    def _pass(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += max(seconds, 1e-9)  # less might not add up to anything


def load_of(requests: Sequence[tuple[float, int, int]]) -> LoadTrace:
    load = LoadTrace("test")
    at_s = 0.0
    for gap_s, tokens_in, tokens_out in requests:
        at_s += gap_s
        load.arrival_s.append(at_s)
        load.input_tokens.append(tokens_in)
        load.output_tokens.append(tokens_out)
    return load


def profile_of(cost: CostConstants, limits: EngineLimits = LIMITS) -> Profile:
    return Profile(source="-", model="-", device="-", engine=limits, cost=cost)


def steps_of(cost: CostConstants, count: int, seed: int) -> list[RecordedStep]:
    """Decodes, and some prefills beside them, that take exactly what they cost."""
    random = Random(seed)
    steps = []
    for _ in range(count):
        decodes = random.randint(0, 16)
        prefills = random.choice([0, 0, 1, 2])
        if not decodes + prefills:
            continue
        chunk = prefills * random.randrange(8, 200, 8)
        context = sum(random.randint(1, 500) for _ in range(decodes))
        steps.append(
            RecordedStep(
                tokens=decodes + chunk,
                sequences=decodes + prefills,
                context=context,
                attention=chunk * chunk / 2,
                prefills=prefills,
                seconds=1.0,
            )
        )
    step_seconds = predicted(cost, steps)
    return [
        msgspec.structs.replace(step, seconds=seconds)
        for step, seconds in zip(steps, step_seconds, strict=True)
    ]


@settings(max_examples=25, deadline=None)
@given(requests=REQUESTS, in_flight=st.one_of(st.none(), st.integers(1, 8)))
def test_simulation_has_the_times_and_steps_of_the_engine_run(
    requests: list[tuple[float, int, int]], in_flight: int | None
) -> None:
    load = load_of(requests)
    engine = StandIn(LIMITS, CPU)
    real = play_on(engine, load, in_flight, engine.clock)
    simulated = play_offline(profile_of(CPU), load, in_flight)
    assert [step.held for step in real.steps] == [step.held for step in simulated.steps]
    for name in ("send_s", "first_s", "last_s"):
        assert getattr(real.recording, name) == pytest.approx(
            getattr(simulated.recording, name), abs=1e-6
        )
    seconds = [step.seconds for step in simulated.steps]
    assert [step.seconds for step in real.steps] == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize(
    ("requests", "in_flight", "send_s", "first_s"),
    [
        ([(0.0, 5, 2), (10.0, 5, 1)], None, [0.0, 10.0], [1.0, 11.0]),
        ([(0.0, 5, 2), (0.0, 5, 2), (0.0, 5, 1)], 2, [0.0, 0.0, LATER], [1.0, 1.0, LATER + 1]),
        # What follows another request misses the step that is made at its end.
        ([(0.0, 5, 2), (0.0, 5, 4), (0.0, 5, 1)], 2, [0.0, 0.0, LATER], [1.0, 1.0, 4.0]),
    ],
)
def test_client_sends_a_due_request_once_a_slot_is_free(
    requests: list[tuple[float, int, int]],
    in_flight: int | None,
    send_s: list[float],
    first_s: list[float],
) -> None:
    engine = StandIn(LIMITS, CostConstants(base=1.0))
    seen = play_on(engine, load_of(requests), in_flight, engine.clock).recording
    assert seen.send_s == pytest.approx(send_s) and seen.first_s == pytest.approx(first_s)
    assert in_flight or engine.pauses == pytest.approx([8.0])


def test_fit_recovers_the_step_cost_constants_and_a_breakpoint() -> None:
    cost = fit_steps(steps_of(CPU, 400, 1)).cost
    fitted = msgspec.structs.asdict(cost)
    wanted = msgspec.structs.asdict(CPU)
    for table in ("products", "outputs"):
        assert fitted.pop(table) == wanted.pop(table)
    assert fitted == pytest.approx(wanted, rel=0.01, abs=1e-9)
    with pytest.raises(
        ConfigError, match="5 steps were recorded, and a fit needs 20: play more requests"
    ):
        fit_steps(steps_of(CPU, 400, 1)[:5])
    cost = msgspec.structs.replace(CPU, weights=9.5e-3, p=5.0)
    others = steps_of(cost, 100, 2)
    fit = fit_steps(steps_of(cost, 400, 1))
    assert predicted(fit.cost, others) == pytest.approx([step.seconds for step in others], rel=0.1)
    assert fit.median_error < 0.01


def rehearsed(rates: tuple[float, ...], noise: float = 0.0) -> Rehearsal:
    loads = draw_loads(RECIPE, rates)
    random = Random(1)
    limits = limits_for(loads, 64)

    def draw_noise() -> float:
        return 1 + random.uniform(-noise, noise)

    engine = StandIn(limits, CPU, draw_noise)
    return rehearse(engine, profile_of(CostConstants(), limits), loads, engine.clock, tell=ignore)


@pytest.fixture(scope="module")
def good() -> Rehearsal:
    """Of an engine that costs exactly what a profile can say."""
    return rehearsed((2, 5))


def test_rehearsal_of_an_engine_that_follows_the_model_shows_no_error(good: Rehearsal) -> None:
    assert good.within
    for comparison in good.comparisons:
        assert comparison.same_steps and comparison.noise < 1e-9
        assert all(abs(figure.error) < 1e-3 for figure in comparison.figures)
    slower = rehearsed((2,), noise=0.05)
    assert slower.within and slower.comparisons[0].noise > 1e-3


def played(scale: float, steps: int = 3) -> Played:
    """Three requests at once, of 2 tokens each."""
    first, last = ([begin + place * 0.1 * scale for place in (1, 2, 3)] for begin in (0.0, scale))
    zero = [0.0] * 3
    lengths = {"input_tokens": [5] * 3, "output_tokens": [2] * 3}
    recording = MeasuredRun(
        name="-", arrival_s=zero, send_s=zero, first_s=first, last_s=last, **lengths
    )
    return Played(
        recording,
        [RecordedStep(tokens=3, sequences=3, context=0, attention=0.0, prefills=0, seconds=0.1)]
        * steps,
    )


def test_rehearsal_fails_if_a_median_or_single_error_exceeds_its_limit() -> None:
    for repeated, simulated, within in (
        *((1.0, 1.049, True), (1.0, 1.051, False), (1.0, 0.951, True), (1.0, 0.949, False)),
        (1.1, 1.15, True),
    ):
        assert Comparison(3, played(1.0), played(repeated), played(simulated)).within == within
    alone = played(1.0)
    for first_s, within in (([0.115, 0.2, 0.3], True), ([0.1, 0.225, 0.3], False)):
        alone.recording.first_s[:] = first_s
        comparison = Comparison(3, played(1.0), played(1.0), alone)
        assert comparison.error < 0.05 and comparison.within is within
    assert Comparison(3, played(1.0), played(1.1), played(1.2)).same_steps
    assert not Comparison(3, played(1.0), played(1.0), played(1.0, steps=2)).same_steps


def test_rehearsal_report_contains_the_figures_and_a_verdict(
    good: Rehearsal,
) -> None:
    text = report.table(good)
    assert "2 in flight: 12 requests, " in text and "5 in flight: 12 requests, " in text
    assert text.count("the same in the simulation") == 2
    assert re.search(
        r"a step costs: base [\d.]+ us, weights [\d.e+]+ us, per-token [\d.]+ us, spill ", text
    )
    assert text.endswith("within the bound: noise + 5% in the median, noise + 10% each")
    worse = Comparison(7, played(1.0), played(1.0), played(2.0, steps=4))
    bad = msgspec.structs.replace(good, comparisons=[worse])
    assert "3 steps, 4 in the simulation" in report.table(bad)
    assert "NOT within the bound with 7 in flight" in report.verdict(bad)


def test_written_requests_can_be_read_by_the_calibrate_command(tmp_path: Path) -> None:
    engine = StandIn(LIMITS, CPU)
    recording = play_on(engine, load_of([(0.0, 5, 2), (0.5, 7, 3)]), None, engine.clock).recording
    report.write_requests(recording, tmp_path / "real.csv")
    [recording_read] = read_recordings(str(tmp_path / "real.csv"))
    assert recording_read.first_s == pytest.approx(recording.first_s, abs=1e-6)
    assert (recording_read.input_tokens, recording_read.output_tokens) == ([5, 7], [2, 3])
    report.write_steps(steps := steps_of(CPU, 5, 1), tmp_path / "steps.csv")
    with (tmp_path / "steps.csv").open() as file:
        assert [int(row["tokens"]) for row in csv.DictReader(file)] == [
            step.tokens for step in steps
        ]
