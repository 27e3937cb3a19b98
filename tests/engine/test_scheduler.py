"""The scheduler of steps: no block lost, no budget broken, nobody forgotten, however requests come and go."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.batch import Batch, SchedulerLimits, SequenceState
from app.engine.scheduler import Scheduler
from app.kvcache.counted import CountedBlocks
from tests.engine.plain_scheduler import Plain, PlainScheduler

Requests = Sequence[tuple[int, int, int]]
BLOCK = 4
POOL = 24
LONGEST = (POOL - 1) * BLOCK
"""Tokens of a sequence that has the whole pool for itself."""

REQUESTS = st.lists(
    st.tuples(st.integers(1, 60), st.integers(1, 30), st.integers(0, 2)), min_size=1, max_size=14
)
LIMITS = st.builds(
    SchedulerLimits,
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.sampled_from([8, 16, 64]),
    long_prefill_token_threshold=st.sampled_from([0, 5]),
    by_priority=st.booleans(),
)
ACTIONS = st.lists(
    st.tuples(st.sampled_from(["add", "step", "step", "step", "abort"]), st.integers(0, 13)),
    min_size=40,
    max_size=120,
)


class Run:
    """A scheduler with two steps under way, driven by actions; each step as it can be compared."""

    def __init__(
        self, requests: Requests, limits: SchedulerLimits, in_bulk: bool, caching: bool = True
    ) -> None:
        self.blocks = CountedBlocks(POOL, BLOCK, caching)
        self.scheduler: Scheduler[SequenceState] = Scheduler(limits, self.blocks, in_bulk=in_bulk)
        self.all = [SequenceState(*request) for request in requests]
        self.to_come = deque(self.all)
        self.aborted: set[SequenceState] = set()
        self.done: list[SequenceState] = []
        self.tokens = dict.fromkeys(self.all, 0)
        """Handed out."""
        self.steps: list[object] = []
        self._under_way: deque[Batch[SequenceState]] = deque()

    def act(self, action: str, number: int) -> None:
        if action == "add" and self.to_come:
            self.scheduler.add(self.to_come.popleft())
        elif action == "abort" and number < len(self.all):
            self._abort(self.all[number])
        elif action == "step":
            self.step()

    def _abort(self, sequence: SequenceState) -> None:
        if sequence not in self.to_come and sequence not in self.aborted and sequence not in self.done:
            self.aborted.add(sequence)
            self.scheduler.remove(sequence)

    def step(self) -> bool:
        """Make one if two are not under way, else finish the oldest; False when there was nothing to do."""
        batch = self.scheduler.schedule() if len(self._under_way) < 2 else None
        if batch is not None:
            self._check(batch)
            self._under_way.append(batch)
            return True
        if not self._under_way:
            return False
        batch = self._under_way.popleft()
        for sequence in (*batch.decodes, *batch.prefilled):
            if sequence not in self.aborted:
                self.tokens[sequence] += 1
        self.scheduler.complete(batch)
        self.done += [sequence for sequence in batch.ends if sequence not in self.aborted]
        return True

    def _check(self, batch: Batch[SequenceState]) -> None:
        limits, running = self.scheduler.limits, self.scheduler.running
        number = self.all.index
        assert 0 < batch.tokens <= limits.max_num_batched_tokens
        assert len(running) <= limits.max_num_seqs
        assert batch.sequences == len(batch.decodes) + batch.prefills
        assert self.blocks.free + sum(sequence.held for sequence in self.all) == self.blocks.capacity
        assert self.blocks.free >= 0
        self.steps.append(
            (
                batch.tokens,
                batch.context,
                batch.attention,
                *(
                    [number(it) for it in some]
                    for some in (batch.decodes, batch.prefilled, batch.ends, running)
                ),
                self.blocks.free,
                self.scheduler.preemptions,
            )
        )


def played(
    requests: Requests, limits: SchedulerLimits, actions: Sequence[tuple[str, int]], in_bulk: bool
) -> Run:
    run = Run(requests, limits, in_bulk)
    for action, number in actions:
        run.act(action, number)
    while run.to_come:
        run.act("add", 0)
    while run.step():
        pass
    return run


@pytest.mark.slow
@given(REQUESTS, LIMITS, ACTIONS)
def test_everybody_gets_all_tokens_and_every_block_comes_back(
    requests: Requests, limits: SchedulerLimits, actions: Sequence[tuple[str, int]]
) -> None:
    run = played(requests, limits, actions, in_bulk=True)
    assert sorted(map(id, run.done)) == sorted(id(it) for it in run.all if it not in run.aborted)
    assert all(run.tokens[it] == it.output_tokens for it in run.done)
    assert run.blocks.free == run.blocks.capacity
    assert not any(run.blocks.find(it, LONGEST) for it in run.all), "who is over is forgotten"
    assert run.scheduler.idle


@pytest.mark.slow
@given(REQUESTS, LIMITS, ACTIONS)
def test_in_bulk_is_as_one_by_one(
    requests: Requests, limits: SchedulerLimits, actions: Sequence[tuple[str, int]]
) -> None:
    runs = [played(requests, limits, actions, in_bulk) for in_bulk in (True, False)]
    assert runs[0].steps == runs[1].steps


class Watched(SequenceState):
    """Counts how often the scheduler looks at what it has written."""

    looks = 0

    @property
    def written(self) -> int:
        self.looks += 1
        return self._written

    @written.setter
    def written(self, value: int) -> None:
        self.looks += 1
        self._written = value


def test_a_step_of_decodes_alone_looks_at_none_of_them() -> None:
    scheduler = Scheduler[Watched](
        SchedulerLimits(max_num_seqs=8, max_num_batched_tokens=64), CountedBlocks(1000, BLOCK)
    )
    watched = [Watched(8, 100) for _ in range(8)]
    for sequence in watched:
        scheduler.add(sequence)
    for _ in range(50):
        batch = scheduler.schedule()
        assert batch is not None
        scheduler.complete(batch)
    before = sum(it.looks for it in watched)
    for _ in range(40):
        batch = scheduler.schedule()
        assert batch is not None and len(batch.decodes) == 8
        scheduler.complete(batch)
    assert sum(it.looks for it in watched) == before


@given(REQUESTS, st.integers(1, 6))
def test_who_comes_first_is_admitted_first(requests: Requests, places: int) -> None:
    run = Run(requests, SchedulerLimits(max_num_seqs=places, max_num_batched_tokens=64), in_bulk=True)
    admitted: list[SequenceState] = []
    for sequence in run.all:
        run.scheduler.add(sequence)
    while run.step():
        admitted += [it for it in run.scheduler.running if it not in admitted]
    assert admitted == run.all


class Turns:
    """Drafts of which none, then one, then two and so on are right, as far as there are so many."""

    def __init__(self, drafts: int) -> None:
        self.drafts = drafts
        self._asked = 0

    def accepted(self, drafts: int) -> int:
        self._asked += 1
        return self._asked % (drafts + 1)


class Pair:
    """The scheduler and the plain one, driven by the same actions; each step of both."""

    def __init__(
        self,
        requests: Sequence[tuple[int, int, int, bool]],
        limits: SchedulerLimits,
        caching: bool,
        drafts: int,
    ) -> None:
        self.blocks = CountedBlocks(POOL, BLOCK, caching)
        speculation = Turns(drafts) if drafts else None
        self.scheduler: Scheduler[SequenceState] = Scheduler(limits, self.blocks, speculation=speculation)
        self.plain = PlainScheduler(limits, POOL - 1, BLOCK, caching, drafts, Turns(drafts).accepted)
        self.all = [SequenceState(*request) for request in requests]
        self.plain_all = [Plain(number, *request) for number, request in enumerate(requests)]
        self.here: set[int] = set()
        self._come = 0
        self._under_way: deque[Batch[SequenceState]] = deque()

    def act(self, action: str, number: int) -> None:
        if action == "add" and self._come < len(self.all):
            self.scheduler.add(self.all[self._come])
            self.plain.add(self.plain_all[self._come])
            self.here.add(self._come)
            self._come += 1
        elif action == "abort" and number in self.here:
            self.here.remove(number)
            self.scheduler.remove(self.all[number])
            self.plain.remove(self.plain_all[number])
        elif action == "fetched" and self.plain.fetching:
            first = self.plain.fetching[0]
            self.scheduler.fetched(self.all[first.number])
            self.plain.fetched(first)
        elif action == "pause":
            self.scheduler.paused = self.plain.paused = not self.plain.paused
        elif action == "step":
            self.step()

    def step(self) -> bool:
        """Make one if two are not under way, else finish the oldest; False when there was nothing to do."""
        if len(self._under_way) < 2:
            batch = self.scheduler.schedule()
            assert self._told(batch) == self.plain.schedule()
            assert self.scheduler.preemptions == self.plain.preemptions
            assert self.blocks.free == len(self.plain.free)
            if batch is not None:
                self._under_way.append(batch)
                return True
        if not self._under_way:
            return False
        batch = self._under_way.popleft()
        self.here -= {self.all.index(it) for it in batch.ends}
        self.scheduler.complete(batch)
        self.plain.complete()
        return True

    def _told(self, batch: Batch[SequenceState] | None) -> tuple[object, ...] | None:
        if batch is None:
            return None
        some = batch.decodes, batch.prefilled, batch.ends, self.scheduler.running
        drafted = [batch.drafts.get(it) for it in batch.decodes]
        counted = batch.tokens, batch.sequences, batch.prefills, batch.context, batch.attention
        return (*counted, drafted, *([self.all.index(it) for it in them] for them in some))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 60), st.integers(0, 30), st.integers(0, 2), st.booleans()),
        min_size=1,
        max_size=9,
    ),
    st.builds(
        SchedulerLimits,
        max_num_seqs=st.integers(1, 6),
        max_num_batched_tokens=st.sampled_from([8, 16, 64]),
        long_prefill_token_threshold=st.sampled_from([0, 5]),
        enable_chunked_prefill=st.booleans(),
        by_priority=st.booleans(),
    ),
    st.lists(
        st.tuples(
            st.sampled_from(["add", "add", "step", "step", "step", "step", "abort", "fetched", "pause"]),
            st.integers(0, 8),
        ),
        min_size=40,
        max_size=120,
    ),
    st.booleans(),
    st.sampled_from([0, 0, 3]),
)
def test_every_step_is_as_the_rules_say(
    requests: Sequence[tuple[int, int, int, bool]],
    limits: SchedulerLimits,
    actions: Sequence[tuple[str, int]],
    caching: bool,
    drafts: int,
) -> None:
    pair = Pair(requests, limits, caching, drafts)
    for action, number in actions:
        pair.act(action, number)
    assert pair.scheduler.idle == pair.plain.idle
    pair.scheduler.paused = pair.plain.paused = False
    for _ in requests:
        pair.act("add", 0)
    while pair.step() or pair.plain.fetching:
        pair.act("fetched", 0)
    if not pair.plain.waiting:  # a prompt that is larger than a step waits for ever where it may not be cut
        assert pair.scheduler.idle and pair.blocks.free == pair.blocks.capacity and not pair.here


def test_a_long_prompt_goes_in_chunks_that_sample_nothing() -> None:
    run = Run([(50, 2, 0)], SchedulerLimits(max_num_batched_tokens=16), in_bulk=True)
    run.act("add", 0)
    chunks = []
    while batch := run.scheduler.schedule():
        chunks.append((batch.tokens, len(batch.prefilled), batch.attention))
        run.scheduler.complete(batch)
    assert chunks == [(16, 0, 128.0), (16, 0, 384.0), (16, 0, 640.0), (2, 1, 98.0), (1, 0, 0.0)]


def test_without_chunks_a_prompt_waits_for_a_step_with_room_for_all_of_it() -> None:
    limits = SchedulerLimits(max_num_batched_tokens=16, enable_chunked_prefill=False)
    run = Run([(10, 3, 0), (12, 1, 0)], limits, in_bulk=True)
    run.act("add", 0)
    run.act("add", 0)
    sizes = [batch.tokens for batch in iter(run.scheduler.schedule, None)]
    assert sizes == [10, 13, 1]


def test_a_full_cache_preempts_the_last_which_finds_what_nobody_took() -> None:
    run = Run([(40, 20, 0), (40, 20, 0)], SchedulerLimits(), in_bulk=True)
    run.act("add", 0)
    run.act("add", 0)
    while not run.scheduler.preemptions:
        assert run.step()
    first, second = run.all
    assert (second.running, second.held, second.computed) == (False, 0, 0)
    assert run.blocks.find(second, second.known) > 0
    while run.step():
        pass
    assert run.tokens == {first: 20, second: 20}


def test_the_least_important_is_preempted_where_priorities_count() -> None:
    limits = SchedulerLimits(by_priority=True)
    run = Run([(40, 20, 5), (40, 20, 0)], limits, in_bulk=True)
    run.act("add", 0)
    run.act("add", 0)
    while not run.scheduler.preemptions:
        assert run.step()
    assert (run.all[0].preemptions, run.all[1].preemptions) == (1, 0)


def test_who_has_to_give_way_to_itself_lets_the_others_go_on_in_the_same_step() -> None:
    limits = SchedulerLimits(by_priority=True)
    run = Run([(40, 20, 5), (44, 20, 0)], limits, in_bulk=True)
    run.act("add", 0)
    run.act("add", 0)
    while not run.scheduler.idle:
        batch = run.scheduler.schedule()
        assert batch is not None  # though no step is under way whose end would be waited for
        run.scheduler.complete(batch)
    assert [it.preemptions for it in run.all] == [1, 0]
    assert [it.written for it in run.all] == [20, 20]


@pytest.mark.parametrize("in_bulk", [True, False])
def test_a_remote_prefill_takes_no_place_until_its_cache_has_come(in_bulk: bool) -> None:
    scheduler: Scheduler[SequenceState] = Scheduler(
        SchedulerLimits(max_num_seqs=1), CountedBlocks(POOL, BLOCK), in_bulk=in_bulk
    )
    remote, local = SequenceState(20, 2, remote=True), SequenceState(8, 1)
    scheduler.add(remote)
    scheduler.add(local)
    first = scheduler.schedule()
    assert first is not None
    assert first.prefilled == [local]
    assert scheduler.fetching == [remote]
    assert remote.held == 5
    scheduler.fetched(remote)
    assert scheduler.schedule() is None  # the only place is taken
    scheduler.complete(first)
    second = scheduler.schedule()
    assert second is not None
    assert (second.tokens, second.prefilled) == (1, [remote])
