"""Agent traces: hashes, subagents and think times of the format that AgentX replays."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.core.engine.profile import CostConstants, EngineLimits, Profile
from config import ConfigError
from workbench.load.loads import LoadTrace
from workbench.runs.agent_traces import limit_conversations
from workbench.runs.simulation import SimulationOutcome, SimulationPlan, simulate
from workbench.runs.traces import read_trace

ENGINE = EngineLimits(num_gpu_blocks=4000, block_size=16, max_num_batched_tokens=4096)
PROFILE = Profile(
    source="-", model="-", device="-", engine=ENGINE, cost=CostConstants(base=0.01, per_token=1e-5)
)


def call(t: float, hashes: int, **fields: Any) -> dict[str, Any]:
    return {
        "type": "n",
        "t": t,
        "model": "m",
        "in": 64 * hashes,
        "out": 10,
        "hash_ids": list(range(hashes)),
        "api_time": 1.0,
        **fields,
    }


def subagent(t: float, *requests: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "subagent", "t": t, "agent_id": "a", "requests": list(requests), **fields}


def trace(*requests: dict[str, Any]) -> dict[str, Any]:
    return {"id": "x", "models": ["m"], "block_size": 64, "requests": list(requests)}


def read(tmp_path: Path, *traces: dict[str, Any]) -> LoadTrace:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(document) + "\n" for document in traces))
    return read_trace(path)


def simulated(load: LoadTrace) -> SimulationOutcome:
    return simulate(load, SimulationPlan(profile=PROFILE))


def test_turn_follows_the_previous_answer_after_the_recorded_pause(tmp_path: Path) -> None:
    load = read(tmp_path, trace(call(0, 2), call(4, 3), call(9, 4, think_time=2.5)))
    run = simulated(load)

    assert run.send_s[0] == 0.0
    assert run.send_s[1] == pytest.approx(run.last_s[0] + 3.0)
    assert run.send_s[2] == pytest.approx(run.last_s[1] + 2.5)


def test_parent_agent_waits_for_all_subagents_except_background_ones(tmp_path: Path) -> None:
    quick = subagent(1.5, call(1.5, 2))
    slow = subagent(1.5, call(1.5, 2, out=900))
    background = subagent(1.5, call(1.5, 2, out=2000), status="async_launched")
    load = read(tmp_path, trace(call(0, 2), quick, slow, background, call(3, 3, think_time=0.0)))
    run = simulated(load)
    parent, first, second, third, joined = range(5)

    for child in (first, second, third):
        assert run.send_s[child] == pytest.approx(run.last_s[parent] + 0.5)
    assert run.last_s[first] < run.last_s[second] < run.last_s[third]
    assert run.send_s[joined] == pytest.approx(run.last_s[second])


def test_overlapping_subagent_calls_run_in_parallel(tmp_path: Path) -> None:
    inner = subagent(1.0, call(0.0, 2, api_time=5.0), call(1.0, 2, api_time=1.0), call(7.0, 3))
    load = read(tmp_path, trace(call(0, 2), inner))

    assert load.predecessors[1] == load.predecessors[2] == (0,)
    assert set(load.predecessors[3]) == {1, 2}


def test_subagent_call_follows_all_calls_that_ended_before_it(tmp_path: Path) -> None:
    long = call(1, 2, api_time=5.0)
    calls = subagent(1, long, call(2, 2), call(3.5, 2), call(10, 2))
    load = read(tmp_path, trace(call(0, 2), calls, call(20, 3)))

    assert load.predecessors == {1: (0,), 2: (0,), 3: (2,), 4: (1, 3), 5: (0, 4)}


def test_equal_block_hashes_share_cached_blocks_only_within_a_trace(tmp_path: Path) -> None:
    one_trace = trace(call(0, 40), call(50, 41))
    alone = simulated(read(tmp_path, one_trace))
    twice = simulated(read(tmp_path, one_trace, one_trace))

    assert alone.cached_tokens == 40 * 64
    assert twice.cached_tokens == 2 * alone.cached_tokens


def test_number_of_concurrent_conversations_is_limited(tmp_path: Path) -> None:
    traces = [trace(call(0, 2), call(2, 3)) for _ in range(5)]
    load = read(tmp_path, *traces)
    limit_conversations(load, 2)
    run = simulated(load)

    ends = [run.last_s[2 * number + 1] for number in range(5)]
    assert [run.send_s[0], run.send_s[2]] == [0.0, 0.0]
    for number in (2, 3, 4):
        assert run.send_s[2 * number] == pytest.approx(ends[number - 2])


def test_trace_file_with_one_json_document_on_several_lines_is_read(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    path.write_text(json.dumps(trace(call(0, 2), call(4, 3)), indent=2))
    assert len(read_trace(path)) == 2


@pytest.mark.parametrize(
    ("document", "error"),
    [
        (trace(call(-1, 2)), "Expected `float` >= 0.0"),
        ({**trace(call(0, 2)), "hash_id_scope": "global"}, "Invalid enum value 'global'"),
        (trace(call(0, 2, type="x")), "Invalid value 'x'"),
        (trace(), "has no requests with tokens"),
    ],
)
def test_invalid_trace_is_rejected_with_a_one_line_error(
    tmp_path: Path, document: dict[str, Any], error: str
) -> None:
    with pytest.raises(ConfigError, match=error) as raised:
        read(tmp_path, document)
    assert "\n" not in str(raised.value)
