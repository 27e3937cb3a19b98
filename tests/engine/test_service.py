"""Admission, and the life of sequences, on a virtual clock."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.outputs import Event, Failed, Started, Tokens
from app.http.errors import ApiError
from tests.engine.house import SLOT_S, START_S, House, generation

SLOW = {"time_to_first_token": 0.5, "inter_token_latency": 0.1}
REASONS = ("stop", "length", "abort", "error")


def finished(house: House, reason: str) -> float:
    return house.metric("request_success_total", finished_reason=reason)


def test_a_sequence_starts_then_tells_its_tokens_and_then_nothing_more() -> None:
    house = House(**SLOW)
    house.ask()
    assert house.gauges() == (1, 0)
    house.clock.advance(10)
    kinds = [type(event) for event in house.of()]
    assert kinds == [Started] + [Tokens] * 5
    assert [event.finish is not None for event in house.tokens()] == [False] * 4 + [True]
    assert house.is_idle()


def test_without_latency_all_is_told_before_submit_returns() -> None:
    house = House()
    house.ask()
    assert [type(event) for event in house.of()] == [Started, Tokens]
    assert house.finish() == "length" and house.is_idle()


def test_moments_are_exact_and_so_is_what_the_metrics_say_of_them() -> None:
    house = House(**SLOW)
    house.ask()
    house.clock.advance(10)
    moments = [event.at_s - START_S for event in house.tokens()]
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
        "request_max_num_generation_tokens": (1, 5),
    }
    for name, (count, total) in exact.items():
        assert house.metric(f"{name}_count") == count, name
        assert house.metric(f"{name}_sum") == pytest.approx(total, abs=1e-9), name
    assert house.metric("e2e_request_latency_seconds_sum") == pytest.approx(0.9, abs=2 * SLOT_S)
    assert house.metric("prompt_tokens_total") == 3
    assert house.metric("generation_tokens_total") == 5


def test_waiting_is_part_of_the_time_to_the_first_token() -> None:
    house = House(places=1, **SLOW)
    house.ask("a")
    house.ask("b")
    assert house.gauges() == (1, 1)
    house.clock.advance(10)
    assert house.metric("time_to_first_token_seconds_sum") == pytest.approx(0.5 + 0.9 + 0.5, abs=2 * SLOT_S)
    assert house.metric("request_queue_time_seconds_sum") == pytest.approx(0.9, abs=2 * SLOT_S)
    assert house.metric("request_prefill_time_seconds_sum") == pytest.approx(1.0, abs=1e-9)


def test_places_are_given_in_order_of_arrival() -> None:
    house = House(places=2, **SLOW)
    for name in "abcdef":
        house.ask(name, max_tokens=3 if name in "ad" else 6)
    house.clock.advance(30)
    begun = [name for name, event in house.events if isinstance(event, Started)]
    assert begun == list("abcdef")
    assert house.is_idle()


def test_all_choices_of_a_request_take_places_of_their_own() -> None:
    house = House(places=2, **SLOW)
    house.ask(choices=3)
    assert house.gauges() == (2, 1)
    house.clock.advance(10)
    assert [house.finish(index=index) for index in range(3)] == ["length"] * 3
    assert len({house.said(index=index) for index in range(3)}) == 3
    assert (finished(house, "length"), house.metric("request_params_n_sum")) == (3, 3)
    assert house.metric("request_params_n_count") == 1


@pytest.mark.parametrize("after_s", [0.0, 0.2, 0.55, 0.85])
def test_an_abort_at_any_stage_leaves_nothing_behind(after_s: float) -> None:
    house = House(places=1, **SLOW)
    group = house.ask("a")
    house.clock.advance(after_s)
    told = len(house.events)
    group.abort()
    group.abort()
    assert house.is_idle() and finished(house, "abort") == 1
    house.clock.advance(10)
    assert len(house.events) == told
    assert sum(finished(house, reason) for reason in REASONS) == 1
    assert house.metric("e2e_request_latency_seconds_count") == 1
    assert len(house.pacer) == 0


def test_an_abort_while_waiting_gives_the_turn_to_the_next() -> None:
    house = House(places=1, **SLOW)
    house.ask("a")
    gone = house.ask("b")
    house.ask("c")
    gone.abort()
    assert house.gauges() == (1, 1)
    house.clock.advance(10)
    assert house.of("b") == [] and house.finish("c") == "length"
    assert (finished(house, "abort"), finished(house, "length")) == (1, 2)
    assert house.metric("time_to_first_token_seconds_count") == 2


def test_an_abort_after_the_end_changes_nothing() -> None:
    house = House()
    house.ask().abort()
    assert finished(house, "abort") == 0 and finished(house, "length") == 1


def test_the_abort_of_a_request_starts_none_of_its_own_waiting_choices() -> None:
    house = House(places=2, inter_token_latency=0.1)
    group = house.ask(choices=5)
    assert house.gauges() == (2, 3)
    told = len(house.events)
    group.abort()
    assert house.is_idle() and len(house.events) == told
    assert finished(house, "abort") == 5
    assert house.metric("prompt_tokens_total") == 6  # two of the five had begun


def test_a_client_that_leaves_while_it_is_told_of_the_start_hears_nothing_more() -> None:
    house = House(places=1, inter_token_latency=0.1)
    heard: list[Event] = []
    groups: list[Any] = []

    def emit(event: Event) -> None:
        heard.append(event)
        groups[0].abort()

    occupant = house.ask("a")
    groups.append(house.service.submit([generation(max_tokens=9)], emit))
    occupant.abort()
    house.clock.advance(5)
    assert [type(event) for event in heard] == [Started]
    assert house.is_idle()
    assert house.metric("generation_tokens_total") == 1  # of the occupant


def test_load_stretches_the_waits_of_those_who_run() -> None:
    house = House(places=3, time_factor_under_load=3.0, **SLOW)
    house.ask("alone", max_tokens=2)
    house.clock.advance(5)
    for name in "abc":
        house.ask(name, max_tokens=3)
    start_s = house.clock.now()
    house.clock.advance(20)
    alone = [event.at_s - START_S for event in house.tokens("alone")]
    assert alone == pytest.approx([0.5, 0.6], abs=1e-9)
    # The third of three begins when all places are taken: everything takes three times as long.
    crowded = [event.at_s - start_s for event in house.tokens("c")]
    assert crowded[0] == pytest.approx(1.5, abs=1e-9)
    assert crowded[1] - crowded[0] > 0.1


@pytest.mark.slow
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["ask", "abort", "advance"]),
            st.integers(0, 9),
            st.integers(1, 4),
        ),
        max_size=40,
    ),
    places=st.integers(1, 4),
    ttft=st.sampled_from([0.0, 0.3]),
    itl=st.sampled_from([0.0, 0.05]),
)
@settings(max_examples=80, deadline=None)
def test_whatever_happens_everything_comes_back_to_zero(
    steps: list[tuple[str, int, int]], places: int, ttft: float, itl: float
) -> None:
    house = House(places, 5, time_to_first_token=ttft, inter_token_latency=itl)
    groups: list[Any] = []
    asked = 0
    for what, number, choices in steps:
        if what == "ask":
            try:
                groups.append(house.ask(str(len(groups)), choices, max_tokens=number + 1))
                asked += choices
            except ApiError as error:
                assert error.status == 429
        elif what == "abort" and groups:
            groups[number % len(groups)].abort()
        else:
            house.clock.advance(number / 10)
        assert house.gauges() == (house.service.executor.running, house.service.executor.waiting)
        assert house.service.running <= places
    house.clock.advance(1000)
    assert house.is_idle() and len(house.pacer) == 0
    assert sum(finished(house, reason) for reason in REASONS) == asked
    for (_, before), (_, after) in pairwise(house.events):
        assert not isinstance(before, Failed) and not isinstance(after, Failed)
