"""Sessions and prefix trees: when a turn is sent, and which blocks it finds."""

import json
from array import array
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.callbacks import ignore
from tests.core.kvcache.caches import check_pool
from tests.workbench.runs.test_simulation import (
    ENGINE,
    PLAIN,
    REAL,
    REQUESTS,
    load_of,
    moments,
)
from workbench.load.policies import POLICIES
from workbench.load.synthetic import Between, Recipe, draw_load
from workbench.runs.disaggregation import Disaggregation
from workbench.runs.film import Film
from workbench.runs.record import plan_requests
from workbench.runs.run_table import write_requests
from workbench.runs.simulation import Simulation, SimulationPlan, simulate
from workbench.runs.traces import read_trace

ROOMY = msgspec.structs.replace(
    PLAIN,
    engine=msgspec.structs.replace(ENGINE, num_gpu_blocks=2000, block_size=16, max_model_len=4000),
)
SPLIT = Disaggregation(prefill_pods=1, decode_pods=2, bytes_per_token=1e5, bandwidth=1e9)
FLEETS = (
    [{"pods": pods, "policy": policy} for pods in (1, 3) for policy in POLICIES]
    + [{"pods": 3, "in_flight": places} for places in (1, 4)]
    + [{"pods": 3, "disaggregation": SPLIT, "policy": "prefix-aware"}]
)
SESSIONS = st.builds(
    Recipe,
    input_tokens=st.just(Between(1, 25)),
    output_tokens=st.just(Between(1, 15)),
    rate=st.sampled_from([2.0, 300.0]),
    requests=st.integers(1, 8),
    turns=st.integers(2, 4),
    think_s=st.sampled_from([0.0, 0.01, 1.0]),
    prefix_groups=st.sampled_from([0, 2]),
    prefix_tokens=st.just(9),
    seed=st.integers(0, 1000),
)


@settings(max_examples=50, deadline=None)
@given(SESSIONS, st.sampled_from(FLEETS))
def test_next_turn_of_a_session_arrives_after_the_think_time(
    recipe: Recipe, fleet: dict[str, Any]
) -> None:
    load = draw_load(recipe, 100)
    plan = SimulationPlan(profile=REAL, **fleet)
    simulation = Simulation(load, plan, ignore)
    out = simulation.run()
    assert all(0 <= send_s < first_s <= last_s for send_s, first_s, last_s in moments(out))
    for number, turn in load.next_turns().items():
        due_s = out.last_s[number] + load.think_s[turn]
        assert out.send_s[turn] == due_s if plan.in_flight is None else out.send_s[turn] >= due_s
    for pod in simulation.pods:
        assert pod.blocks.free == pod.blocks.capacity
        check_pool(pod.blocks.pool, [])


@settings(max_examples=25, deadline=None)
@given(SESSIONS)
def test_turn_finds_the_full_cached_blocks_of_its_conversation(recipe: Recipe) -> None:
    load = draw_load(replace(recipe, prefix_groups=0, prefix_tokens=0), 400)
    out = simulate(load, SimulationPlan(profile=ROOMY))
    # The last token of an answer is computed with the turn that follows it.
    cached_tokens = 0
    for number in load.next_turns():
        tokens = load.input_tokens[number] + load.output_tokens[number] - 1
        cached_tokens += tokens // 16 * 16
    assert out.cached_tokens == cached_tokens


@settings(max_examples=50, deadline=None)
@given(REQUESTS)
def test_session_of_one_turn_has_the_times_of_a_single_request(
    requests: list[tuple[float, int, int]],
) -> None:
    """Also where it loses its blocks, and finds them again."""
    load = load_of(requests)
    plan = SimulationPlan(profile=REAL)
    plain = simulate(load, plan)
    load.session = array("i", range(len(load)))
    load.think_s = array("d", bytes(8 * len(load)))
    out = simulate(load, plan)
    assert (moments(out), out.preemptions) == (moments(plain), plain.preemptions)


def test_prefix_aware_routing_keeps_a_conversation_on_its_pod() -> None:
    recipe = Recipe(input_tokens=Between(400, 500), requests=6, rate=2.0, turns=4, think_s=1.0)
    load = draw_load(recipe, 4000)
    out = simulate(load, SimulationPlan(profile=ROOMY, pods=3, policy="prefix-aware"))
    assert len(set(out.pod)) > 1
    assert all(out.pod[number] == out.pod[turn] for number, turn in load.next_turns().items())


def test_cached_tokens_of_a_prefix_tree_match_a_manual_count(tmp_path: Path) -> None:
    rows = [  # tokens, ids, cached: whole blocks of 16 that an earlier request has, never the last token
        (1100, [0, 1, 2], 0),
        (1537, [0, 1, 3, 9], 1024),
        (512, [7], 0),
        (1536, [0, 4, 2], 512),
        (1000, [7, 2], 512),
        (1100, [0, 1, 2], 1088),
        (512, [0], 496),
        (2000, [0, 1, 3, 9], 1536),
    ]
    lines = (
        f'{{"timestamp": {9000 * place}, "input_length": {tokens}, "output_length": 2, "hash_ids": {ids}}}\n'
        for place, (tokens, ids, _) in enumerate(rows)
    )
    (path := tmp_path / "tree.jsonl").write_text("".join(lines))
    load = read_trace(path)
    assert simulate(load, SimulationPlan(profile=ROOMY)).cached_tokens == sum(
        cached for *_, cached in rows
    )
    requests = plan_requests(load, "m", range(1000), seed=1)
    prompts = [json.loads(request.body)["prompt"] for request in requests]
    assert [len(prompt) for prompt in prompts] == [tokens for tokens, *_ in rows]
    assert prompts[1][:1024] == prompts[0][:1024] and prompts[1][1024:1100] != prompts[0][1024:]


@settings(max_examples=15, deadline=None)
@given(SESSIONS)
def test_request_file_of_a_simulation_is_read_back_as_the_same_load(
    recipe: Recipe,
) -> None:
    load = draw_load(recipe, 100)
    plan = SimulationPlan(profile=PLAIN)
    film = Film(load, plan, "sessions")
    out = simulate(load, plan, watch=film.watch)
    with TemporaryDirectory() as folder:
        write_requests(path := Path(folder) / "requests.csv", out)
        read_load = read_trace(path)
    assert (read_load.input_tokens, read_load.output_tokens) == (
        load.input_tokens,
        load.output_tokens,
    )
    assert max(map(sum, zip(load.input_tokens, load.output_tokens, strict=True))) <= 100
    assert read_load.next_turns() == load.next_turns()
    assert list(read_load.think_s) == pytest.approx(list(load.think_s), abs=1e-6)
    assert list(read_load.arrival_s) == pytest.approx(list(load.arrival_s), abs=1e-6)
    assert len(list(film.frames(out))) >= 60
