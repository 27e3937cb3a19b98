"""The promise of the project's design card about how requests wait, part by part.

"requests wait on a bounded concurrent.futures worker pool sized by max-num-seqs; streaming uses
generator responses under gevent"
"""

import threading
from concurrent.futures import CancelledError, Executor, Future
from types import GeneratorType
from typing import Any
from unittest.mock import Mock

import gevent
import pytest

from app.core.api.responder import EventStream, ResponseCollector
from app.core.engine.outputs import Finish, Tokens
from app.core.engine.request import Reply, SequenceOutcome
from app.core.engine.sequence import Handle
from app.core.engine.sequence_pool import SequencePool
from app.core.engine.step_executor import StepExecutor
from app.core.engine.timed_sequence import TimedSequence
from tests.core.engine.harness import PROFILE, Harness, engine_request, stepped

TOKEN_S = 0.1
REPLY = Reply(("a", "b", "c"), (1, 2, 3), Finish("length"))


def pool_of(harness: Harness) -> SequencePool:
    executor = harness.engine.executor
    assert isinstance(executor, SequencePool)
    return executor


def new_sequence(harness: Harness, emit: Any = None, **fields: Any) -> TimedSequence:
    request = engine_request(arrival_s=harness.clock.now(), **fields)
    handle = Handle({}, emit or (lambda output: None))
    sequence = TimedSequence(pool_of(harness), request, REPLY, handle)
    handle.begin([sequence])
    return sequence


@pytest.mark.parametrize("harness", [Harness(slots=3), stepped(slots=3)])
def test_idle_executor_has_max_num_seqs_free_slots(harness: Harness) -> None:
    executor = harness.engine.executor
    assert isinstance(executor, Executor)
    assert executor.free() == 3
    if isinstance(executor, StepExecutor):
        assert executor.limits.max_num_seqs == harness.settings.scheduling.max_num_seqs == 3
    else:
        assert executor.slots == harness.settings.scheduling.max_num_seqs == 3


def test_submit_returns_a_future_that_resolves_with_the_outcome() -> None:
    harness = Harness(slots=1, inter_token_latency=TOKEN_S)
    future = pool_of(harness).submit(new_sequence(harness))
    assert isinstance(future, Future) and future.running() and not future.cancel()
    harness.clock.advance(10)
    outcome = future.result(timeout=0)
    assert isinstance(outcome, SequenceOutcome)
    assert (outcome.reason, outcome.tokens, outcome.text) == ("length", 3, "abc")


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_sequences_above_max_num_seqs_wait_until_others_end(slots: int) -> None:
    harness = Harness(slots=slots, inter_token_latency=TOKEN_S)
    pool = pool_of(harness)
    futures = [pool.submit(new_sequence(harness)) for _ in range(slots + 3)]
    assert (pool.running, pool.waiting) == (slots, 3)
    assert [future.running() for future in futures] == [True] * slots + [False] * 3
    harness.clock.advance(10)
    assert all(future.done() for future in futures) and pool.is_idle()


def test_failed_sequence_sets_the_exception_of_its_future() -> None:
    harness = Harness(inter_token_latency=TOKEN_S)
    error = ValueError("the writer failed")

    def emit(output: Any) -> None:
        if isinstance(output, Tokens):
            raise error

    future = pool_of(harness).submit(new_sequence(harness, emit))
    harness.clock.advance(10)
    assert future.exception(timeout=0) is error


def test_requests_create_no_threads() -> None:
    harness = Harness(slots=100, inter_token_latency=TOKEN_S)
    threads_before = threading.active_count()
    futures = [pool_of(harness).submit(new_sequence(harness)) for _ in range(200)]
    assert threading.active_count() == threads_before
    harness.clock.advance(10)
    assert all(future.done() for future in futures) and threading.active_count() == threads_before


def test_streamed_request_creates_no_future() -> None:
    harness = Harness(inter_token_latency=TOKEN_S)
    sequence = new_sequence(harness)
    pool_of(harness).enqueue(sequence)
    assert sequence.created_future is None
    handle = harness.ask(max_tokens=3)
    assert handle.choices[0].created_future is None


