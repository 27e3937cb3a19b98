"""Simulated engines and fleets: the moments of requests, whichever way they are calculated."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.core.engine.batch import Batch, SchedulerRules
from app.core.engine.kvcache.counted_blocks import CountedBlocks
from app.core.engine.profile import (
    CostConstants,
    EngineLimits,
    FrontCosts,
    Profile,
    SpeculationRates,
    read_profile,
)
from app.core.engine.scheduler import Scheduler
from app.core.engine.schedulers import make_scheduler
from app.core.engine.scheduling_policy import Admission, SchedulingPolicy
from app.core.engine.waiting_queue import WaitingQueue
from config import ConfigError
from tests.callbacks import ignore
from tests.core.kvcache.caches import check_pool
from tests.workbench.runs.loops import ClientLoop
from workbench.load.autoscale_flags import read_policy
from workbench.load.autoscaler import Autoscaling
from workbench.load.loads import LoadTrace
from workbench.load.policies import LEAST_REQUESTS, POLICIES
from workbench.runs.pod import OfflineRequest, scheduler_limits
from workbench.runs.simulation import (
    Simulation,
    SimulationOutcome,
    SimulationPlan,
    simulate,
)

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
# Without a front a request could be sent and seen in the very moment in which a step ends.
FRONTED = msgspec.structs.replace(PLAIN, front=FrontCosts(front=0.001))


def load_of(
    requests: Sequence[tuple[float, int, int]], groups: Sequence[tuple[int, int]] = ()
) -> LoadTrace:
    """Each of `groups` is a group and how many tokens it shares."""
    load = LoadTrace("test")
    at_s = 0.0
    for gap_s, tokens_in, tokens_out in requests:
        at_s += gap_s
        load.arrival_s.append(at_s)
        load.input_tokens.append(tokens_in)
        load.output_tokens.append(tokens_out)
    for number, (group, tokens) in enumerate(groups):
        load.group.append(group)
        load.prefix_tokens.append(min(tokens, load.input_tokens[number]))
    return load


def simulated(load: LoadTrace, plan: SimulationPlan) -> SimulationOutcome:
    return simulate(load, plan)


def moments(outcome: SimulationOutcome) -> list[tuple[float, float, float]]:
    return list(zip(outcome.send_s, outcome.first_s, outcome.last_s, strict=True))


def test_simulated_request_times_are_sums_of_step_and_server_costs() -> None:
    def seen(
        *requests: tuple[float, int, int], profile: Profile = PLAIN
    ) -> list[tuple[float, float, float]]:
        return moments(simulated(load_of(requests), SimulationPlan(profile=profile)))

    assert seen((1.0, 10, 3)) == [pytest.approx((1.0, 1.01, 1.03))]
    # It comes in the second step, when the third is already fixed, and runs in the fourth.
    assert seen((0.0, 4, 9), (0.011, 4, 1))[1][1] == pytest.approx(0.04)
    alone = msgspec.structs.replace(
        PLAIN, engine=msgspec.structs.replace(ENGINE, async_scheduling=False)
    )
    assert seen((0.0, 4, 9), (0.011, 4, 1), profile=alone)[1][1] == pytest.approx(0.03)
    front = FrontCosts(front=0.5, front_per_token=0.01, out_per_stream=0.001)
    fronted = msgspec.structs.replace(PLAIN, front=front)
    assert seen((0.0, 10, 2), profile=fronted) == [pytest.approx((0.0, 0.611, 0.621))]


@settings(max_examples=25, deadline=None)
@given(REQUESTS, st.integers(1, 8), st.sampled_from([0.0, 0.005]), st.sampled_from([FRONTED, REAL]))
def test_simulation_of_one_pod_equals_an_offline_run_of_one_engine(
    requests: list[tuple[float, int, int]], places: int, turnaround_s: float, profile: Profile
) -> None:
    load = load_of(requests)
    plan = SimulationPlan(profile=profile, in_flight=places, turnaround_s=turnaround_s)
    outcome = simulated(load, plan)

    rows = zip(load.arrival_s, load.input_tokens, load.output_tokens, strict=True)
    offline_requests = [OfflineRequest(*row) for row in rows]
    blocks = CountedBlocks(ENGINE.num_gpu_blocks, ENGINE.block_size)
    scheduler: Scheduler[OfflineRequest] = make_scheduler(
        scheduler_limits(ENGINE, SchedulerRules()), blocks, WaitingQueue()
    )
    loop = ClientLoop(
        offline_requests, scheduler, profile, in_flight=places, turnaround_s=turnaround_s
    )
    loop.advance(float("inf"))
    assert moments(outcome) == [
        (request.send_s, request.first_s, request.last_s) for request in offline_requests
    ]
    assert (outcome.steps, outcome.preemptions) == (loop.steps, scheduler.preemptions)


@settings(max_examples=25, deadline=None)
@given(REQUESTS, st.sampled_from(["random", "round-robin"]), st.integers(2, 4))
def test_pods_simulated_apart_or_on_one_timeline_give_equal_results(
    requests: list[tuple[float, int, int]], policy: str, pods: int
) -> None:
    load = load_of(requests)
    plan = SimulationPlan(profile=REAL, pods=pods, policy=policy)
    apart = simulated(load, plan)
    together = simulate(load, plan, watch=ignore)
    assert (moments(apart), apart.pod, apart.steps) == (
        moments(together),
        together.pod,
        together.steps,
    )
    assert apart.timeline.blocks == pytest.approx(together.timeline.blocks)


FALLING = msgspec.structs.replace(
    FRONTED, cost=CostConstants(base=0.01, products=((1, 0.01), (2, 0.002)))
)
DRAFTED = msgspec.structs.replace(
    REAL, speculation=SpeculationRates(acceptance=(0.9, 0.5), draft_slots=2)
)
TABLE = msgspec.structs.replace(
    FRONTED, cost=CostConstants(products=((1, 0.02), (32, 0.01), (64, 0.03)))
)


SOON_DONE = [
    (0.1, 49, 21),
    (0.0, 36, 45),
    (0.0, 12, 40),
    (0.0, 20, 45),
    (0.0, 43, 45),
    (0.05, 25, 40),
    (0.01, 18, 20),
    (0.1, 45, 20),
    (0.0, 48, 20),
    (0.01, 26, 20),
    (0.1, 16, 40),
    (0.1, 50, 21),
    (0.1, 43, 40),
    (0.01, 20, 40),
    (0.1, 35, 21),
    (0.05, 20, 20),
    (0.01, 23, 20),
    (0.05, 27, 40),
    (0.05, 12, 21),
    (0.1, 19, 40),
    (0.0, 35, 21),
    (0.01, 11, 20),
]
"""A request is preempted shortly before its last token."""
FALLS = [(0.012, 12, 5), (0.005, 25, 14), (0.012, 4, 1), (0.005, 13, 9)]
"""With `FALLING`, steps with several tokens cost less than any point of the table."""
WAITS = [
    (0.1, 18, 3), (0.012, 23, 40), (0.005, 4, 40), (0.005, 4, 1),
    (0.005, 9, 3), (0.005, 1, 1), (0.1, 1, 3), (0.03, 10, 30),
]  # fmt: skip
"""Requests with few tokens wait while others run."""
IS_SHORT = [(0.1, 1, 2), (0.0, 29, 30), (0.012, 3, 30), (0.012, 11, 1), (0.1, 17, 2)]
"""A request with few tokens comes to a pod whose other requests are long."""


@settings(max_examples=100, deadline=None)
@example(SOON_DONE, [], FRONTED, 2, 0)
@example(FALLS, [], FALLING, 3, 0)
@example(WAITS, [], FRONTED, 2, 0)
@example(IS_SHORT, [], FRONTED, 2, 0)
@given(
    REQUESTS,
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 70)), max_size=25),
    st.sampled_from([REAL, FRONTED, FALLING, DRAFTED, TABLE]),
    st.integers(2, 4),
    st.sampled_from([0, 20]),
)
def test_pods_that_run_only_until_possible_ends_give_the_results_of_single_steps(
    requests: list[tuple[float, int, int]],
    groups: list[tuple[int, int]],
    profile: Profile,
    pods: int,
    least: int,
) -> None:
    requests = [(gap_s, tokens_in, least + tokens) for gap_s, tokens_in, tokens in requests]
    shared = groups[: len(requests)] if len(groups) >= len(requests) else ()
    load = load_of(requests, shared)
    plan = SimulationPlan(profile=profile, pods=pods, policy=LEAST_REQUESTS)
    visited = simulated(load, plan)
    stepped = simulate(load, plan, watch=ignore)
    assert (moments(visited), visited.pod, visited.steps, visited.preemptions) == (
        moments(stepped),
        stepped.pod,
        stepped.steps,
        stepped.preemptions,
    )
    assert visited.timeline.blocks == stepped.timeline.blocks
    assert visited.timeline.sequences == stepped.timeline.sequences


@settings(max_examples=25, deadline=None)
@given(
    REQUESTS,
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 70)), min_size=25, max_size=25),
    st.sampled_from(POLICIES),
    st.integers(1, 3),
    st.none() | st.integers(1, 6),
)
def test_simulation_with_shared_prefixes_completes_every_request(
    requests: list[tuple[float, int, int]],
    groups: list[tuple[int, int]],
    policy: str,
    pods: int,
    places: int | None,
) -> None:
    load = load_of(requests, groups[: len(requests)])
    plan = SimulationPlan(profile=REAL, pods=pods, policy=policy, in_flight=places)
    simulation = Simulation(load, plan, ignore)
    outcome = simulation.run()
    for number, (send_s, first_s, last_s) in enumerate(moments(outcome)):
        assert load.arrival_s[number] <= send_s < first_s <= last_s
    if places is not None:
        for send_s in outcome.send_s:
            spans = zip(outcome.send_s, outcome.last_s, strict=True)
            assert sum(begin_s <= send_s < end_s for begin_s, end_s in spans) <= places
    for pod in simulation.pods:
        assert pod.blocks.free == pod.blocks.capacity
        check_pool(pod.blocks.pool, [])
    assert outcome.cached_tokens < sum(load.input_tokens)


def test_simulated_requests_do_not_compute_their_cached_prefix_again() -> None:
    profile = msgspec.structs.replace(PLAIN, cost=CostConstants(per_token=0.001, p=1))
    # Of 22 shared tokens 5 whole blocks are found; of a prompt of 20 never the block of the last
    # token.
    load = load_of(
        [(0.0, 30, 1), (1.0, 30, 1), (1.0, 30, 1), (1.0, 20, 1), (0.0, 20, 1), (0.0, 22, 1)],
        [(0, 22), (0, 22), (1, 22), (0, 20), (2, 20), (2, 20)],
    )
    outcome = simulated(load, SimulationPlan(profile=profile))
    taken = [first - send for send, first, _ in moments(outcome)]
    # The last three are one step, which computes 4, 20 and 2 tokens.
    assert taken == pytest.approx([0.03, 0.01, 0.03, 0.026, 0.026, 0.026])
    assert outcome.cached_tokens == 20 + 16 + 20
    off = msgspec.structs.replace(ENGINE, enable_prefix_caching=False)
    outcome = simulated(load, SimulationPlan(profile=msgspec.structs.replace(profile, engine=off)))
    assert outcome.cached_tokens == 0


def test_each_routing_policy_chooses_the_expected_pods() -> None:
    requests = [(0.0, 8, 20)] * 4 + [(0.0, 8, 2)] * 4
    load = load_of(requests, [(number % 2, 8) for number in range(8)])
    plan = SimulationPlan(profile=PLAIN, pods=4, policy="round-robin")
    assert list(simulated(load, plan).pod) == [0, 1, 2, 3] * 2
    fewest = simulated(load, replace(plan, policy="least-requests")).pod
    assert sorted(fewest[:4]) == sorted(fewest[4:]) == [0, 1, 2, 3]
    later = load_of([(1.0, 80, 1)] * 6, [(number % 2, 80) for number in range(6)])
    aware = simulated(later, replace(plan, policy="prefix-aware")).pod
    assert len(set(aware[::2])) == len(set(aware[1::2])) == 1


@settings(max_examples=40, deadline=None)
@given(
    REQUESTS,
    st.sampled_from(["waiting,target=1", "running,target=2", "ttft_p90,target=0.05"]),
    st.sampled_from(POLICIES),
    st.sampled_from([0.0, 0.05, 0.4]),
    st.none() | st.integers(1, 6),
)
def test_simulation_loses_no_request_when_pods_join_and_leave(
    requests: list[tuple[float, int, int]],
    metric: str,
    policy: str,
    cold_s: float,
    places: int | None,
) -> None:
    hpa = read_policy(f"hpa:metric={metric},min=1,max=4,window-down=0s,up=2/1s", {})
    scaling = Autoscaling(policy=hpa, cold_start_s=cold_s, every_s=0.06, scrape_s=0.04)
    plan = SimulationPlan(
        profile=REAL, pods=2, policy=policy, in_flight=places, autoscaling=scaling
    )
    load = load_of(requests, [(number % 2, 16) for number in range(len(requests))])
    simulation = Simulation(load, plan, ignore)
    outcome = simulation.run()
    lives = outcome.lives
    for number, (send_s, first_s, last_s) in enumerate(moments(outcome)):
        life = lives[outcome.pod[number]]
        assert load.arrival_s[number] <= send_s < first_s <= last_s
        assert life.ready_s <= send_s <= life.drain_s and last_s <= life.gone_s
    for at_s in [load.arrival_s[0], *(life.begun_s for life in lives), *outcome.last_s]:
        assert (
            1 <= sum(life.begun_s <= at_s < max(life.drain_s, life.begun_s) for life in lives) <= 4
        )
    for pod in simulation.pods:
        assert pod.blocks.free == pod.blocks.capacity


def test_engine_step_time_setting_limits_the_duration_of_prompt_steps() -> None:
    """Steps with a part of a prompt take 0.2 s, or 1.25 times the time of their decodes.

    They have whole tokens. The last token of this prompt takes 14 ms.
    """
    profile = read_profile("smollm2-135m-cpu")
    steps: list[tuple[int, int, float]] = []
    plan = SimulationPlan(profile=profile)
    load = load_of([(0.0, 40, 200)] * 6 + [(1.0, 3000, 3)])

    def record_step(pod: int, step: Batch[Any], start_s: float, end_s: float) -> None:
        steps.append((step.prefills, len(step.decodes), end_s - start_s))

    simulate(load, plan, watch=record_step)
    mixed = [took_s for prefills, decodes, took_s in steps if prefills and decodes == 6]
    assert len(mixed) > 20 and max(mixed) <= 0.2001
    assert min(mixed[:-1]) > 0.186
    cut = simulated(load, plan)
    whole = msgspec.structs.replace(profile.engine, engine_step_time=None)
    uncut = simulated(load, SimulationPlan(profile=msgspec.structs.replace(profile, engine=whole)))
    assert cut.first_s[6] > uncut.first_s[6]


class NoSecondStep(SchedulingPolicy[Any]):
    """Starts no sequence after the first step."""

    def fits(self, admission: Admission[Any], batch: Batch[Any]) -> bool:
        return not self.scheduler.step


def test_requests_that_never_end_are_an_error_and_not_the_fastest_of_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("workbench.runs.pod.policies_of", lambda *limits: [NoSecondStep()])
    with pytest.raises(ConfigError, match="2 of 3 requests never end"):
        simulate(load_of([(0.0, 5, 5), (1.0, 5, 5), (1.0, 5, 5)]), SimulationPlan(profile=PLAIN))
