"""What is said, and each token at its moment."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.outputs import Finish, Started
from tests.engine.house import SLOT_S, House, embedded_tokenizer

SLOW = {"time_to_first_token": 0.5, "inter_token_latency": 0.1}


def said(house: House, **fields: Any) -> str:
    """The whole reply to one request."""
    name = str(len(house.events))
    house.ask(name, **{"max_tokens": 40, **fields})
    house.clock.advance(1000)
    assert house.finish(name) is not None
    return house.said(name)


@given(ttft=st.floats(0, 2), itl=st.floats(0, 0.5), tokens=st.integers(1, 60), start=st.floats(0, 1e6))
@settings(max_examples=60, deadline=None)
def test_token_k_is_due_k_gaps_after_the_first_and_comes_less_than_two_slots_late(
    ttft: float, itl: float, tokens: int, start: float
) -> None:
    house = House(time_to_first_token=ttft, inter_token_latency=itl)
    house.clock.advance(start)
    start_s = house.clock.now()
    house.ask(max_tokens=tokens)
    house.clock.advance(tokens * itl + ttft + 1)
    count = 0
    for event in house.tokens():
        count += len(event.ids)
        assert event.at_s == pytest.approx(start_s + ttft + (count - 1) * itl, abs=1e-6)
    assert count == tokens


def test_tokens_arrive_at_their_moment_never_before() -> None:
    house = House(**SLOW)
    arrived: list[float] = []
    house.ask(max_tokens=20)
    for _ in range(4000):
        before = len(house.tokens())
        house.clock.advance(0.001)
        arrived += [house.clock.now()] * (len(house.tokens()) - before)
    for k, moment in enumerate(arrived):
        assert 0 <= moment - 1000.5 - k * 0.1 + 1e-6 < 0.001 + 2 * SLOT_S + 2e-6
    assert len(arrived) == 20


def test_tokens_that_are_due_together_leave_together() -> None:
    house = House(inter_token_latency=0.00001)
    house.ask(max_tokens=1000)
    house.clock.advance(1)
    assert sum(len(event.ids) for event in house.tokens()) == 1000
    assert len(house.tokens()) < 1000 * 0.00001 / SLOT_S + 3


def test_a_stream_that_was_held_up_catches_up_and_stays_on_its_schedule() -> None:
    house = House(**SLOW)
    house.ask(max_tokens=30)
    house.clock.advance(0.55)
    ring = house.pacer.ring
    house.clock.ring_at(1e9, lambda: None)  # the alarm is lost for a while
    house.clock.advance(1.0)
    ring()
    late = house.tokens()[1]
    assert len(late.ids) == 10
    assert late.at_s == pytest.approx(1000.5 + 10 * 0.1, abs=1e-9)
    house.clock.advance(10)
    assert house.tokens()[-1].at_s == pytest.approx(1000.5 + 29 * 0.1, abs=1e-9)


def test_started_tells_when_the_first_token_is_due() -> None:
    house = House(**SLOW)
    house.ask()
    house.clock.advance(0.499)
    assert house.events == []
    house.clock.advance(0.002)
    [started, first] = house.of()
    assert isinstance(started, Started) and started.at_s == pytest.approx(1000.5)
    assert [len(event.ids) for event in house.tokens()] == [1] and first is house.tokens()[0]


@pytest.mark.parametrize("seed", [0, 1, -5, 2**62])
def test_the_same_seed_gives_the_same_reply_on_any_server(seed: int) -> None:
    one, other = House(seed=1), House(seed=2)
    said(other)
    assert said(one, seed=seed) == said(one, seed=seed) == said(other, seed=seed)


def test_another_seed_or_another_prompt_gives_another_reply() -> None:
    house = House()
    replies = {said(house, seed=seed) for seed in range(50)}
    replies |= {said(house, seed=7, prompt_ids=[5, 6, last]) for last in range(8, 58)}
    assert len(replies) > 95


def test_greedy_replies_repeat_and_others_do_not() -> None:
    house = House()
    assert said(house, greedy=True) == said(house, greedy=True)
    assert len({said(house) for _ in range(20)}) == 20


def test_a_server_with_a_seed_repeats_itself_request_by_request() -> None:
    one, other = House(seed=3), House(seed=3)
    assert [said(one) for _ in range(10)] == [said(other) for _ in range(10)]
    assert said(House(seed=4)) != said(House(seed=3))


def test_a_seeded_request_does_not_disturb_the_server_s_own_stream() -> None:
    one, other = House(seed=3), House(seed=3)
    said(other, seed=5)
    said(other, greedy=True)
    assert said(one) == said(other)


def test_replies_do_not_depend_on_latencies_or_on_who_waits() -> None:
    patient, quick = House(places=1, seed=3, **SLOW), House(places=9, seed=3)
    for house in (patient, quick):
        for name in "abcdef":
            house.ask(name, max_tokens=12)
        house.clock.advance(1000)
    assert [patient.said(name) for name in "abcdef"] == [quick.said(name) for name in "abcdef"]


@given(most=st.integers(1, 300), least=st.integers(0, 300), seed=st.integers(0, 99), limited=st.booleans())
@settings(max_examples=60, deadline=None)
def test_lengths_keep_between_the_limits_and_the_reason_tells_which(
    most: int, least: int, seed: int, limited: bool
) -> None:
    least = min(least, most)
    house = House(seed=seed)
    house.ask(max_tokens=most, min_tokens=least, ignore_eos=False, limited=limited)
    count = sum(len(event.ids) for event in house.tokens())
    assert max(1, least) <= count <= most
    assert house.finish() == ("length" if count == most else "stop")


def test_echo_says_the_text_as_it_came() -> None:
    house = House(mode="echo")
    for text in ("What goes in comes out.", "日本語 🙂\n\n  x", "a" * 1000):
        assert said(house, echo_text=text, limited=False) == text


def test_echo_ignores_the_limit_but_tells_that_it_was_reached() -> None:
    house = House(mode="echo")
    text = "one two three four five six"
    count = len(embedded_tokenizer().encode(text))
    for limit, reason in ((2, "length"), (count, "length"), (count + 1, "stop")):
        name = str(limit)
        house.ask(name, echo_text=text, max_tokens=limit)
        assert house.said(name) == text and house.finish(name) == reason


def test_echo_of_nothing_is_a_reply_of_no_tokens() -> None:
    house = House(mode="echo", **SLOW)
    house.ask(echo_text="")
    house.clock.advance(5)
    [event] = house.tokens()
    assert (event.ids, event.finish) == ([], Finish("stop"))
    assert house.is_idle() and house.metric("request_generation_tokens_sum") == 0


def test_log_probabilities_come_with_their_tokens() -> None:
    house = House(inter_token_latency=0.01)
    house.ask(max_tokens=8, logprobs=2, prompt_logprobs=1)
    house.clock.advance(5)
    [started] = [event for event in house.of() if isinstance(event, Started)]
    assert started.prompt_logprobs is not None and len(started.prompt_logprobs) == 3
    for event in house.tokens():
        assert event.logprobs is not None
        assert [entry.token_id for entry in event.logprobs] == list(event.ids)
        assert all(len(entry.top) == 3 for entry in event.logprobs)
