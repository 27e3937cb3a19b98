"""Heads of requests: what the fast path takes, gunicorn's parser takes, too, and in the same sense."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from gunicorn import http
from gunicorn.config import Config
from gunicorn.http.errors import ParseException
from hypothesis import given
from hypothesis import strategies as st

from app.serving.gunicorn.client_socket import check_head
from app.serving.gunicorn.fast.heads import RequestHeads
from app.serving.http.response import Response
from app.serving.http.route import post, probe
from tests.hostile.wire import Wire
from tests.running_server import RunningServer, running_server


class Source:
    """What gunicorn reads from."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def recv(self, size: int) -> bytes:
        data, self._data = self._data[:size], self._data[size:]
        return data


class Plain:
    """Finds nothing special in any request."""

    special_headers: frozenset[str] = frozenset()

    def recognise(self, body: bytes) -> object:
        return self

    def answer(self, context: object, request: object) -> Response:
        return Response()


ROUTES = [probe("/health", lambda _: Response()), post("/v1/chats", lambda _: Response(), plain=Plain())]
LINES = [
    b"GET /health HTTP/1.1",
    b"POST /v1/chats HTTP/1.1",
    b"GET  /health HTTP/1.1",
    b"GET /health HTTP/1.0",
]
FIELDS = [
    *b"Host: a|Host: a:80|Host: [::1]:8|Host:|Host: a b|Host: a/b|Host: a@b|Host: \xe4".split(b"|"),
    *b"Connection: close|Connection: keep-alive|Connection: keep-alive, close|connection: Close".split(b"|"),
    *b"Content-Length: 2|Content-Length: +2|Content-Length: 2, 2|Content-Type: application/json".split(b"|"),
    *b"X: y|X : y| X: y|X:\ty|X: y\rz|X: \x00|X: \x7f|X: \x80|X:|X|: y|X: y\n|\tfold|X(: y|x_y: z".split(
        b"|"
    ),
    *b"X: y\nHost: b|Transfer-Encoding: chunked|TE: a|Upgrade: h2c|Expect: 100-continue".split(b"|"),
    *(b"X: " + b"a" * 9000, b"X: " + b"a" * 8100),
]
JUNK = [b"\r", b"\n", b"\r\n", b" ", b"\t", b"\x00", b":", b"\x0b", b"\xff", b","]
PLAIN = [b"Host: a", b"Content-Type: application/json", b"Content-Length: 2"]


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    """Heads that are nearly plain, with a few odd fields and a few odd bytes."""
    fields = PLAIN * draw(st.booleans()) + draw(st.lists(st.sampled_from(FIELDS), max_size=3))
    data = b"\r\n".join([draw(st.sampled_from(LINES)), *draw(st.permutations(fields)), b"", b""])
    for junk in draw(st.lists(st.sampled_from(JUNK), max_size=2)):
        place = draw(st.integers(0, len(data)))
        data = data[:place] + junk + data[place:]
    return data


def by_gunicorn(data: bytes) -> Any:
    """gunicorn's request, looked at as the worker does; None when it is refused."""
    try:
        request = next(http.get_parser(Config(), Source(data), ("127.0.0.1", 1)))
        check_head(request)
    except ParseException:
        return None
    return request


@given(heads())
def test_what_the_fast_path_takes_gunicorn_takes_alike(data: bytes) -> None:
    data = data[: data.find(b"\r\n\r\n") + 4]
    head = RequestHeads(ROUTES).read(data)
    if head is not None:
        request = by_gunicorn(data + b"{}")
        assert request is not None
        assert (request.method, request.path) == (head.method, head.route.path)
        assert {name.lower(): value for name, value in request.headers} == head.headers
        assert request.should_close() == head.closes


def test_lower_limits_of_gunicorn_leave_more_to_it() -> None:
    heads = RequestHeads(ROUTES)
    assert heads.read(b"GET /health HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\n") is not None
    heads.keep_to(0, 2)
    assert heads.read(b"GET /health HTTP/1.1\r\nHost: a\r\nY: y\r\n\r\n") is not None
    assert heads.read(b"GET /health HTTP/1.1\r\nHost: a\r\nY: y\r\nZ: z\r\n\r\n") is None
    heads.keep_to(30, 0)
    assert heads.read(b"GET /health HTTP/1.1\r\nHost: abc\r\n\r\n") is None


@pytest.fixture(scope="module", params=["true", "false"], ids=["fast path", "gunicorn"])
def way(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    with running_server(env={"SIM_FAST_PATH": request.param}) as server:
        yield server


@pytest.mark.parametrize(
    ("head", "status", "closes"),
    [
        (b"GET /health HTTP/1.1\r\nHost: test", 200, False),
        (b"GET /health HTTP/1.1", 400, True),
        (b"GET /health HTTP/1.1\r\nHost:", 400, True),
        (b"GET /version HTTP/1.1\r\nHost: a b", 400, True),
        (b"GET /health HTTP/1.1\r\nHost: a/b", 400, True),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nHost: a", 400, True),
        (b"GET /health HTTP/1.0", 200, True),
        (b"GET /health HTTP/1.0\r\nHost: a b", 400, True),
        (b"GET /health HTTP/1.1\r\nHost: [::1]:8000", 200, False),
        (b"GET /health HTTP/1.1\r\nHost: my_pod.ns.svc:80", 200, False),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, close", 200, True),
        (b"GET /version HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\nConnection: x,CLOSE", 200, True),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nX: y\nZ: z", 400, True),
        (b"GET /health HTTP/1.1\nHost: a\n\n", 400, True),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 9000, 431, True),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 8100, 200, False),
        (b"GET  /health HTTP/1.1\r\nHost: a", 400, True),
    ],
)
def test_a_head_is_taken_alike_on_both_ways(
    way: RunningServer, head: bytes, status: int, closes: bool
) -> None:
    with Wire(way.port) as wire:
        answer = wire.send(head if head.endswith(b"\n\n") else head + b"\r\n\r\n").answer()
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
