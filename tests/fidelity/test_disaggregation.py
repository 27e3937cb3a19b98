"""Prefill and decode on pods of their own: what a request passes through, and what the pods hold."""

from __future__ import annotations

from math import inf
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.lab.fidelity.disaggregation import Disaggregation
from app.lab.fidelity.simulation import Simulation, SimulationPlan
from app.lab.load.policies import POLICIES
from tests.fidelity.test_simulation import ENGINE, PLAIN, REAL, REQUESTS, load_of

BLOCK_BYTES = 4.0


def simulation(
    load: Any, prefill_pods: int = 1, decode_pods: int = 1, watch: Any = None, **more: Any
) -> Simulation:
    names = ("bandwidth", "latency_s")
    split = Disaggregation(
        prefill_pods=prefill_pods,
        decode_pods=decode_pods,
        bytes_per_token=BLOCK_BYTES / ENGINE.block_size,
        **{name: more.pop(name) for name in names if name in more},
    )
    plan = SimulationPlan(pods=prefill_pods + decode_pods, disaggregation=split, **{"profile": PLAIN, **more})
    return Simulation(load, plan, lambda done: None, watch)


def test_a_prompt_is_computed_then_sent_then_continued() -> None:
    # Both prompts are one step, and share the link: 3 blocks take 0.12 s each.
    its = simulation(load_of([(1.0, 10, 3), (0.0, 9, 1)]), bandwidth=100.0, latency_s=0.05)
    out = its.run()
    log = out.transfers
    assert log is not None and log.bytes == 24
    assert list(log.prefilled_s) == pytest.approx([1.01, 1.01])
    assert list(log.begin_s) == pytest.approx([1.01, 1.01])
    assert list(log.end_s) == pytest.approx([1.18, 1.30])
    # The last token of a prompt is computed again, which gives the first token of the answer.
    assert list(out.first_s) == pytest.approx([1.19, 1.31])
    assert list(out.last_s) == pytest.approx([1.21, 1.31])
    prefill, decode = log.pools
    assert sum(prefill.blocks) == pytest.approx(6 * 0.01 + 3 * 0.17 + 3 * 0.29)
    assert (prefill.most_blocks, decode.most_blocks, prefill.most_sequences) == (6, 6, 2)


def test_a_transfer_waits_for_blocks_and_prefill_for_the_transfer() -> None:
    # A pool of 39 blocks has room for one prompt of 20 blocks.
    out = simulation(load_of([(0.0, 80, 10)] * 2), bandwidth=40.0).run()
    log = out.transfers
    assert log is not None
    assert log.end_s[0] - log.begin_s[0] == pytest.approx(2.0)
    assert log.prefilled_s[1] == pytest.approx(log.end_s[0] + 3 * 0.01)  # its 80 tokens take three steps
    assert log.prefilled_s[1] == log.seen_s[1] < log.begin_s[1] == pytest.approx(out.last_s[0])


@settings(max_examples=40, deadline=None)
@given(
    REQUESTS,
    st.none() | st.lists(st.tuples(st.integers(0, 3), st.integers(1, 70)), min_size=25, max_size=25),
    st.sampled_from(POLICIES),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.sampled_from([inf, 2000.0, 100.0]),
    st.none() | st.integers(1, 6),
)
def test_no_request_is_lost_and_no_block(
    requests: list[tuple[float, int, int]],
    groups: list[tuple[int, int]] | None,
    policy: str,
    pods: tuple[int, int],
    bandwidth: float,
    places: int | None,
) -> None:
    load = load_of(requests, (groups or [])[: len(requests)])
    more = {"profile": REAL, "policy": policy, "in_flight": places, "bandwidth": bandwidth}
    its = simulation(load, *pods, **more)
    out = its.run()
    log = out.transfers
    assert log is not None
    for number, send_s in enumerate(out.send_s):
        moments = send_s, log.prefilled_s[number], log.seen_s[number], log.begin_s[number], log.end_s[number]
        assert load.arrival_s[number] <= send_s
        assert list(moments) == sorted(moments) and moments[0] < moments[1]
        assert log.end_s[number] < out.first_s[number] <= out.last_s[number]
        assert log.prefill_pod[number] < pods[0] <= out.pod[number] < sum(pods)
    capacity = ENGINE.num_gpu_blocks - 1
    assert max(pool.most_blocks for pool in log.pools) <= capacity
    assert [pod.blocks.free for pod in its.pods] == [capacity] * sum(pods)
    assert log.bytes <= BLOCK_BYTES * sum(-(-tokens // ENGINE.block_size) for tokens in load.input_tokens)


@settings(max_examples=25, deadline=None)
@given(REQUESTS)
def test_steps_of_decode_pods_have_no_prefill(requests: list[tuple[float, int, int]]) -> None:
    prefills = [0, 0]

    def watch(pod: Any, batch: Any, start_s: float, end_s: float) -> None:
        prefills[pod.number] += batch.prefills

    roomy = msgspec.structs.replace(REAL, engine=msgspec.structs.replace(ENGINE, num_gpu_blocks=4000))
    simulation(load_of(requests), watch=watch, profile=roomy).run()
    assert prefills[0] >= len(requests) and prefills[1] == 0
