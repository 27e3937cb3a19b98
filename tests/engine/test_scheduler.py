"""The scheduler of steps: no block lost, no budget broken, nobody forgotten, however requests come and go."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.core.batch import Batch, SchedulerLimits, SequenceState
from app.engine.core.scheduler import Scheduler
from app.engine.kvcache.block_pool import CountedBlocks
from tests.engine.plain_scheduler import Plain, PlainScheduler

BLOCK = 4
POOL = 24
"""Tokens of a sequence that has the whole pool for itself."""


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
            self.scheduler.waiting.add(self.all[self._come])
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


@settings(max_examples=100, deadline=None)
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