@pytest.mark.parametrize("profile", [None, PROFILE])
def test_non_streamed_request_waits_for_the_future_that_submit_returns(profile: Any) -> None:
    harness = stepped() if profile else Harness(inter_token_latency=TOKEN_S)
    request = engine_request(arrival_s=harness.clock.now())
    collector = ResponseCollector(harness.engine, [request], Mock())
    [handle] = harness.engine._active
    future = handle.choices[0].created_future
    assert future is not None and handle.future is future
    waiting = gevent.spawn(collector.wait, None)
    gevent.sleep(0)
    assert not waiting.ready()
    harness.clock.advance(10)
    waiting.join(timeout=5)
    assert waiting.successful() and future.result(timeout=0).tokens == 5


def test_choices_of_a_non_streamed_request_share_a_future() -> None:
    harness = Harness(slots=1, inter_token_latency=TOKEN_S)
    requests = [engine_request(arrival_s=harness.clock.now(), index=index) for index in range(3)]
    collector = ResponseCollector(harness.engine, requests, Mock())
    [handle] = harness.engine._active
    assert [choice.created_future for choice in handle.choices] == [None, None, None]
    waiting = gevent.spawn(collector.wait, None)
    gevent.sleep(0)
    harness.clock.advance(10)
    waiting.join(timeout=5)
    assert waiting.successful()


def test_streaming_response_is_a_generator() -> None:
    stream = EventStream(Mock(**{"chunk.return_value": b"a", "closing.return_value": b""}), 1)
    stream.emit(Tokens(0, ["a"], [1], 1.0, finish=Finish("stop")))
    chunks = iter(stream)
    assert isinstance(chunks, GeneratorType) and list(chunks) == [b"a"]


def test_waiting_sequence_whose_future_is_cancelled_never_starts() -> None:
    harness = Harness(slots=1, inter_token_latency=TOKEN_S)
    pool = pool_of(harness)
    pool.submit(new_sequence(harness))
    outputs: list[Any] = []
    future = pool.submit(new_sequence(harness, outputs.append))
    assert future.cancel()
    harness.clock.advance(10)
    assert outputs == [] and pool.is_idle()
    with pytest.raises(CancelledError):
        future.result(timeout=0)


def test_awaited_request_whose_future_is_cancelled_never_starts() -> None:
    harness = stepped(slots=1)
    request = engine_request(arrival_s=harness.clock.now())
    handle = harness.engine.submit([request], harness.events.append, awaited=True)  # type: ignore[arg-type]
    assert handle.future.cancel()
    harness.clock.advance(10)
    assert harness.events == [] and harness.is_idle()


@pytest.mark.parametrize("harness", [Harness(inter_token_latency=TOKEN_S), stepped()])
def test_no_sequence_is_accepted_after_shutdown(harness: Harness) -> None:
    harness.engine.executor.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        harness.ask()


def test_shutdown_waits_for_all_sequences() -> None:
    harness = Harness(slots=1, inter_token_latency=TOKEN_S)
    pool = pool_of(harness)
    futures = [pool.submit(new_sequence(harness)) for _ in range(3)]
    shutdown = gevent.spawn(pool.shutdown)
    gevent.sleep(0.02)
    assert not shutdown.ready()
    harness.clock.advance(10)
    shutdown.join(timeout=5)
    assert shutdown.successful() and all(future.done() for future in futures)


def test_shutdown_without_waiting_returns_at_once() -> None:
    harness = Harness(slots=1, inter_token_latency=TOKEN_S)
    pool = pool_of(harness)
    future = pool.submit(new_sequence(harness))
    pool.shutdown(wait=False)
    assert not future.done()
    harness.clock.advance(10)
    assert future.result(timeout=0).reason == "length"


def test_shutdown_cancels_the_futures_of_sequences_that_have_not_started() -> None:
    harness = Harness(slots=1, inter_token_latency=TOKEN_S)
    pool = pool_of(harness)
    first = pool.submit(new_sequence(harness))
    outputs: list[Any] = []
    second = pool.submit(new_sequence(harness, outputs.append))
    pool.shutdown(wait=False, cancel_futures=True)
    assert second.cancelled() and not first.cancelled() and pool.waiting == 0
    assert outputs[-1].finish == Finish("abort")
    harness.clock.advance(10)
    assert first.result(timeout=0).reason == "length"


def test_shutdown_cancels_sequences_that_have_not_joined_a_step() -> None:
    harness = stepped(slots=1)
    handles = [harness.ask(name, max_tokens=50) for name in "ab"]
    harness.clock.advance(0.1)
    harness.ask("c")
    harness.engine.executor.shutdown(wait=False, cancel_futures=True)
    assert (harness.finish("b"), harness.finish("c")) == ("abort", "abort")
    assert handles[0].choices and harness.engine.waiting == 0
