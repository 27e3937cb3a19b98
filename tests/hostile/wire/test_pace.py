"""Tokens leave at their moments, over whatever way the server has to the client."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from statistics import median

import pytest

from tests.hostile.raw_client import Wire, ask
from tests.hostile.stressed_server import stressed_server
from tests.running_server import RunningServer

TTFT_S = 0.25
ITL_S = 0.005
LATENCY = ("--time-to-first-token", "250ms", "--inter-token-latency", "5ms")


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with stressed_server(*LATENCY) as running:
        yield running


def arrivals(port: int, tokens: int) -> list[float]:
    """When each token of a stream came, in seconds after it was asked for."""
    with Wire(port) as wire:
        start = time.monotonic()
        wire.post(ask(max_tokens=tokens, stream=True))
        return [time.monotonic() - start for _ in wire.events()]


def test_two_hundred_tokens_take_two_hundred_gaps_and_no_drift_builds_up(server: RunningServer) -> None:
    late = [moment - TTFT_S - k * ITL_S for k, moment in enumerate(arrivals(server.port, 200))]
    assert len(late) == 200
    assert min(late) > -0.002
    # A pause of the machine delays some chunks; a drift delays all later ones (half a millisecond each).
    assert median(late[-50:]) - median(late[:50]) < 0.03
    assert late[-1] < 0.5


def test_headers_leave_at_once_and_the_role_only_when_the_first_token_is_due(server: RunningServer) -> None:
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


def test_a_whole_reply_comes_when_its_last_token_is_due(server: RunningServer) -> None:
    with Wire(server.port) as wire:
        start = time.monotonic()
        answer = wire.post(ask(max_tokens=41)).answer()
    assert answer.status == 200
    assert TTFT_S + 40 * ITL_S <= time.monotonic() - start < TTFT_S + 40 * ITL_S + 0.5
