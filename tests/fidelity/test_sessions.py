"""Sessions and prefix trees: when a turn is sent, and which blocks it finds."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from app.lab.fidelity.disaggregation import Disaggregation
from app.lab.fidelity.film import Film
from app.lab.fidelity.simulation import Simulation, SimulationPlan, simulate
from app.lab.fidelity.summary import write_requests
from app.lab.fidelity.traces import read_trace
from app.lab.load.loads import NO_GROUP, LoadTrace
from app.lab.load.policies import POLICIES
from tests.fidelity.test_simulation import ENGINE, PLAIN, REAL, REQUESTS, load_of, moments
from tests.kvcache.caches import check_pool

Turn = tuple[float, int, int]
"""Think time, own input and output tokens."""
SPLIT = Disaggregation(prefill_pods=1, decode_pods=2, bytes_per_token=1e5, bandwidth=1e9)
SESSIONS = st.lists(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.004, 0.05, 1.0]), st.integers(1, 25), st.integers(1, 15)),
        min_size=1,
        max_size=3,
    ),
    min_size=1,
    max_size=8,
)


def sessions_of(sessions: Sequence[Sequence[Turn]], gap_s: float = 0.01, apart: bool = True) -> LoadTrace:
    """All first turns come first; a session of one turn has no session. Even sessions share a beginning."""
    load = LoadTrace("test")
    known = [0] * len(sessions)
    for turn in range(max(map(len, sessions))):
        for session, turns in enumerate(sessions):
            if turn >= len(turns):
                continue
            think_s, own, output = turns[turn]
            load.arrival_s.append(session * gap_s if not turn else len(sessions) * gap_s)
            load.input_tokens.append(known[session] + own)
            load.output_tokens.append(output)
            known[session] += own + output
            load.session.append(session if len(turns) > 1 else NO_GROUP)
            load.think_s.append(think_s if turn else 0.0)
            if not apart:
                load.group.append(0 if session % 2 == 0 else NO_GROUP)
                load.prefix_tokens.append(min(turns[0][1], 9) if session % 2 == 0 else 0)
    return load


@settings(max_examples=50, deadline=None)
@given(
    SESSIONS,
    st.sampled_from(POLICIES),
    st.sampled_from([(1, None), (3, None), (3, SPLIT)]),
    st.none() | st.integers(1, 4),
    st.booleans(),
)
def test_a_turn_comes_when_its_answer_has_been_thought_about(
    sessions: list[list[Turn]],
    policy: str,
    fleet: tuple[int, Disaggregation | None],
    places: int | None,
    apart: bool,
) -> None:
    load = sessions_of(sessions, apart=apart)
    profile = msgspec.structs.replace(REAL, engine=msgspec.structs.replace(ENGINE, max_model_len=120))
    plan = SimulationPlan(
        profile=profile, pods=fleet[0], policy=policy, in_flight=places, disaggregation=fleet[1]
    )
    simulation = Simulation(load, plan, lambda done: None)
    out = simulation.run()
    later = load.next_turns()
    for number, (send_s, first_s, last_s) in enumerate(zip(out.send_s, out.first_s, out.last_s, strict=True)):
        assert load.arrival_s[number] <= send_s < first_s <= last_s or number in later.values()
        if (turn := later.get(number)) is not None:
            due_s = last_s + load.think_s[turn]
            assert out.send_s[turn] == due_s if places is None else out.send_s[turn] >= due_s
    for pod in simulation.pods:
        assert pod.blocks.free == pod.blocks.capacity
        check_pool(pod.blocks.pool, [])


@settings(max_examples=25, deadline=None)
@given(SESSIONS)
def test_a_turn_finds_the_whole_blocks_of_its_conversation(sessions: list[list[Turn]]) -> None:
    load = sessions_of(sessions)
    roomy = msgspec.structs.replace(ENGINE, num_gpu_blocks=2000, max_model_len=4000)
    out = simulate(load, SimulationPlan(profile=msgspec.structs.replace(PLAIN, engine=roomy)))
    # The last token of an answer is computed with the turn that follows it.
    told = (load.input_tokens[it] + load.output_tokens[it] - 1 for it in load.next_turns())
    assert out.cached_tokens == sum(tokens // ENGINE.block_size * ENGINE.block_size for tokens in told)


@settings(max_examples=50, deadline=None)
@given(REQUESTS)
def test_a_session_of_one_turn_is_a_request(requests: list[tuple[float, int, int]]) -> None:
    """Also where it loses its blocks, and finds them again."""
    load, plan = load_of(requests), SimulationPlan(profile=REAL)
    plain = simulate(load, plan)
    load.session, load.think_s = array("i", range(len(load))), array("d", bytes(8 * len(load)))
    out = simulate(load, plan)
    assert (moments(out), out.preemptions) == (moments(plain), plain.preemptions)


def test_a_router_sees_conversations() -> None:
    turns = [(1.0, 80, 40)] * 4
    load = sessions_of([turns] * 6, gap_s=0.5)
    roomy = msgspec.structs.replace(ENGINE, num_gpu_blocks=2000, max_model_len=4000)
    profile = msgspec.structs.replace(PLAIN, engine=roomy)
    out = simulate(load, SimulationPlan(profile=profile, pods=3, policy="prefix-aware"))
    assert len(set(out.pod)) > 1
    assert all(out.pod[number] == out.pod[turn] for number, turn in load.next_turns().items())


def test_cached_tokens_of_a_tree_are_those_counted_by_hand(tmp_path: Path) -> None:
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
        json.dumps({"timestamp": 9000 * place, "input_length": tokens, "output_length": 2, "hash_ids": ids})
        for place, (tokens, ids, _) in enumerate(rows)
    )
    (path := tmp_path / "tree.jsonl").write_text("\n".join(lines))
    roomy = msgspec.structs.replace(ENGINE, num_gpu_blocks=2000, block_size=16, max_model_len=4000)
    plan = SimulationPlan(profile=msgspec.structs.replace(PLAIN, engine=roomy))
    assert simulate(read_trace(path), plan).cached_tokens == sum(cached for *_, cached in rows)


@settings(max_examples=15, deadline=None)
@given(SESSIONS)
def test_what_a_run_writes_is_the_load_again(sessions: list[list[Turn]]) -> None:
    load, plan = sessions_of(sessions), SimulationPlan(profile=PLAIN)
    film = Film(load, plan, "sessions")
    out = simulate(load, plan, watch=film.watch)
    with TemporaryDirectory() as folder:
        write_requests(path := Path(folder) / "requests.csv", load, out)
        again = read_trace(path)
    assert (list(again.think_s), again.next_turns()) == (list(load.think_s), load.next_turns())
    assert simulate(again, plan).last_s == out.last_s
    assert len(list(film.frames(out))) >= 60
