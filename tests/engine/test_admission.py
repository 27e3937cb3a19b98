"""Who is let in, who waits, and who is turned away."""

from __future__ import annotations

import pytest

from app.engine.errors import Draining, EngineError, QueueFull, TooManyRequests
from app.engine.outputs import Started, Tokens
from tests.engine.harness import Harness

SLOW = {"time_to_first_token": 0.5, "inter_token_latency": 0.1}


def refusal(harness: Harness, choices: int = 1) -> type[EngineError]:
    with pytest.raises(EngineError) as caught:
        harness.ask("refused", choices)
    assert harness.of("refused") == []
    return caught.type


def test_the_waiting_list_is_bounded() -> None:
    harness = Harness(slots=1, max_waiting=1, **SLOW)
    harness.ask("a")
    harness.ask("b")
    assert refusal(harness) is QueueFull
    harness.clock.advance(1)
    harness.ask("c")
    assert harness.gauges() == (1, 1)


def test_running_and_waiting_together_are_bounded_and_refusals_counted() -> None:
    harness = Harness(slots=1, max_waiting=100, max_unfinished=3, **SLOW)
    harness.ask("a", 2)
    assert refusal(harness, 2) is TooManyRequests
    assert harness.metric("admission_rejections_total", reason="max_num_queued_reqs") == 1
    harness.ask("b")
    assert refusal(harness) is TooManyRequests


def test_room_is_what_slots_queue_and_limit_leave() -> None:
    free = Harness(slots=2, max_waiting=3, **SLOW)
    bounded = Harness(slots=2, max_waiting=3, max_unfinished=4, **SLOW)
    rooms = []
    for choices in (0, 1, 2, 1):
        for harness in (free, bounded):
            if choices:
                harness.ask(f"{choices}", choices)
        rooms.append((free.engine.room(), bounded.engine.room()))
    assert rooms == [(5, 4), (4, 3), (2, 1), (1, 0)]
    with pytest.raises(QueueFull, match="2 wait already"):
        free.ask(choices=2)
    with pytest.raises(TooManyRequests, match="4 of at most 4"):
        bounded.ask()


def test_an_operator_ends_requests_by_name_or_all() -> None:
    harness = Harness(slots=2, **SLOW)
    for name in "abc":
        harness.ask(name, 2)
    assert harness.engine.interrupt({"b", "x"}) == 3
    assert [harness.finish("b", index) for index in range(2)] == ["abort", "abort"]
    assert harness.gauges() == (2, 2) and not harness.of("c")
    assert [type(it) for it in harness.of("b")] == [Started, Tokens]
    harness.clock.advance(0.55)
    assert harness.engine.interrupt() == 6, "each choice, and each request with several of them"
    assert [type(it) for it in harness.of("a")] == [Started, Tokens, Tokens]
    assert harness.finish("a") == harness.finish("c") == "abort" and harness.is_idle()
    assert harness.engine.interrupt() == 0


def test_one_that_needs_no_slot_may_be_the_only_one() -> None:
    harness = Harness(max_unfinished=1)
    for name in "ab":
        harness.ask(name)
        assert harness.finish(name) == "length"


def test_a_draining_engine_goes_on_and_admits_nothing() -> None:
    harness = Harness(slots=1, **SLOW)
    harness.ask("a")
    harness.ask("b")
    harness.engine.drain()
    assert refusal(harness) is Draining
    harness.clock.advance(10)
    assert (harness.finish("a"), harness.finish("b")) == ("length", "length")
    assert harness.is_idle()
