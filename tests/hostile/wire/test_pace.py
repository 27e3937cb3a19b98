"""Tokens leave at their moments; half a request, and then nothing, is not waited for without end."""

import time
from collections.abc import Iterator
from contextlib import closing
from statistics import median

import pytest

from tests.hostile.raw_client import COMPLETIONS, Wire, ask, http_post, is_error
from tests.hostile.stressed_server import stressed_server
from tests.running_server import RunningServer

TTFT_S = 0.25
ITL_S = 0.005
READ_TIMEOUT_S = 1.0
KEEP_ALIVE_S = 2.0
FLAGS = (
    *("--time-to-first-token", "250ms", "--inter-token-latency", "5ms"),
    *("--client-timeout", "1s", "--keep-alive-timeout", "2s"),
)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with stressed_server(*FLAGS) as running:
        yield running


def arrivals(port: int, tokens: int) -> list[float]:
    """When each token of a stream came, in seconds after it was asked for."""
    with Wire(port) as wire:
        start = time.monotonic()
        wire.post(ask(max_tokens=tokens, stream=True))
        return [time.monotonic() - start for _ in wire.events()]


def test_two_hundred_tokens_arrive_on_schedule_without_drift(
    server: RunningServer,
) -> None:
    late = [moment - TTFT_S - k * ITL_S for k, moment in enumerate(arrivals(server.port, 200))]
    assert len(late) == 200
    assert min(late) > -0.002
    # A pause of the machine delays some chunks; a drift delays all later ones (half a millisecond
    # each).
    assert median(late[-50:]) - median(late[:50]) < 0.03
    assert late[-1] < 0.5


def test_response_headers_are_sent_before_the_first_token(
    server: RunningServer,
) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "stream": True}
    with Wire(server.port) as wire:
        start = time.monotonic()
        wire.post(chat, "/v1/chat/completions")
        with closing(wire.begin()) as response:
            headers_s = time.monotonic() - start
            first = response.readline()
            first_s = time.monotonic() - start
    assert b'"role":"assistant"' in first
    assert headers_s < TTFT_S <= first_s < TTFT_S + 0.5


def test_non_streamed_reply_is_sent_when_its_last_token_is_due(server: RunningServer) -> None:
    with Wire(server.port) as wire:
        start = time.monotonic()
        answer = wire.post(ask(max_tokens=41)).answer()
    assert answer.status == 200
    assert TTFT_S + 40 * ITL_S <= time.monotonic() - start < TTFT_S + 40 * ITL_S + 0.5


def test_stalled_request_body_returns_408_and_closes_the_connection(
    server: RunningServer,
) -> None:
    with Wire(server.port) as wire:
        start = time.monotonic()
        wire.send(http_post(COMPLETIONS, b'{"prompt": "a"}')[:-5])
        is_error(wire.answer(), 408, "Request Timeout")
        assert READ_TIMEOUT_S <= time.monotonic() - start < READ_TIMEOUT_S + 2
        assert wire.seconds_until_closed() < KEEP_ALIVE_S + 2


@pytest.mark.parametrize(
    ("begin", "rest_of_request", "limit_s", "answer"),
    [
        (http_post(COMPLETIONS, b" " * 1000)[:-999], b" ", 5, b"HTTP/1.1 408 "),
        (b"GET /health HTTP/1.1\r\n", b"X: y\r\n", KEEP_ALIVE_S + 2, b""),
    ],
    ids=["body", "head"],
)
def test_slowly_sent_request_gets_no_extra_time(
    server: RunningServer, begin: bytes, rest_of_request: bytes, limit_s: float, answer: bytes
) -> None:
    with Wire(server.port) as wire:
        start = time.monotonic()
        received = None
        wire.send(begin)
        wire.sock.settimeout(0.1)
        while received is None and time.monotonic() - start < 10:
            try:
                wire.send(rest_of_request)
                received = wire.sock.recv(64)
            except TimeoutError:
                continue
            except OSError:
                received = b""
        assert received is not None and received[: len(answer)] == answer
        assert bool(received) == bool(answer) and time.monotonic() - start < limit_s


def test_incomplete_request_head_closes_the_connection_after_the_timeout(
    server: RunningServer,
) -> None:
    with Wire(server.port) as silent, Wire(server.port) as started, Wire(server.port) as halfway:
        start = time.monotonic()
        started.send(b"POST")
        halfway.send(b"POST /v1/completions HTTP/1.1\r\nHost: te")
        for wire in (silent, started, halfway):
            wire.seconds_until_closed()
        assert KEEP_ALIVE_S - 0.2 < time.monotonic() - start < KEEP_ALIVE_S + 2
