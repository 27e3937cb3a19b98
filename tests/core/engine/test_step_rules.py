"""Rules of vLLM's scheduler beyond the plain order: which sequences a step holds, and when."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from gevent.event import Event

from app.core.engine.batch import (
    Batch,
    Drafted,
    LoRASlots,
    SchedulerLimits,
    SchedulerRules,
    SequenceState,
)
from app.core.engine.kvcache.counted_blocks import CountedBlocks
from app.core.engine.lifecycle import Lifecycle
from app.core.engine.scheduler import Scheduler
from app.core.engine.schedulers import make_scheduler
from app.core.engine.step_executor import StepExecutor
from app.core.engine.waiting_queue import WaitingQueue
from app.shared.step_policies.choice import policies_of
from app.shared.step_policies.speculative_decoding import Drafts, Speculation
from config import ConfigError
from config.settings import StepSettings
from tests.core.engine.harness import PROFILE, Harness, harness_with_draft_slots

BLOCK = 4


class StepLog:
    """An engine on the virtual clock, with the tokens and the prefills of each step."""

    def __init__(
        self, rules: SchedulerRules | None = None, blocks: int | None = None, **steps: Any
    ) -> None:
        self.harness = Harness(
            slots=8,
            blocks=blocks,
            profile=PROFILE,
            rules=rules or SchedulerRules(),
            sections={"steps": StepSettings(timing="steps", **steps)},
        )
        self.tokens: list[int] = []
        self.prefills: list[int] = []
        self.harness.engine.executor.watch_step = self._note  # type: ignore[union-attr]

    def _note(self, batch: Any, start_s: float, end_s: float) -> None:
        self.tokens.append(batch.tokens)
        self.prefills.append(batch.prefills)

    def ask(self, *prompts: int, output: int = 2) -> None:
        for prompt in prompts:
            name = str(len(self.harness.events))
            self.harness.ask(name, prompt_ids=[1] * prompt, max_tokens=output)

    @property
    def prefill_steps(self) -> list[int]:
        return [step for step, prefills in enumerate(self.prefills) if prefills]


class Asked(SequenceState):
    """A sequence that may have an adapter."""

    __slots__ = ("adapter",)


class NoDrafts:
    """Proposes nothing: only the test says which drafts are right."""

    padding = 0

    def propose(self, sequence: SequenceState, limit: int) -> int:
        return 0

    def accepted(self, sequence: SequenceState, drafts: int) -> int:
        return 0


class Line:
    """A scheduler by itself, with at most two steps under way."""

    def __init__(
        self,
        limits: SchedulerLimits,
        blocks: int = 1000,
        drafts: Speculation | None = None,
        lora: LoRASlots | None = None,
    ) -> None:
        queue: WaitingQueue[SequenceState] = WaitingQueue(lora, limits.by_priority)
        pool = CountedBlocks(blocks + 1, BLOCK)
        self.scheduler: Scheduler[SequenceState] = make_scheduler(
            limits, pool, queue, policies_of(limits, pool, drafts)
        )

    def add(
        self, prompt: int, output: int = 1, priority: int = 0, adapter: str | None = None
    ) -> SequenceState:
        sequence = Asked(prompt, output, priority)
        sequence.adapter = adapter
        self.scheduler.waiting.add(sequence)
        return sequence

    def add_remote(self, prompt: int) -> SequenceState:
        sequence = Asked(prompt, 1, 0, remote=True)
        sequence.adapter = None
        self.scheduler.waiting.add(sequence)
        return sequence

    def step(self) -> None:
        batch = self.schedule()
        self.scheduler.complete(batch)

    def schedule(self) -> Batch[SequenceState]:
        batch = self.scheduler.schedule()
        assert batch is not None
        return batch


@pytest.mark.parametrize(
    ("prompts", "adaptive", "tokens"),
    [
        ((100,), False, 64),
        ((100, 100), False, 2 * 16),
        ((100, 100), True, 2 * 32),
        ((100, 100, 100, 100, 100), True, 4 * 16),
    ],
)
def test_adaptive_long_prefill_threshold_does_not_limit_a_single_prompt(
    prompts: Sequence[int], adaptive: bool, tokens: int
) -> None:
    log = StepLog(
        max_num_batched_tokens=64,
        long_prefill_token_threshold=16,
        long_prefill_token_threshold_adaptive=adaptive,
    )
    log.ask(*prompts)
    log.harness.clock.advance(10)
    assert log.tokens[0] == tokens
    assert log.harness.is_idle()


@pytest.mark.parametrize(("spaces", "distance"), [(True, 5), (False, 1)])
def test_prefill_schedule_interval_spaces_out_the_prompts(spaces: bool, distance: int) -> None:
    log = StepLog(SchedulerRules(spaces_prefill=spaces), prefill_schedule_interval=5)
    log.ask(10, output=60)
    log.harness.clock.advance(0.2)
    log.ask(10, output=60)
    log.harness.clock.advance(0.015)
    log.ask(10)
    log.harness.clock.advance(10)
    _, second, third = log.prefill_steps
    assert third - second == distance
    assert log.harness.is_idle()


def test_prefill_schedule_interval_is_ignored_while_several_prompts_wait() -> None:
    rules = SchedulerRules(spaces_prefill=True)
    log = StepLog(rules, prefill_schedule_interval=5, max_num_batched_tokens=16)
    log.ask(4, output=60)
    log.harness.clock.advance(0.2)
    log.ask(15, 15, 15)
    log.harness.clock.advance(10)
    first = log.prefill_steps[1]
    assert log.prefill_steps[1:4] == [first, first + 1, first + 2]


@pytest.mark.parametrize(("passes", "computed"), [(True, 9), (False, 8)])
def test_passes_self_preempted_continues_the_step_after_self_preemption(
    passes: bool, computed: int
) -> None:
    rules = SchedulerRules(passes_self_preempted=passes)
    line = Line(SchedulerLimits(by_priority=True, rules=rules), blocks=4)
    unimportant = line.add(BLOCK, output=9, priority=2)
    line.scheduler.schedule()
    important = line.add(BLOCK + 1, output=9, priority=1)
    while not unimportant.preemptions:  # in the step in which both need a block
        line.scheduler.schedule()
    assert important.prompt_tokens + important.written - 1 == computed


def test_blocks_that_a_step_assigned_to_a_preempted_prompt_can_be_found() -> None:
    limits = SchedulerLimits(
        by_priority=True,
        long_prefill_token_threshold=2 * BLOCK,
        max_num_batched_tokens=3 * BLOCK,
    )
    line = Line(limits, blocks=8)
    victim = line.add(8 * BLOCK, priority=2)
    line.step()  # three blocks; then two with each step
    decode = line.add(BLOCK, output=3)
    line.step()
    line.step()  # assigns the blocks six and seven to the prompt, and takes the seventh away
    assert victim.preemptions == 1
    while decode.running:
        line.step()
    assert line.schedule().tokens == 8 * BLOCK - 6 * BLOCK


@pytest.mark.parametrize(("visits_all", "tokens"), [(True, 2), (False, 1)])
def test_visits_all_after_victims_reaches_the_sequence_behind_the_needy_one(
    visits_all: bool, tokens: int
) -> None:
    rules = SchedulerRules(visits_all_after_victims=visits_all)
    line = Line(SchedulerLimits(by_priority=True, rules=rules), blocks=3)
    ending = line.add(BLOCK - 1, output=2, priority=2)
    line.schedule()
    needy = line.add(BLOCK, output=9)
    behind = line.add(1, output=9)
    line.schedule()
    line.schedule()  # passes over `ending`, whose last token is in flight
    assert ending.preemptions == 1
    assert (needy.written, behind.written) == (2, tokens)


@pytest.mark.parametrize(("watermark", "running"), [(0.0, 2), (0.5, 1)])
def test_request_that_needs_watermark_blocks_waits_for_other_sequences(
    watermark: float, running: int
) -> None:
    line = Line(SchedulerLimits(watermark=watermark), blocks=9)
    line.add(4 * BLOCK, output=5)  # alone, it takes more than it may beside others
    line.add(2 * BLOCK, output=5)
    line.step()
    assert len(line.scheduler.running) == running


@pytest.mark.parametrize(("prompt", "fetching"), [(3, 1), (4, 0)])
def test_remote_transfer_starts_only_if_enough_blocks_remain(prompt: int, fetching: int) -> None:
    line = Line(SchedulerLimits(long_prefill_token_threshold=BLOCK), blocks=8)
    line.add(5 * BLOCK)
    line.add_remote(prompt * BLOCK)
    line.step()
    assert len(line.scheduler.fetching) == fetching


def test_draft_tokens_count_toward_the_token_limit_of_a_step() -> None:
    line = Line(
        SchedulerLimits(max_num_batched_tokens=20, draft_slots=3),
        drafts=Drafts([1.0], Random(1)),
    )
    first = line.add(10, output=9)
    second = line.add(10, output=9)
    line.step()
    assert (first.computed, second.computed) == (10, 4)


def test_drafts_and_their_drafter_need_blocks_before_they_are_checked() -> None:
    line = Line(SchedulerLimits(lookahead=3), drafts=Drafts([0.0] * 3, Random(1)))
    sequence = line.add(2 * BLOCK, output=9)
    first = line.schedule()
    assert sequence.held == 3, "the drafter writes beyond the prompt"
    second = line.schedule()
    assert (second.tokens, sequence.held) == (4, 4)
    line.scheduler.complete(first)
    line.schedule()
    assert sequence.held == 5, "the drafts under way could be right"


def test_drafts_also_reach_beyond_the_end_of_a_reply() -> None:
    line = Line(SchedulerLimits(), drafts=Drafts([1.0] * 3, Random(1)))
    sequence = line.add(4, output=3)
    line.step()
    batch = line.schedule()
    assert batch.drafts == {sequence: Drafted(3, accepted=3, delivered=1)}
    assert batch.ends == [sequence]


def test_a_step_that_overlaps_with_the_drafts_that_end_a_reply_computes_more_of_it() -> None:
    line = Line(SchedulerLimits(), drafts=Drafts([1.0] * 3, Random(1)))
    sequence = line.add(4, output=3)
    line.step()
    line.schedule()
    overrun = line.schedule()
    assert (overrun.tokens, overrun.receivers(), overrun.overruns) == (4, [], [sequence])


def test_a_sequence_with_one_token_to_compute_is_filled_with_drafts() -> None:
    line = Line(SchedulerLimits(), drafts=Drafts([1.0] * 3, Random(1)))
    line.add(4, output=9)
    line.step()
    sequence = line.add(1, output=9)
    batch = line.schedule()
    assert (batch.tokens, batch.drafts[sequence]) == (8, Drafted(3, accepted=0, delivered=0))


def test_a_sequence_that_was_passed_over_is_no_backlog() -> None:
    rules = SchedulerRules(spaces_prefill=True)
    limits = SchedulerLimits(
        max_num_seqs=2, prefill_schedule_interval=4, by_priority=True, rules=rules
    )
    line = Line(limits, lora=LoRASlots(1, lambda adapter: True))
    line.add(4, output=2, adapter="a")
    waits = line.add(4, output=9, adapter="b")
    line.add(4, output=30)
    for _ in range(4):
        line.step()  # the first one passes over `waits`, whose adapter has no slot
    line.add(4, output=1, priority=-1)
    line.step()  # takes the place that has become free, and leaves it at once
    places = []
    for _ in range(4):
        line.step()
        places.append(waits.running)
    assert places == [False, False, False, True], "the distance of prompts holds"


@pytest.mark.parametrize(("holds", "running"), [(False, 2), (True, 1)])
def test_holds_last_adapters_rule_keeps_a_finishing_adapter_in_use(
    holds: bool, running: int
) -> None:
    limits = SchedulerLimits(rules=SchedulerRules(holds_last_adapters=holds))
    line = Line(limits, lora=LoRASlots(1, lambda adapter: True))
    line.add(4, output=1, adapter="a")
    line.add(4, output=1, adapter="b")
    first = line.scheduler.schedule()
    line.scheduler.schedule()
    assert first is not None and len(first.admitted) == 1
    assert len(line.scheduler.running) == running


def test_draft_slots_must_be_fewer_than_max_num_batched_tokens() -> None:
    with pytest.raises(
        ConfigError, match=r"draft-slots \(64\) .* less than max-num-batched-tokens \(64\)"
    ):
        SchedulerLimits(max_num_batched_tokens=64, draft_slots=64)


@pytest.mark.parametrize(("drafts", "steps"), [(0, 9), (3, 6)])
def test_each_accepted_draft_token_saves_an_engine_step(drafts: int, steps: int) -> None:
    line = Line(SchedulerLimits(), drafts=NoDrafts())
    sequence = line.add(10, output=9)
    line.step()
    line.step()
    sequence.accept(drafts)
    step_count = 2
    while not line.scheduler.idle:
        line.step()
        step_count += 1
    assert step_count == steps


@pytest.mark.parametrize(("stops", "tokens"), [(False, []), (True, [1])])
def test_a_token_is_computed_while_the_token_that_stops_a_reply_is_in_flight(
    stops: bool, tokens: list[int]
) -> None:
    line = Line(SchedulerLimits())
    sequence = line.add(4, output=2)
    sequence.stops = stops
    batches = [line.schedule(), line.schedule()]
    assert batches[1].ends == [sequence]
    overrun = line.scheduler.schedule()
    assert [batch.tokens for batch in [overrun] if batch is not None] == tokens
    if overrun is not None:
        assert overrun.receivers() == []
    for batch in batches:
        line.scheduler.complete(batch)
    assert not line.scheduler.running
    assert line.scheduler.blocks.free == line.scheduler.blocks.capacity
    assert line.scheduler.idle


def test_a_stop_ends_a_sequence_at_once_without_another_step() -> None:
    line = Line(SchedulerLimits())
    line.add(4, output=2).stops = True
    line.step()
    line.step()
    assert line.scheduler.idle
    line.add(4, output=3)
    assert line.schedule().tokens == 4


def test_first_running_choice_of_the_latest_request_is_preempted() -> None:
    line = Line(SchedulerLimits(by_priority=True), blocks=6)
    choices = [line.add(8, output=9) for _ in range(3)]
    for number, sequence in enumerate(choices):
        sequence.choice = number
    for _ in range(2):
        line.step()
    assert [sequence.running for sequence in choices] == [False, True, True]


@pytest.mark.parametrize("forgets", [True, False])
def test_preempted_sequence_goes_before_an_earlier_one_that_waits_for_an_adapter_since_0_31(
    forgets: bool,
) -> None:
    limits = SchedulerLimits(rules=SchedulerRules(forgets_passes=forgets))
    line = Line(limits, blocks=7, lora=LoRASlots(1, lambda adapter: True))
    first = line.add(8, output=9, adapter="a")
    passed = line.add(4, output=1, adapter="b")
    preempted = line.add(12, output=9)
    for _ in range(6):
        line.step()
    assert first.running and not preempted.running
    assert line.scheduler.waiting.head() is preempted
    line.scheduler.remove(first)  # its adapter's slot is free now
    expected = preempted if forgets else passed
    assert line.scheduler.waiting.head() is expected


def test_prompt_overtaken_by_a_later_one_receives_its_token_first() -> None:
    line = Line(SchedulerLimits(long_prefill_token_threshold=4))
    long = line.add(8, output=2)
    short = line.add(4, output=4)
    line.step()
    batch = line.schedule()
    assert list(batch.decodes) == [short]
    assert batch.receivers() == [long, short]


def test_preempt_all_drops_the_tokens_in_flight_and_computes_them_again() -> None:
    line = Line(SchedulerLimits())
    first = line.add(4, output=4)
    second = line.add(4, output=2)
    under_way = [line.schedule(), line.schedule()]
    line.scheduler.preempt_all(under_way)
    assert not line.scheduler.running and line.scheduler.preemptions == 2
    for batch in under_way:
        assert batch.receivers() == []
        line.scheduler.complete(batch)
    assert (first.written, second.written, second.last) == (0, 0, False)
    batch = line.schedule()
    assert (batch.tokens, batch.admitted) == (8, [first, second])


def test_kept_requests_stand_still_and_compute_their_prompts_again() -> None:
    log = StepLog(blocks=1000)
    life = Lifecycle(log.harness.engine, log.harness.recorder, log.harness.cache)
    log.ask(32, output=20)
    log.harness.clock.advance(0.1)
    life.pause("keep", Event())
    log.harness.clock.advance(1.0)
    received = len(log.harness.tokens("0"))
    assert 0 < received < 20
    steps = len(log.tokens)
    log.harness.clock.advance(10.0)
    assert (len(log.harness.tokens("0")), len(log.tokens)) == (received, steps)
    life.resume()
    log.harness.clock.advance(10.0)
    assert len(log.harness.tokens("0")) == 20
    assert log.harness.finish("0") == "length"
    assert log.tokens[steps] == 32 + received


def test_sequences_that_end_in_a_step_free_their_blocks_in_order_of_admission() -> None:
    line = Line(SchedulerLimits(long_prefill_token_threshold=8))
    first = line.add(20)
    second = line.add(4, output=3)
    line.step()
    line.step()
    batch = line.schedule()
    assert batch.decodes == [second]
    assert batch.ends == [first, second]


def test_order_set_at_run_time_keeps_the_slots_that_older_versions_reserve_for_drafts() -> None:
    harness = harness_with_draft_slots()
    executor = harness.engine.executor
    assert isinstance(executor, StepExecutor)
    assert executor.limits.max_num_batched_tokens == 14
    executor.sort(by_priority=True)
    assert executor.limits.by_priority and executor.limits.max_num_batched_tokens == 14
