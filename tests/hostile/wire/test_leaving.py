"""Clients that go away: noticed at once, whatever stage their request has reached."""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.hostile.raw_client import (
    Wire,
    aborts,
    ask,
    get,
    http_post,
    metric,
    running,
    wait_until,
)
from tests.hostile.stressed_server import assert_idle, stressed_server, workers_of
from tests.hostile.waits import wait_for_running, wait_for_waiting
from tests.running_server import RunningServer

NOTICED_S = 5.0
"""A tenth of what a reply takes here.

The promise is 0.1 s; the rest is for a machine that is busy.
"""

LEAVE: list[Callable[[Wire], None]] = [Wire.close, Wire.reset]
WAYS = pytest.mark.parametrize("leave", LEAVE, ids=["close", "reset"])
BOTH = pytest.mark.parametrize(("leave", "stream"), [*zip(LEAVE, (False, True), strict=True)])


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    flags = (
        "--max-num-seqs",
        "1",
        "--time-to-first-token",
        "300ms",
        "--inter-token-latency",
        "50ms",
    )
    with stressed_server(*flags) as running_server:
        yield running_server


@pytest.fixture(autouse=True)
def nothing_is_left(server: RunningServer) -> Iterator[None]:
    yield
    assert_idle(server.port)


@contextmanager
def occupied(port: int) -> Iterator[Wire]:
    """The only place is taken by somebody who talks for minutes; free again after the block."""
    with Wire(port) as wire:
        next(wire.post(ask(max_tokens=4000, stream=True)).events())
        yield wire
        wire.sock.close()
    wait_for_running(port, 0)


@WAYS
def test_incomplete_request_is_not_served_after_a_disconnect(
    server: RunningServer, leave: Callable[[Wire], None]
) -> None:
    served_before = metric(server.port, "vllm:request_success_total")
    request = http_post("/v1/completions", b'{"prompt": "a"}')
    # A reset in the middle of a body is a matter of test_bodies.
    stages = (0, 10, 40) if leave is LEAVE[1] else (0, 10, 40, len(request) - 5)
    for sent in stages:
        wire = Wire(server.port).send(request[:sent])
        get(server.port, "/health")
        leave(wire)
    assert metric(server.port, "vllm:request_success_total") == served_before


@BOTH
def test_disconnect_while_queued_frees_its_queue_position(
    server: RunningServer, leave: Callable[[Wire], None], stream: bool
) -> None:
    with occupied(server.port):
        aborts_before = aborts(server.port)
        wire = Wire(server.port).post(ask(stream=stream))
        wait_for_waiting(server.port, 1)
        leave(wire)
        assert wait_for_waiting(server.port, 0) < NOTICED_S
        assert (aborts(server.port), running(server.port)) == (aborts_before + 1, 1)


@BOTH
def test_disconnect_before_and_after_the_first_token_frees_the_slot(
    server: RunningServer, leave: Callable[[Wire], None], stream: bool
) -> None:
    def counts() -> tuple[float, float]:
        return aborts(server.port), metric(server.port, "vllm:time_to_first_token_seconds_count")

    counts_before = counts()
    wire = Wire(server.port).post(ask(max_tokens=1000, stream=stream))
    wait_for_running(server.port, 1)
    leave(wire)
    assert wait_for_running(server.port, 0) < NOTICED_S
    assert counts() == (counts_before[0] + 1, counts_before[1])
    if stream:
        wire = Wire(server.port)
        next(wire.post(ask(max_tokens=1000, stream=True)).events())
        leave(wire)
        assert wait_for_running(server.port, 0) < NOTICED_S
        assert counts() == (counts_before[0] + 2, counts_before[1] + 1)


def test_disconnect_after_the_client_stopped_reading_frees_the_slot(server: RunningServer) -> None:
    with Wire(server.port, receive_buffer=2048) as wire:
        wire.post(ask(max_tokens=1000, stream=True, logprobs=5))
        wait_for_running(server.port, 1)
        tokens_before = metric(server.port, "vllm:generation_tokens_total")
        wait_until(lambda: metric(server.port, "vllm:generation_tokens_total") > tokens_before + 10)
        wire.sock.close()
        assert wait_for_running(server.port, 0) < NOTICED_S


def test_disconnect_aborts_running_and_waiting_choices(server: RunningServer) -> None:
    counts_before = aborts(server.port), metric(server.port, "vllm:prompt_tokens_total")
    wire = Wire(server.port).post(ask(max_tokens=1000, n=5, stream=True, temperature=1))
    wait_for_waiting(server.port, 4)
    wire.sock.close()
    assert wait_for_waiting(server.port, 0) < NOTICED_S
    # None of those that waited got a turn on the way out.
    after = aborts(server.port), metric(server.port, "vllm:prompt_tokens_total")
    assert after == (counts_before[0] + 5, counts_before[1])


def test_disconnect_is_detected_despite_a_pipelined_request(server: RunningServer) -> None:
    with occupied(server.port):
        wire = Wire(server.port).post(ask(stream=True))
        wait_for_waiting(server.port, 1)
        wire.send(b"GET /health HTTP/1.1\r\nHost: test\r\n\r\n")
        get(server.port, "/health")
        wire.sock.close()
        assert wait_for_waiting(server.port, 0, limit_s=5) < NOTICED_S


def test_request_of_a_client_that_has_closed_its_side_is_answered(server: RunningServer) -> None:
    """The client closes its side before the server accepts the connection."""
    [worker] = workers_of(server)
    os.kill(worker, signal.SIGSTOP)
    try:
        wire = Wire(server.port)
        wire.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wire.sock.shutdown(socket.SHUT_WR)
    finally:
        os.kill(worker, signal.SIGCONT)
    with wire:
        assert wire.begin().status == 200
