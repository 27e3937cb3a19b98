"""Blocks of shared beginnings: none is lost, none taken twice, and what was computed is found."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.batch import Batch, SchedulerLimits
from app.engine.scheduler import Scheduler
from app.fidelity.pod import GroupedRequest, PrefixBlocks, shared_keys

BLOCK, POOL = 4, 24
REQUESTS = st.lists(
    st.tuples(st.integers(1, 60), st.integers(1, 30), st.integers(-1, 2), st.integers(0, 60)),
    min_size=1,
    max_size=14,
)
"""Prompt, answer, group and what is shared of it."""
ACTIONS = st.lists(
    st.tuples(st.sampled_from(["add", "step", "step", "step", "abort"]), st.integers(0, 13)), max_size=80
)


def request_of(number: int, tokens_in: int, tokens_out: int, group: int, shared: int) -> GroupedRequest:
    request = GroupedRequest(number, 0.0, tokens_in, tokens_out)
    request.group = group
    request.prefix_tokens = min(shared, tokens_in) if group >= 0 else 0
    return request


@pytest.mark.slow
@given(REQUESTS, ACTIONS, st.sampled_from([0, 5]), st.booleans())
def test_no_block_is_lost_or_taken_twice(
    requests: list[tuple[int, int, int, int]], actions: list[tuple[str, int]], threshold: int, in_bulk: bool
) -> None:
    blocks = PrefixBlocks(POOL, BLOCK)
    limits = SchedulerLimits(
        max_num_seqs=4, max_num_batched_tokens=16, long_prefill_token_threshold=threshold
    )
    scheduler: Scheduler[GroupedRequest] = Scheduler(limits, blocks, in_bulk=in_bulk)
    everyone = [request_of(number, *row) for number, row in enumerate(requests)]
    to_come, under_way = deque(everyone), deque[Batch[GroupedRequest]]()
    gone: set[GroupedRequest] = set()
    for action, number in [*actions, *[("add", 0)] * len(everyone), *[("step", 0)] * 4000]:
        if action == "add" and to_come:
            scheduler.add(to_come.popleft())
        elif action == "abort" and number < len(everyone):
            victim = everyone[number]
            if victim not in gone and victim not in to_come and victim.arrived:
                gone.add(victim)
                scheduler.remove(victim)
        elif action == "step":
            batch = scheduler.schedule() if len(under_way) < 2 else None
            if batch is not None:
                under_way.append(batch)
                blocks.pool.check_integrity(blocks.held.values())
                assert all(len(its) == it.held for it, its in blocks.held.items())
            elif under_way:
                batch = under_way.popleft()
                gone.update(batch.ends)
                scheduler.complete(batch)
            elif not to_come:
                break
    assert len(gone) == len(everyone)
    assert blocks.free == blocks.capacity
    assert not blocks.held


def test_whole_blocks_are_found_but_never_that_of_the_last_token() -> None:
    blocks = PrefixBlocks(POOL, BLOCK)
    first, second = (request_of(number, 16, 1, 0, 16) for number in range(2))
    assert blocks.find(first, 16) == 0
    blocks.begin(first, 0, 4)
    assert blocks.find(second, 16) == 0
    first.computed = 10
    blocks.filled(first)
    assert blocks.find(second, 16) == 2
    first.computed = 16
    blocks.filled(first)
    assert blocks.find(second, 16) == 3
    assert len(blocks.pool.longest_prefix(shared_keys(second, BLOCK))) == 4
    blocks.release(first, 4)
    assert blocks.free == blocks.capacity
    assert blocks.find(second, 16) == 3
    blocks.begin(second, 3, 1)
    assert blocks.free == blocks.capacity - 4
    assert blocks.hits == 3


def test_blocks_in_use_by_others_take_no_room() -> None:
    blocks = PrefixBlocks(7, BLOCK)
    first, second = (request_of(number, 20, 1, 0, 16) for number in range(2))
    blocks.begin(first, 0, 5)
    first.computed = 20
    blocks.filled(first)
    assert blocks.fits(second, 20, blocks.find(second, 20))
    assert not blocks.fits(request_of(2, 20, 1, 1, 16), 20, 0)
