"""Simulated engines and fleets: the moments of requests, whichever way they are calculated."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.core.batch import Batch, SchedulerLimits
from app.engine.core.scheduler import Scheduler
from app.engine.kvcache.block_pool import CountedBlocks
from app.lab.fidelity.pod import (
    OfflineRequest,
    PrefixBlocks,
    Timeline,
    scheduler_limits,
)
from app.lab.fidelity.simulation import Outcome, Plan, Simulation, simulate
from app.lab.load.policies import BLIND, POLICIES
from app.lab.load.trace import Load
from config.profile import CostConstants, EngineLimits, FrontCosts, Profile, read_profile
from tests.engine.loops import ClientLoop
from tests.kvcache.caches import check_pool

ENGINE = EngineLimits(
    num_gpu_blocks=40, block_size=4, max_num_seqs=6, max_num_batched_tokens=32, max_model_len=100
)
PLAIN = Profile(source="-", model="-", device="-", engine=ENGINE, cost=CostConstants(base=0.01))
REAL = msgspec.structs.replace(read_profile("qwen3-14b-h100"), engine=ENGINE)
REQUESTS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.001, 0.02, 0.3]), st.integers(1, 70), st.integers(1, 30)),
    min_size=1,
    max_size=25,
)
"""Gap, input and output tokens of each."""


def load_of(requests: Sequence[tuple[float, int, int]], groups: Sequence[tuple[int, int]] = ()) -> Load:
    """Each of `groups` is a group and how many tokens it shares."""
    load, at_s = Load("test"), 0.0
    for gap_s, tokens_in, tokens_out in requests:
        at_s += gap_s
        load.arrival_s.append(at_s)
        load.input_tokens.append(tokens_in)
        load.output_tokens.append(tokens_out)
    for number, (group, tokens) in enumerate(groups):
        load.group.append(group)
        load.prefix_tokens.append(min(tokens, load.input_tokens[number]))
    return load


def simulated(load: Load, plan: Plan) -> Outcome:
    return simulate(load, plan, 1, lambda done: None)


def moments(outcome: Outcome) -> list[tuple[float, float, float]]:
    return list(zip(outcome.send_s, outcome.first_s, outcome.last_s, strict=True))


def test_one_request_takes_a_step_a_token() -> None:
    outcome = simulated(load_of([(1.0, 10, 3)]), Plan(profile=PLAIN))
    assert moments(outcome) == [pytest.approx((1.0, 1.01, 1.03))]
    assert outcome.steps == 3


def test_a_request_waits_for_the_two_steps_that_are_fixed() -> None:
    outcome = simulated(load_of([(0.0, 4, 9), (0.011, 4, 1)]), Plan(profile=PLAIN))
    # It comes in the second step, when the third is already fixed, and runs in the fourth.
    assert outcome.first_s[1] == pytest.approx(0.04)
    alone = msgspec.structs.replace(PLAIN, engine=msgspec.structs.replace(ENGINE, async_scheduling=False))
    outcome = simulated(load_of([(0.0, 4, 9), (0.011, 4, 1)]), Plan(profile=alone))
    assert outcome.first_s[1] == pytest.approx(0.03)


def test_front_and_output_take_their_time() -> None:
    front = FrontCosts(front=0.5, front_per_token=0.01, out_per_stream=0.001)
    profile = msgspec.structs.replace(PLAIN, front=front)
    outcome = simulated(load_of([(0.0, 10, 2)]), Plan(profile=profile))
    assert moments(outcome) == [pytest.approx((0.0, 0.611, 0.621))]


# Without a front a request could be sent and seen in the very moment in which a step ends.
FRONTED = msgspec.structs.replace(PLAIN, front=FrontCosts(front=0.001))


@settings(max_examples=40, deadline=None)
@given(REQUESTS, st.integers(1, 8), st.sampled_from([0.0, 0.005]), st.sampled_from([FRONTED, REAL]))
def test_a_fleet_of_one_is_as_the_client_of_one_engine(
    requests: list[tuple[float, int, int]], places: int, turnaround_s: float, profile: Profile
) -> None:
    load = load_of(requests)
    plan = Plan(profile=profile, in_flight=places, turnaround_s=turnaround_s)
    outcome = simulated(load, plan)

    those = [
        OfflineRequest(*row)
        for row in zip(load.arrival_s, load.input_tokens, load.output_tokens, strict=True)
    ]
    blocks = CountedBlocks(ENGINE.num_gpu_blocks, ENGINE.block_size)
    scheduler: Scheduler[OfflineRequest] = Scheduler(scheduler_limits(ENGINE), blocks)
    loop = ClientLoop(those, scheduler, profile, places, turnaround_s)
    loop.advance(float("inf"))
    assert moments(outcome) == [(it.send_s, it.first_s, it.last_s) for it in those]
    assert (outcome.steps, outcome.preemptions) == (loop.steps, scheduler.preemptions)


@settings(max_examples=40, deadline=None)
@given(REQUESTS, st.sampled_from([0, 3]))
def test_blocks_that_can_be_shared_and_are_not_change_nothing(
    requests: list[tuple[float, int, int]], threshold: int
) -> None:
    engine = msgspec.structs.replace(ENGINE, num_gpu_blocks=27, long_prefill_token_threshold=threshold)
    plan = Plan(profile=msgspec.structs.replace(REAL, engine=engine))
    alone = load_of(requests, [(number, 70) for number in range(len(requests))])
    counted, found = simulated(load_of(requests), plan), simulated(alone, plan)
    assert moments(counted) == moments(found)
    assert counted.preemptions == found.preemptions
    assert found.cached_tokens == 0


@settings(max_examples=40, deadline=None)
@given(REQUESTS, st.sampled_from(sorted(BLIND)), st.integers(2, 4))
def test_pod_by_pod_is_as_all_together(
    requests: list[tuple[float, int, int]], policy: str, pods: int
) -> None:
    load, plan = load_of(requests), Plan(profile=REAL, pods=pods, policy=policy)
    apart, together = simulated(load, plan), Simulation(load, plan, lambda done: None).run()
    assert moments(apart) == moments(together)
    assert list(apart.pod) == list(together.pod)
    assert (apart.steps, apart.preemptions) == (together.steps, together.preemptions)
    assert apart.timeline.busy_s == pytest.approx(together.timeline.busy_s)
    assert apart.timeline.blocks == pytest.approx(together.timeline.blocks)


@settings(max_examples=40, deadline=None)
@given(
    REQUESTS,
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 70)), min_size=25, max_size=25),
    st.sampled_from(POLICIES),
    st.integers(1, 3),
    st.none() | st.integers(1, 6),
)
def test_everybody_gets_all_tokens_whatever_is_shared(
    requests: list[tuple[float, int, int]],
    groups: list[tuple[int, int]],
    policy: str,
    pods: int,
    places: int | None,
) -> None:
    load = load_of(requests, groups[: len(requests)])
    plan = Plan(profile=REAL, pods=pods, policy=policy, in_flight=places)
    simulation = Simulation(load, plan, lambda done: None)
    outcome = simulation.run()
    for number, (send_s, first_s, last_s) in enumerate(moments(outcome)):
        assert load.arrival_s[number] <= send_s < first_s <= last_s
    if places is not None:
        for send_s in outcome.send_s:
            under_way = [
                it for it in zip(outcome.send_s, outcome.last_s, strict=True) if it[0] <= send_s < it[1]
            ]
            assert len(under_way) <= places
    for pod in simulation.pods:
        assert pod.blocks.free == pod.blocks.capacity
    assert outcome.cached_tokens < sum(load.input_tokens)


def test_who_shares_a_beginning_computes_the_rest_only() -> None:
    profile = msgspec.structs.replace(PLAIN, cost=CostConstants(per_token=0.001, p=1))
    # Of 22 shared tokens 5 whole blocks are found; of a prompt of 20 never the block of the last token.
    load = load_of(
        [(0.0, 30, 1), (1.0, 30, 1), (1.0, 30, 1), (1.0, 20, 1), (0.0, 20, 1), (0.0, 22, 1)],
        [(0, 22), (0, 22), (1, 22), (0, 20), (2, 20), (2, 20)],
    )
    outcome = simulated(load, Plan(profile=profile))
    taken = [first - send for send, first, _ in moments(outcome)]
    # The last three are one step, which computes 4, 20 and 2 tokens.
    assert taken == pytest.approx([0.03, 0.01, 0.03, 0.026, 0.026, 0.026])
    assert outcome.cached_tokens == 20 + 16 + 20
    off = msgspec.structs.replace(ENGINE, enable_prefix_caching=False)
    outcome = simulated(load, Plan(profile=msgspec.structs.replace(profile, engine=off)))
    assert outcome.cached_tokens == 0


def test_policies_do_what_they_say() -> None:
    requests = [(0.0, 8, 20)] * 4 + [(0.0, 8, 2)] * 4
    load = load_of(requests, [(number % 2, 8) for number in range(8)])
    plan = Plan(profile=PLAIN, pods=4, policy="round-robin")
    assert list(simulated(load, plan).pod) == [0, 1, 2, 3] * 2
    fewest = simulated(load, replace(plan, policy="least-requests")).pod
    assert sorted(fewest[:4]) == sorted(fewest[4:]) == [0, 1, 2, 3]
    later = load_of([(1.0, 80, 1)] * 6, [(number % 2, 80) for number in range(6)])
    aware = simulated(later, replace(plan, policy="prefix-aware")).pod
    assert len(set(aware[::2])) == len(set(aware[1::2])) == 1


def test_time_is_kept_in_ever_wider_bins() -> None:
    timeline = Timeline(10.0)
    for number in range(10_000):
        timeline.add(10.0 + number, 10.5 + number, 2, 3)
    assert len(timeline.blocks) <= 512
    assert sum(timeline.blocks) == pytest.approx(15_000)
    assert sum(timeline.sequences) == pytest.approx(10_000)
    assert (timeline.most_sequences, timeline.most_blocks, timeline.busy_s) == (2, 3, 5000)
    short = Timeline(10.0)
    short.add(12.0, 13.0, 7, 1)
    short.join(timeline)
    assert sum(short.blocks) == pytest.approx(15_001)
    assert short.most_sequences == 7


SIZE, POOL = 4, 24
GROUPED = st.lists(
    st.tuples(st.integers(1, 60), st.integers(1, 30), st.integers(-1, 2), st.integers(0, 60)),
    min_size=1,
    max_size=14,
)
"""Prompt, answer, group and what is shared of it."""
ACTIONS = st.lists(
    st.tuples(st.sampled_from(["add", "step", "step", "step", "abort"]), st.integers(0, 13)), max_size=80
)


def request_of(number: int, tokens_in: int, tokens_out: int, group: int, shared: int) -> OfflineRequest:
    request = OfflineRequest(0.0, tokens_in, tokens_out, number)
    request.group = group
    request.prefix_tokens = min(shared, tokens_in) if group >= 0 else 0
    return request


@settings(max_examples=40, deadline=None)
@given(GROUPED, ACTIONS, st.sampled_from([0, 5]))
def test_no_block_is_lost_or_taken_twice(
    requests: list[tuple[int, int, int, int]], actions: list[tuple[str, int]], threshold: int
) -> None:
    blocks = PrefixBlocks(POOL, SIZE)
    limits = SchedulerLimits(
        max_num_seqs=4, max_num_batched_tokens=16, long_prefill_token_threshold=threshold
    )
    scheduler: Scheduler[OfflineRequest] = Scheduler(limits, blocks)
    everyone = [request_of(number, *row) for number, row in enumerate(requests)]
    to_come, under_way = deque(everyone), deque[Batch[OfflineRequest]]()
    gone: set[OfflineRequest] = set()
    for action, number in [*actions, *[("add", 0)] * len(everyone), *[("step", 0)] * 4000]:
        if action == "add" and to_come:
            scheduler.waiting.add(to_come.popleft())
        elif action == "abort" and number < len(everyone):
            victim = everyone[number]
            if victim not in gone and victim not in to_come and victim.arrived:
                gone.add(victim)
                scheduler.remove(victim)
        elif action == "step":
            batch = scheduler.schedule() if len(under_way) < 2 else None
            if batch is not None:
                under_way.append(batch)
                check_pool(blocks.pool, [*blocks.held.values()])
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
