"""Calls among the requests that share steps, and requests that break: each ends alone."""

from __future__ import annotations

from concurrent.futures import Executor

import pytest

from app.engine.step_executor import StepExecutor
from tests.engine.harness import engine_request
from tests.engine.stepped import stepped

BLOCKS = 40


def test_a_call_is_as_important_as_a_request_of_which_nothing_is_said() -> None:
    harness = stepped(slots=1, by_priority=True)
    harness.ask("now", max_tokens=2)
    harness.clock.advance(0.01)
    came: list[str] = []

    def asks() -> None:
        harness.engine.submit([engine_request(max_tokens=1)], lambda event: came.append(type(event).__name__))

    asks()
    harness.engine.executor.submit(came.append, "call")
    asks()
    harness.clock.advance(1)
    assert came == ["Started", "Tokens", "call", "Started", "Tokens"]


def test_it_is_an_executor_whose_calls_wait_for_their_turn() -> None:
    harness = stepped(slots=1)
    executor = harness.engine.executor
    assert isinstance(executor, Executor)
    harness.ask("a", max_tokens=3)
    called, broken, dropped = (executor.submit(divmod, *args) for args in ((17, 5), (1, 0), (1, 1)))
    assert dropped.cancel() and executor.waiting == 4
    harness.clock.advance(0.03)
    assert not called.done()
    harness.clock.advance(1)
    assert called.result(0) == (3, 2) and isinstance(broken.exception(0), ZeroDivisionError)
    assert harness.finish("a") == "length" and harness.is_idle()
    executor.shutdown()
    with pytest.raises(RuntimeError):
        executor.submit(divmod, 1, 1)


@pytest.mark.parametrize("blocks", [None, BLOCKS])
def test_a_call_is_one_token_of_its_step(blocks: int | None) -> None:
    harness = stepped(blocks=blocks)
    executor = harness.engine.executor
    assert isinstance(executor, StepExecutor)
    tokens: list[int] = []
    executor.watch_step = lambda batch, start_s, end_s: tokens.append(batch.tokens)
    call = executor.submit(divmod, 17, 5)
    harness.clock.advance(1)
    assert call.done() and tokens == [1] and harness.is_idle()


@pytest.mark.parametrize("drops", [False, True])
def test_after_shutdown_calls_that_wait_are_made_or_dropped(drops: bool) -> None:
    harness = stepped(blocks=BLOCKS, kv_cache_transfer_latency=9.0)  # which a call does not wait for
    executor = harness.engine.executor
    call = executor.submit(divmod, 17, 5)
    harness.ask("a")
    executor.shutdown(cancel_futures=True) if drops else executor.shutdown()
    assert call.cancelled() is drops
    harness.clock.advance(1)
    assert drops or call.result(0) == (3, 2)
    assert harness.metric("iteration_tokens_total_sum") == 3 + 5 + (not drops)
    assert harness.finish("a") == "length" and harness.is_idle()


def test_a_sequence_that_breaks_takes_no_other_with_it() -> None:
    harness = stepped()
    harness.ask("good", max_tokens=6)
    taken: list[object] = []

    def breaks(event: object) -> None:
        taken.append(event)
        if len(taken) == 4:
            raise RuntimeError("nobody takes it")

    harness.engine.submit([engine_request(request_id="bad", max_tokens=20)], breaks)
    harness.clock.advance(2)
    assert harness.finish("good") == "length"
    assert harness.metric("request_success_total", finished_reason="error") == 1
    assert harness.is_idle()


def test_one_that_ends_at_once_may_end_others_or_break() -> None:
    harness = stepped()
    doomed = harness.ask("doomed", max_tokens=20)

    def ends_the_other(event: object) -> None:
        doomed.abort()

    def breaks(event: object) -> None:
        raise RuntimeError("nobody takes it")

    for name, emit in (("ends", ends_the_other), ("breaks", breaks)):
        harness.engine.submit([engine_request(request_id=name, least_hit_rate=0.5)], emit)
    harness.ask("good", max_tokens=6)
    harness.clock.advance(2)
    assert harness.finish("good") == "length" and not harness.of("doomed")
    assert harness.metric("request_success_total", finished_reason="error") == 1
    assert harness.is_idle()
