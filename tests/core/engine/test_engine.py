"""Admission, and the life of sequences, on a virtual clock."""

import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.engine.errors import EngineError, QueueFullError, TooManyRequestsError
from app.core.engine.outputs import EngineOutput, Failed, Started
from tests.core.engine.harness import SLOT_S, START_S, Harness, engine_request

SLOW = {"time_to_first_token": 0.5, "inter_token_latency": 0.1}
REASONS = ("stop", "length", "abort", "error")
ENDS = r"^vllm:(?:request_\w+|e2e_request_latency_seconds)_count\{.*\} (.*)$"
"""What is observed at the end of a request."""


def finished(harness: Harness, reason: str) -> float:
    return harness.metric("request_success_total", finished_reason=reason)


def aborted(harness: Harness) -> float:
    return harness.recorder.figures().finished["abort"]


def test_token_times_and_latency_metrics_equal_the_configured_latencies() -> None:
    harness = Harness(**SLOW)
    harness.ask()
    harness.clock.advance(10)
    moments = [event.at_s - START_S for event in harness.tokens()]
    assert moments == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.9], abs=1e-9)
    exact = {
        "time_to_first_token_seconds": (1, 0.5),
        "inter_token_latency_seconds": (4, 0.4),
        "request_queue_time_seconds": (1, 0.0),
        "request_prefill_time_seconds": (1, 0.5),
        "request_decode_time_seconds": (1, 0.4),
        "request_inference_time_seconds": (1, 0.9),
        "request_time_per_output_token_seconds": (1, 0.1),
        "request_prompt_tokens": (1, 3),
        "request_generation_tokens": (1, 5),
        "request_params_max_tokens": (1, 5),
        "request_params_n": (1, 1),
        "request_num_preemptions": (1, 0),
        "request_prefill_kv_computed_tokens": (1, 3),
        "request_max_num_generation_tokens": (1, 5),
    }
    for name, (count, total) in exact.items():
        assert harness.metric(f"{name}_count") == count, name
        assert harness.metric(f"{name}_sum") == pytest.approx(total, abs=1e-9), name
    assert harness.metric("e2e_request_latency_seconds_sum") == pytest.approx(0.9, abs=2 * SLOT_S)
    assert harness.metric("prompt_tokens_total") == 3
    assert harness.metric("generation_tokens_total") == 5


def test_queue_time_counts_toward_the_time_to_first_token() -> None:
    harness = Harness(slots=1, **SLOW)
    harness.ask("a")
    harness.ask("b")
    assert harness.gauges() == (1, 1)
    harness.clock.advance(10)
    assert harness.metric("time_to_first_token_seconds_sum") == pytest.approx(
        0.5 + 0.9 + 0.5, abs=2 * SLOT_S
    )
    assert harness.metric("request_queue_time_seconds_sum") == pytest.approx(0.9, abs=2 * SLOT_S)
    assert harness.metric("request_prefill_time_seconds_sum") == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("after_s", [0.0, 0.2, 0.55, 0.85])
def test_abort_of_a_request_at_any_stage_frees_all_resources(after_s: float) -> None:
    harness = Harness(slots=1, **SLOW)
    group = harness.ask("a")
    harness.clock.advance(after_s)
    event_count = len(harness.events)
    group.abort()
    group.abort()
    assert harness.is_idle() and aborted(harness) == 1
    harness.clock.advance(10)
    assert len(harness.events) == event_count
    assert len(harness.wheel) == 0
    counts = re.findall(ENDS, harness.recorder.render(), re.M)
    assert len(counts) == 13 and set(counts) == {"0.0"}, (
        "vLLM counts no request that its client left"
    )
    assert sum(finished(harness, reason) for reason in REASONS) == 0


def test_abort_of_a_request_does_not_start_its_waiting_choices() -> None:
    harness = Harness(slots=2, inter_token_latency=0.1)
    group = harness.ask(choices=5)
    assert harness.gauges() == (2, 3)
    event_count = len(harness.events)
    group.abort()
    assert harness.is_idle() and len(harness.events) == event_count
    assert aborted(harness) == 5
    assert harness.metric("prompt_tokens_total") == 6  # two of the five had begun


def test_abort_during_the_started_event_suppresses_further_outputs() -> None:
    harness = Harness(slots=1, inter_token_latency=0.1)
    heard: list[EngineOutput] = []
    groups: list[Any] = []

    def emit(event: EngineOutput) -> None:
        heard.append(event)
        groups[0].abort()

    occupant = harness.ask("a")
    groups.append(harness.engine.submit([engine_request(max_tokens=9)], emit))
    occupant.abort()
    harness.clock.advance(5)
    assert [type(event) for event in heard] == [Started]
    assert harness.is_idle()
    assert harness.metric("generation_tokens_total") == 1  # of the occupant


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["ask", "abort", "advance"]), st.integers(0, 9), st.integers(1, 4)
        ),
        max_size=40,
    ),
    slots=st.integers(1, 4),
    ttft=st.sampled_from([0.0, 0.3]),
    itl=st.sampled_from([0.0, 0.05]),
)
@settings(max_examples=40, deadline=None)
def test_gauges_return_to_zero_after_any_sequence_of_actions(
    steps: list[tuple[str, int, int]], slots: int, ttft: float, itl: float
) -> None:
    harness = Harness(slots, 5, time_to_first_token=ttft, inter_token_latency=itl)
    groups: list[Any] = []
    request_count = 0
    for action, number, choices in steps:
        if action == "ask":
            try:
                groups.append(harness.ask(str(len(groups)), choices, max_tokens=number + 1))
                request_count += choices
            except QueueFullError:
                pass
        elif action == "abort" and groups:
            groups[number % len(groups)].abort()
        else:
            harness.clock.advance(number / 10)
        assert harness.gauges() == (
            harness.engine.executor.running,
            harness.engine.executor.waiting,
        )
        assert harness.engine.running <= slots
    harness.clock.advance(1000)
    assert harness.is_idle() and len(harness.wheel) == 0
    assert sum(finished(harness, reason) for reason in REASONS) + aborted(harness) == request_count
    for (_, earlier), (_, after) in pairwise(harness.events):
        assert not isinstance(earlier, Failed) and not isinstance(after, Failed)


def refusal(harness: Harness, choices: int = 1) -> type[EngineError]:
    with pytest.raises(EngineError) as caught:
        harness.ask("refused", choices)
    assert harness.outputs("refused") == []
    return caught.type


def test_max_num_queued_reqs_limits_the_number_of_unfinished_requests() -> None:
    harness = Harness(slots=1, max_waiting=100, max_unfinished=3, **SLOW)
    harness.ask("a", 2)
    assert refusal(harness, 2) is TooManyRequestsError
    assert harness.metric("admission_rejections_total", reason="max_num_queued_reqs") == 1
    harness.ask("b")
    assert refusal(harness) is TooManyRequestsError


def test_engine_room_counts_free_slots_and_queue_places_up_to_the_limit() -> None:
    free = Harness(slots=2, max_waiting=3, **SLOW)
    bounded = Harness(slots=2, max_waiting=3, max_unfinished=4, **SLOW)
    rooms = []
    for choices in (0, 1, 2, 1):
        for harness in (free, bounded):
            if choices:
                harness.ask(f"{choices}", choices)
        rooms.append((free.engine.room(), bounded.engine.room()))
    assert rooms == [(5, 4), (4, 3), (2, 1), (1, 0)]
    with pytest.raises(QueueFullError, match="2 wait already"):
        free.ask(choices=2)
    with pytest.raises(TooManyRequestsError, match="4 of at most 4"):
        bounded.ask()
