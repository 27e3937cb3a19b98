"""What is said, and each token at its moment."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.engine.outputs import Finish, Started
from tests.core.engine.harness import Harness, embedded_tokenizer

SLOW = {"time_to_first_token": 0.5, "inter_token_latency": 0.1}


def reply_text(harness: Harness, **fields: Any) -> str:
    name = str(len(harness.events))
    harness.ask(name, **{"max_tokens": 40, **fields})
    harness.clock.advance(1000)
    assert harness.finish(name) is not None
    return harness.said(name)


@given(
    ttft=st.floats(0, 2), itl=st.floats(0, 0.5), tokens=st.integers(1, 60), start=st.floats(0, 1e6)
)
@settings(max_examples=25, deadline=None)
def test_each_token_is_emitted_on_schedule_within_two_timer_slots(
    ttft: float, itl: float, tokens: int, start: float
) -> None:
    harness = Harness(time_to_first_token=ttft, inter_token_latency=itl)
    harness.clock.advance(start)
    start_s = harness.clock.now()
    harness.ask(max_tokens=tokens)
    harness.clock.advance(tokens * itl + ttft + 1)
    count = 0
    for event in harness.tokens():
        count += len(event.ids)
        assert event.at_s == pytest.approx(start_s + ttft + (count - 1) * itl, abs=1e-6)
    assert count == tokens


def test_later_tokens_of_a_delayed_stream_arrive_at_their_scheduled_times() -> None:
    harness = Harness(**SLOW)
    harness.ask(max_tokens=30)
    harness.clock.advance(0.55)
    ring = harness.wheel.ring
    harness.clock.ring_at(1e9, lambda: None)  # the alarm is lost for a while
    harness.clock.advance(1.0)
    ring()
    late = harness.tokens()[1]
    assert len(late.ids) == 10
    assert late.at_s == pytest.approx(1000.5 + 10 * 0.1, abs=1e-9)
    harness.clock.advance(10)
    assert harness.tokens()[-1].at_s == pytest.approx(1000.5 + 29 * 0.1, abs=1e-9)


def test_seed_alone_determines_the_reply_on_any_server() -> None:
    first = Harness(seed=1)
    other = Harness(seed=2)
    for seed in (0, 1, -5, 2**62):
        assert (
            reply_text(first, seed=seed)
            == reply_text(first, seed=seed)
            == reply_text(other, seed=seed)
        )
    assert (
        reply_text(first, temperature=0.0)
        == reply_text(first, temperature=0.0)
        == reply_text(other, temperature=0.0)
    )
    replies = {reply_text(first, seed=seed) for seed in range(50)} | {
        reply_text(first) for _ in range(20)
    }
    replies |= {reply_text(first, seed=7, prompt_ids=[5, 6, last]) for last in range(8, 58)}
    assert len(replies) > 115


def test_requests_with_seeds_do_not_change_later_unseeded_replies() -> None:
    first = Harness(seed=3)
    other = Harness(seed=3)
    assert [reply_text(first) for _ in range(10)] == [reply_text(other) for _ in range(10)]
    reply_text(other, seed=5)
    reply_text(other, temperature=0.0)
    assert reply_text(first) == reply_text(other)
    assert reply_text(Harness(seed=4)) != reply_text(Harness(seed=3))


@given(
    max_tokens=st.integers(1, 300),
    min_tokens=st.integers(0, 300),
    seed=st.integers(0, 99),
    limited=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_reply_length_stays_between_min_tokens_and_max_tokens(
    max_tokens: int, min_tokens: int, seed: int, limited: bool
) -> None:
    min_tokens = min(min_tokens, max_tokens)
    harness = Harness(seed=seed)
    harness.ask(max_tokens=max_tokens, min_tokens=min_tokens, ignore_eos=False, limited=limited)
    count = sum(len(event.ids) for event in harness.tokens())
    assert max(1, min_tokens) <= count <= max_tokens
    assert harness.finish() == ("length" if count == max_tokens else "stop")


def test_echo_mode_returns_the_whole_text_even_beyond_the_token_limit() -> None:
    harness = Harness(mode="echo")
    for text in ("What goes in comes out.", "日本語 🙂\n\n  x", "a" * 1000):
        assert reply_text(harness, echo_text=text, limited=False) == text
        count = len(embedded_tokenizer().encode(text))
        for limit, reason in ((2, "length"), (count, "length"), (count + 1, "stop")):
            name = f"{limit} {text}"
            harness.ask(name, echo_text=text, max_tokens=limit)
            assert harness.said(name) == text and harness.finish(name) == reason
    harness.ask("nothing", echo_text="")
    [event] = harness.tokens("nothing")
    end = [embedded_tokenizer().eos_token_id]
    assert (event.texts, event.ids, event.finish) == ([""], end, Finish("stop"))
    assert harness.is_idle()


def test_every_prompt_token_except_the_first_has_a_log_probability() -> None:
    harness = Harness()
    harness.ask(prompt_ids=[5, 6, 7], prompt_logprobs=1)
    [started] = [output for output in harness.outputs() if isinstance(output, Started)]
    assert started.prompt_logprobs is not None
    first, *others = started.prompt_logprobs
    assert first is None
    assert [entry and entry.token_id for entry in others] == [6, 7]
