"""Half a request, and then nothing: nobody is waited for without end."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.hostile.raw_client import COMPLETIONS, Wire, http_post, is_error
from tests.hostile.stressed_server import stressed_server
from tests.running_server import RunningServer

READ_TIMEOUT_S = 1.0
KEEP_ALIVE_S = 2.0


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with stressed_server("--read-timeout", "1s", "--keep-alive-timeout", "2s") as running:
        yield running


def test_half_a_body_and_then_silence_is_answered_with_408_and_the_connection_closed(
    server: RunningServer,
) -> None:
    with Wire(server.port) as wire:
        start = time.monotonic()
        wire.send(http_post(COMPLETIONS, b'{"prompt": "a"}')[:-5])
        is_error(wire.answer(), 408, "Request Timeout")
        assert READ_TIMEOUT_S <= time.monotonic() - start < READ_TIMEOUT_S + 2
        assert wire.seconds_until_closed() < KEEP_ALIVE_S + 2


@pytest.mark.parametrize(
    ("begin", "more", "limit_s", "answer"),
    [
        (http_post(COMPLETIONS, b" " * 1000)[:-999], b" ", 5, b"HTTP/1.1 408 "),
        (b"GET /health HTTP/1.1\r\n", b"X: y\r\n", KEEP_ALIVE_S + 2, b""),
    ],
    ids=["body", "head"],
)
def test_what_trickles_in_gets_no_more_time(
    server: RunningServer, begin: bytes, more: bytes, limit_s: float, answer: bytes
) -> None:
    with Wire(server.port) as wire:
        start, received = time.monotonic(), None
        wire.send(begin)
        wire.sock.settimeout(0.1)
        while received is None and time.monotonic() - start < 10:
            try:
                wire.send(more)
                received = wire.sock.recv(64)
            except TimeoutError:
                continue
            except OSError:
                received = b""
        assert received is not None and received[: len(answer)] == answer
        assert bool(received) == bool(answer) and time.monotonic() - start < limit_s


def test_silence_before_the_end_of_the_head_closes_the_connection(server: RunningServer) -> None:
    with Wire(server.port) as silent, Wire(server.port) as started, Wire(server.port) as halfway:
        start = time.monotonic()
        started.send(b"POST")
        halfway.send(b"POST /v1/completions HTTP/1.1\r\nHost: te")
        for wire in (silent, started, halfway):
            wire.seconds_until_closed()
        assert KEEP_ALIVE_S - 0.2 < time.monotonic() - start < KEEP_ALIVE_S + 2
