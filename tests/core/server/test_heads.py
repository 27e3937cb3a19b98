"""Heads that the fast path accepts mean the same to the parser of gunicorn."""

from typing import Any

from gunicorn import http
from gunicorn.config import Config
from gunicorn.http.errors import ParseException
from hypothesis import given
from hypothesis import strategies as st

from app.core.server.gunicorn.general import check_head
from app.core.server.gunicorn.heads import RequestHeads
from app.core.server.http.response import Response
from app.core.server.http.route import post, probe
from tests.application import empty_response


class Source:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def recv(self, size: int) -> bytes:
        data = self._data[:size]
        self._data = self._data[size:]
        return data


class Plain:
    special_headers: frozenset[str] = frozenset()

    def recognise(self, body: bytes) -> object:
        return self

    def answer(self, context: object, request: object) -> Response:
        return Response()


ROUTES = [
    probe("/health", empty_response),
    post("/v1/chats", empty_response, plain=Plain()),
]
LINES = [
    b"GET /health HTTP/1.1",
    b"POST /v1/chats HTTP/1.1",
    b"GET  /health HTTP/1.1",
    b"GET /health HTTP/1.0",
]
FIELDS = [
    *b"Host: a|Host: [::1]:8|Host:|Host: a b|Host: a/b|Host: \xe4|Connection: close|connection: Close".split(
        b"|"
    ),
    *b"Connection: keep-alive|Connection: keep-alive, close|Content-Type: application/json".split(
        b"|"
    ),
    *b"Content-Length: 2|Content-Length: +2|X: y|X : y| X: y|X: y\rz|X: \x00|X: \x80|X:|X|: y|\tfold".split(
        b"|"
    ),
    *b"X: y\nHost: b|Transfer-Encoding: chunked|TE: a|Upgrade: h2c|Expect: 100-continue".split(
        b"|"
    ),
    *(b"x_y: z", b"X: " + b"a" * 9000, b"X: " + b"a" * 8100, b"X: \x85Y: b"),
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
def test_fast_path_and_gunicorn_parse_request_heads_alike(data: bytes) -> None:
    data = data[: data.find(b"\r\n\r\n") + 4]
    head = RequestHeads(ROUTES).read(data)
    if head is not None:
        request = by_gunicorn(data + b"{}")
        assert request is not None
        assert (request.method, request.path) == (head.method, head.route.path)
        assert {name.lower(): value for name, value in request.headers} == head.headers
        assert request.should_close() == head.closes


def test_request_heads_with_more_than_64_fields_are_left_to_gunicorn() -> None:
    def head_of(fields: int) -> bytes:
        lines = [f"X-{number}: y" for number in range(1, fields)]
        return "\r\n".join(["GET /health HTTP/1.1", "Host: a", *lines, "", ""]).encode()

    heads = RequestHeads(ROUTES)
    read = heads.read(head_of(fields=64))
    assert read is not None and len(read.headers) == 64
    assert heads.read(head_of(fields=65)) is None
