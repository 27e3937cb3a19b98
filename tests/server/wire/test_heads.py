"""Heads of requests: what the fast path takes, gunicorn's parser takes, too, and in the same sense."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hostile.raw_client import Wire
from tests.running_server import RunningServer, running_server


@pytest.fixture(scope="module", params=["true", "false"], ids=["fast path", "gunicorn"])
def way(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    with running_server(env={"SIM_FAST_PATH": request.param}) as server:
        yield server


@pytest.mark.parametrize(
    ("head", "status", "closes"),
    [
        (b"GET /health HTTP/1.1\r\nHost: test", 200, False),
        (b"GET /health HTTP/1.1", 400, True),
        (b"GET /version HTTP/1.1\r\nHost: a b", 400, True),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nHost: a", 400, True),
        (b"GET /health HTTP/1.0", 200, True),
        (b"GET /health HTTP/1.1\r\nHost: [::1]:8000", 200, False),
        (b"GET /version HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\nConnection: x,CLOSE", 200, True),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nX: y\nZ: z", 400, True),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 9000, 431, True),
        (b"GET  /health HTTP/1.1\r\nHost: a", 400, True),
    ],
)
def test_a_head_is_taken_alike_on_both_ways(
    way: RunningServer, head: bytes, status: int, closes: bool
) -> None:
    with Wire(way.port) as wire:
        answer = wire.send(head + b"\r\n\r\n").answer()
        assert (answer.status, answer.headers["connection"]) == (status, "close" if closes else "keep-alive")
        if closes:
            assert wire.sock.recv(1) == b""


H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
POSTED = b"Content-Type: application/json\r\nContent-Length: 32\r\n"


@pytest.mark.parametrize(
    "asked",
    [
        b"GET /health HTTP/1.1\r\nHost: a\r\n" + H2C,
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n" + POSTED + H2C + b'{"prompt": "a", "max_tokens": 2}',
    ],
)
def test_who_would_rather_speak_another_protocol_is_answered(way: RunningServer, asked: bytes) -> None:
    """As Java's clients would, in their first request."""
    with Wire(way.port) as wire:
        assert wire.send(asked).answer().status == 200
