"""Sequences that wait for the cache of another engine: their blocks, places, and frees."""

import pytest

from app.core.engine.batch import Batch, SchedulerLimits, SchedulerRules, SequenceState
from app.core.engine.kvcache.counted_blocks import CountedBlocks
from app.core.engine.scheduler import Scheduler
from app.core.engine.schedulers import make_scheduler
from app.core.engine.waiting_queue import WaitingQueue
from app.shared.step_policies.choice import policies_of

BLOCK = 4
BLOCKS = 20


class Line:
    """A scheduler by itself."""

    def __init__(self, limits: SchedulerLimits | None = None) -> None:
        limits = limits or SchedulerLimits()
        queue: WaitingQueue[SequenceState] = WaitingQueue(by_priority=limits.by_priority)
        blocks = CountedBlocks(BLOCKS + 1, BLOCK, caching=False)
        self.blocks = blocks
        self.scheduler: Scheduler[SequenceState] = make_scheduler(
            limits, blocks, queue, policies_of(limits, blocks)
        )

    def add(
        self, prompt: int, output: int = 1, *, priority: int = 0, remote: bool = False
    ) -> SequenceState:
        sequence = SequenceState(prompt, output, priority, remote=remote)
        self.scheduler.waiting.add(sequence)
        return sequence

    def fetch(self, prompt: int, priority: int = 0) -> SequenceState:
        """Adds a sequence whose transfer has begun."""
        sequence = self.add(prompt, priority=priority, remote=True)
        assert self.scheduler.schedule() is None
        assert sequence in self.scheduler.fetching
        return sequence

    def schedule(self) -> Batch[SequenceState]:
        batch = self.scheduler.schedule()
        assert batch is not None
        return batch


def test_removed_sequence_keeps_its_blocks_until_its_transfer_is_over() -> None:
    line = Line()
    sequence = line.fetch(10)
    assert line.scheduler.remove(sequence)
    assert line.blocks.free == BLOCKS - 3
    line.scheduler.fetched(sequence)
    assert line.blocks.free == BLOCKS
    assert line.scheduler.idle


def test_sequence_whose_cache_is_lost_computes_its_prompt() -> None:
    line = Line()
    sequence = line.fetch(10)
    line.scheduler.fetched(sequence, tokens=0)
    assert line.schedule().tokens == 10
    assert line.blocks.free == BLOCKS - 3


@pytest.mark.parametrize(("arrived", "computed"), [(None, 1), (4, 6), (8, 2), (10, 1)])
def test_sequence_computes_the_tokens_that_were_lost(arrived: int | None, computed: int) -> None:
    line = Line()
    sequence = line.fetch(10)
    line.scheduler.fetched(sequence, arrived)
    assert line.schedule().tokens == computed


def test_fetched_sequence_starts_during_a_pause_of_admissions() -> None:
    line = Line()
    sequence = line.fetch(10)
    line.add(5)
    line.scheduler.paused = True
    line.scheduler.fetched(sequence)
    assert not line.scheduler.idle
    assert line.schedule().admitted == [sequence]


def test_fetched_sequences_start_by_priority() -> None:
    line = Line(SchedulerLimits(by_priority=True))
    sequences = [line.fetch(10, priority=priority) for priority in (2, 0, 1)]
    for sequence in sequences:
        line.scheduler.fetched(sequence)
    admitted = line.schedule().admitted
    assert [sequence.priority for sequence in admitted] == [0, 1, 2]


@pytest.mark.parametrize(("defers", "freed"), [(True, 0), (False, 3)])
def test_deferred_blocks_are_free_when_the_step_that_computes_them_is_over(
    defers: bool, freed: int
) -> None:
    line = Line(SchedulerLimits(defers_frees=defers))
    sequence = line.add(10)
    batch = line.schedule()
    line.scheduler.remove(sequence)
    assert line.blocks.free == BLOCKS - 3 + freed
    line.scheduler.complete(batch)
    assert line.blocks.free == BLOCKS


@pytest.mark.parametrize(("defers", "preemptions"), [(True, 0), (False, 1)])
def test_sequence_in_a_step_under_way_is_not_preempted_with_deferred_blocks(
    defers: bool, preemptions: int
) -> None:
    line = Line(SchedulerLimits(defers_frees=defers))
    line.add(10 * BLOCK, output=9)
    line.add(10 * BLOCK, output=9)
    line.schedule()
    line.scheduler.schedule()
    assert line.scheduler.preemptions == preemptions


@pytest.mark.parametrize(("defers", "receivers", "written"), [(True, 0, 0), (False, 2, 1)])
def test_older_versions_drop_the_token_in_flight_of_a_sequence_preempted_beside_a_connector(
    defers: bool, receivers: int, written: int
) -> None:
    rules = SchedulerRules(keeps_deferred_victims=False)
    line = Line(SchedulerLimits(defers_frees=defers, rules=rules))
    line.add(10 * BLOCK, output=9)
    victim = line.add(10 * BLOCK, output=9)
    under_way = line.schedule()
    line.scheduler.schedule()
    assert victim.preemptions == 1
    assert (len(under_way.receivers()), victim.written) == (receivers, written)


@pytest.mark.parametrize(("active", "running"), [(None, 3), (2, 2), (5, 3)])
def test_max_num_active_seqs_limits_the_running_sequences(active: int | None, running: int) -> None:
    line = Line(SchedulerLimits(max_num_seqs=3, max_num_active_seqs=active))
    for _ in range(4):
        line.add(BLOCK, output=5)
    assert len(line.schedule().admitted) == running
