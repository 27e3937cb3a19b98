"""Mooncake's bootstrap server under clients that are slow, late or hostile."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from threading import Event, Thread

import pytest

from tests.hostile.mooncake_pod import MooncakePod, running_mooncake_pod
from tests.hostile.raw_client import Wire, get, http_post

CLIENTS = 300
IDLE_S = 1.0
CLIENT_TIMEOUT_S = 1.5
CLOSE_LIMIT_S = 15.0
"""Longest wait for the end of a connection: the limits above, on a busy machine."""
HEAD = b"POST /register HTTP/1.1\r\nHost: a\r\n"
HALF_REQUESTS = {
    "nothing": b"",
    "half a line": b"POST /regi",
    "half a head": HEAD + b"X-Header: a",
    "half a body": HEAD + b'Content-Length: 50\r\n\r\n{"engine',
    "half a chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n9\r\nabc",
}


def register(**fields: object) -> bytes:
    worker = {"engine_id": "e", "dp_rank": 9, "tp_rank": 0, "pp_rank": 0, "addr": "tcp://h:1"}
    return json.dumps({**worker, **fields}).encode()


def posted(body: bytes) -> bytes:
    return http_post("/register", body)


HOSTILE = {
    "wrong types": (posted(b'{"engine_id": 1, "dp_rank": []}'), 422),
    "not an object": (posted(b"[]"), 422),
    "no JSON": (posted(b"{"), 422),
    "deep nesting": (posted(b'{"x":' + b"[" * 3_000), 422),
    "invalid UTF-8": (posted(b'{"engine_id": "\xff"}'), 422),
    "lone surrogate": (posted(b'{"engine_id": "\\ud800"}'), 422),
    "huge number": (posted(register(dp_rank=10**400)), 200),
    "huge exponent": (posted(b'{"dp_rank": 1e999}'), 422),
    "negative length": (HEAD + b"Content-Length: -1\r\n\r\n", 400),
    "length with letters": (HEAD + b"Content-Length: ten\r\n\r\n", 400),
    "length of many digits": (HEAD + b"Content-Length: " + b"9" * 5_000 + b"\r\n\r\n", 400),
    "length of a gigabyte": (HEAD + b"Content-Length: 1000000000\r\n\r\nabc", 413),
    "long body": (posted(b" " * 5_000), 413),
    "chunked garbage": (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    "huge chunk": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 99 + b"\r\n", 400),
    "many headers": (HEAD + b"A: b\r\n" * 1_000 + b"\r\n", 400),
    "long header": (HEAD + b"A: " + b"b" * 70_000 + b"\r\n\r\n", 400),
    "long line": (b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\n\r\n", 414),
    "HTTP/0.9": (b"GET /query\r\n", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "invalid version": (b"GET /query HTTP/1\r\n\r\n", 400),
    "binary": (bytes(range(256)) + b"\r\n\r\n", 400),
    "unknown method": (b"BREW /query HTTP/1.1\r\nHost: a\r\n\r\n", 405),
    "unknown path": (b"GET /other HTTP/1.1\r\nHost: a\r\n\r\n", 404),
}


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[MooncakePod]:
    with running_mooncake_pod(IDLE_S, CLIENT_TIMEOUT_S) as pod:
        yield pod


def answers(bootstrap: MooncakePod) -> bool:
    """Whether both servers of the pod answer, each to a new client."""
    return {
        get(bootstrap.bootstrap_port, "/query").status,
        get(bootstrap.server.port, "/health").status,
    } == {200}


@pytest.mark.parametrize("half", HALF_REQUESTS.values(), ids=HALF_REQUESTS)
def test_half_requests_delay_no_other_client_and_end_at_the_limit(
    bootstrap: MooncakePod, half: bytes
) -> None:
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(bootstrap.bootstrap_port)) for _ in range(CLIENTS)]
        for wire in wires:
            with suppress(OSError):  # a new client may take the place of an old one
                wire.send(half)
        start_s = time.monotonic()
        assert answers(bootstrap)
        assert time.monotonic() - start_s < CLOSE_LIMIT_S / 3
        for wire in wires:
            wire.seconds_until_closed(CLOSE_LIMIT_S)


@pytest.mark.parametrize(
    ("start", "piece", "status"),
    [
        (HEAD + b"X-Header: ", b"a", b""),
        (HEAD + b"Content-Length: 4000\r\n\r\n", b" ", b"HTTP/1.1 408"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n", b"HTTP/1.1 408"),
    ],
    ids=["head", "body", "chunks"],
)
def test_client_that_sends_a_byte_at_a_time_is_disconnected(
    bootstrap: MooncakePod, start: bytes, piece: bytes, status: bytes
) -> None:
    begin_s = time.monotonic()
    answer = b""
    with Wire(bootstrap.bootstrap_port) as wire, suppress(OSError):
        wire.send(start)
        wire.sock.settimeout(0.1)
        while time.monotonic() - begin_s < CLOSE_LIMIT_S:
            with suppress(TimeoutError):
                answer = wire.sock.recv(1000)
                break
            wire.send(piece)
    assert time.monotonic() - begin_s < CLOSE_LIMIT_S
    assert answer.startswith(status)


def test_idle_connection_is_closed_after_its_response(bootstrap: MooncakePod) -> None:
    with Wire(bootstrap.bootstrap_port) as wire:
        assert wire.send(b"GET /query HTTP/1.1\r\nHost: a\r\n\r\n").answer().status == 200
        wire.seconds_until_closed(CLOSE_LIMIT_S)


def test_client_that_reads_no_response_is_disconnected(bootstrap: MooncakePod) -> None:
    begin_s = time.monotonic()
    with Wire(bootstrap.bootstrap_port, receive_buffer=4096) as wire, suppress(OSError):
        wire.sock.settimeout(CLOSE_LIMIT_S)
        while time.monotonic() - begin_s < CLOSE_LIMIT_S:
            wire.send(b"GET /query HTTP/1.1\r\nHost: a\r\n\r\n" * 1000)
    assert time.monotonic() - begin_s < CLOSE_LIMIT_S


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1;" + b"e" * 4000 + b"\r\n \r\n"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"trailer: " + b"t" * 4000 + b"\r\n"),
        (HEAD, b"X-Header: " + b"h" * 4000 + b"\r\n"),
        (b"", b"GET /other HTTP/1.1\r\n\r\n" * 100),
    ],
    ids=["chunk extensions", "trailers", "headers", "pipelined requests"],
)
def test_client_that_never_stops_sending_holds_no_other_client(
    bootstrap: MooncakePod, start: bytes, piece: bytes
) -> None:
    has_ended = Event()

    def flood() -> None:
        while not has_ended.is_set():
            with suppress(OSError), Wire(bootstrap.bootstrap_port) as wire:
                wire.send(start)
                while not has_ended.is_set():
                    wire.send(piece * 10)

    thread = Thread(target=flood)
    thread.start()
    try:
        for _ in range(20):
            start_s = time.monotonic()
            assert answers(bootstrap)
            assert time.monotonic() - start_s < CLOSE_LIMIT_S / 3
    finally:
        has_ended.set()
        thread.join(CLOSE_LIMIT_S)
    assert not thread.is_alive()


@pytest.mark.parametrize(("data", "status"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_request_gets_a_response(bootstrap: MooncakePod, data: bytes, status: int) -> None:
    with Wire(bootstrap.bootstrap_port) as wire:
        with suppress(OSError):  # the error may come before the end of the request
            wire.send(data)
        assert wire.sock.recv(12) == f"HTTP/1.1 {status}".encode()
    assert answers(bootstrap)
    assert "Traceback" not in bootstrap.server.log()


def test_pipelined_requests_get_their_responses_in_order(bootstrap: MooncakePod) -> None:
    requests = [b"GET /query", b"HEAD /query", b"GET /other", b"PUT /register", b"GET /query"]
    with Wire(bootstrap.bootstrap_port) as wire:
        wire.send(b"".join(request + b" HTTP/1.1\r\nHost: a\r\n\r\n" for request in requests))
        wire.send(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
        with wire.sock.makefile("rb") as file:
            data = file.read()
    statuses = [int(part[:3]) for part in data.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [200, 405, 404, 405, 200, 404]


def test_registrations_have_limited_bytes(bootstrap: MooncakePod) -> None:
    statuses = []
    with Wire(bootstrap.bootstrap_port) as wire:
        for rank in range(300):
            wire.send(posted(register(tp_rank=rank, addr="a" * 3_900)))
            statuses.append(wire.answer().status)
    assert set(statuses) == {200, 400}
    assert len(get(bootstrap.bootstrap_port, "/query").body) <= 1 << 20
    with Wire(bootstrap.bootstrap_port) as wire:  # a new engine replaces all ranks of the old one
        assert wire.send(posted(register(engine_id="new"))).answer().status in (200, 400)
