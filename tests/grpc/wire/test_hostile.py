"""Clients that break the rules of HTTP/2, send too much, or do not read: only they suffer."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from random import Random

import grpc
import psutil
import pytest
from h2.errors import ErrorCodes as Reason

from tests.grpc import raw as frames
from tests.grpc.client import Engine, ends_of, generate
from tests.grpc.raw import RawClient, encode, frame, headers, message, opening, settings_frame
from tests.running_server import RunningServer

pytestmark = pytest.mark.grpc


@pytest.fixture
def raw(served: RunningServer) -> Iterator[RawClient]:
    client = RawClient(served.port)
    yield client
    client.sock.close()


@pytest.fixture(autouse=True)
def others_are_served(request: pytest.FixtureRequest, engine: Engine) -> Iterator[None]:
    yield
    assert ends_of(engine.said(generate()))
    assert engine.running() == 0


def test_what_is_no_call_is_refused_alone(raw: RawClient) -> None:
    get = encode({":method": "GET", ":scheme": "http", ":path": "/health", ":authority": "a"})
    raw.send(opening(1, get, 5), opening(3, headers(**{"content-type": "text/plain"})), opening(5, None, 5))
    assert [raw.ends(stream).get(":status") for stream in (1, 3, 5)] == ["415", "415", "200"]
    assert "grpc-status" in raw.headers[5]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", "13"),
        (b"\0\0", "13"),
        (b"\0\0\0\0\x09abc", "13"),
        (message(b"") * 2, "13"),
        (b"\1\0\0\0\0", "12"),
        (message(b"\xff\xff"), "3"),
        (b"\0\xff\xff\xff\xff", "8"),
    ],
)
def test_a_message_that_is_none_ends_its_call(raw: RawClient, sent: bytes, status: str) -> None:
    raw.send(opening(), frame(frames.DATA, frames.END_STREAM, 1, sent))
    assert raw.ends()["grpc-status"] == status


def test_a_connection_that_breaks_has_told_exactly_so_much(raw: RawClient) -> None:
    block = headers(**{"x-fault": "disconnect; after=2"})
    body = message(generate(ignore_eos=True).SerializeToString())
    raw.send(opening(1, block), frame(frames.DATA, frames.END_STREAM, 1, body))
    told = b"".join(payload for kind, _, _, payload in raw.frames() if kind == frames.DATA)
    assert told.count(b"\x10\x03\x18\x01") == 2


def test_megabytes_are_refused(served: RunningServer, engine: Engine) -> None:
    request = generate()
    request.text = "x" * (5 << 20)
    code, text = engine.refusal(request)
    assert (code, "too long" in text) == (grpc.StatusCode.RESOURCE_EXHAUSTED, True)
    request.text = "x" * (3 << 20)
    assert engine.refusal(request)[0] == grpc.StatusCode.INVALID_ARGUMENT
    assert engine.refusal(generate([1] * 1_000_000))[0] == grpc.StatusCode.INVALID_ARGUMENT
    request = generate()
    request.tokenized.original_text = "x" * (3 << 20)
    request.mm_inputs.pixel_values.inline = bytes(1 << 19)
    assert ends_of(engine.said(request))


def test_megabytes_that_never_end_are_not_kept(served: RunningServer) -> None:
    [worker] = psutil.Process(served.process.pid).children()
    before = worker.memory_info().rss
    raw = RawClient(served.port)
    begin = b"\0" + (4 << 20).to_bytes(4, "big")
    with raw.sock:
        for stream in range(1, 41, 2):
            raw.send(opening(stream), frame(frames.DATA, 0, stream, begin))
        part = bytes(1 << 14)
        try:
            for _ in range(200):
                for stream in range(1, 41, 2):
                    raw.send(frame(frames.DATA, 0, stream, part))
        except OSError:
            pass
        assert worker.memory_info().rss - before < 100 << 20


def test_resets_are_borne_up_to_a_flood(served: RunningServer) -> None:
    raw = RawClient(served.port)
    body = frame(frames.DATA, frames.END_STREAM, 1, message(generate().SerializeToString()))
    assert len(body) > 9
    with raw.sock:
        for stream in range(1, 1001, 2):
            raw.send(opening(stream), frames.reset(stream, Reason.CANCEL))
        raw.send(opening(1001), frame(frames.DATA, frames.END_STREAM, 1001, body[9:]))
        assert raw.ends(1001)["grpc-status"] == "0"
        try:
            for stream in range(1003, 100_003, 2):
                raw.send(opening(stream), frames.reset(stream, Reason.CANCEL))
        except OSError:
            return
        assert raw.reason() == Reason.ENHANCE_YOUR_CALM


def test_who_asks_for_answers_and_does_not_read_them_is_cut_off(served: RunningServer) -> None:
    raw = RawClient(served.port)
    raw.sock.settimeout(5)
    pings = frame(frames.PING, 0, 0, bytes(8)) * 1000
    with raw.sock, pytest.raises(OSError):
        for _ in range(10_000):
            raw.send(pings)


@pytest.mark.parametrize("window", [0, 40])
def test_a_client_that_gives_no_room_holds_up_nobody(
    impatient: tuple[RunningServer, Engine], window: int
) -> None:
    server, engine = impatient
    raw = RawClient(server.port)
    with raw.sock:
        raw.send(settings_frame({frames.INITIAL_WINDOW_SIZE: window}))
        body = message(generate(max_tokens=500, ignore_eos=True).SerializeToString())
        raw.send(opening(), frame(frames.DATA, frames.END_STREAM, 1, body))
        assert ends_of(engine.said(generate(), wait_for_ready=True))
        kinds = [kind for kind, _, stream, _ in raw.until_reset() if stream == 1]
    assert kinds[-1] == frames.RST_STREAM
    engine.wait_for(0)


@pytest.mark.parametrize("seed", range(10))
def test_rubbish_is_borne(served: RunningServer, seed: int) -> None:
    rng = Random(seed)
    raw = RawClient(served.port)
    raw.sock.settimeout(0.2)
    with raw.sock:
        for _ in range(200):
            kind, flags, stream = rng.randrange(12), rng.randrange(256), rng.randrange(8)
            payload = rng.choice([headers(), rng.randbytes(rng.randrange(40)), message(rng.randbytes(9))])
            try:
                raw.send(frame(kind, flags, stream, payload))
            except OSError:
                break


def test_a_slow_reader_gets_everything(served: RunningServer) -> None:
    raw = RawClient(served.port)
    raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    body = message(generate(max_tokens=4000, ignore_eos=True, seed=1).SerializeToString())
    tokens = 0
    with raw.sock:
        raw.send(opening(), frame(frames.DATA, frames.END_STREAM, 1, body))
        for kind, flags, stream, payload in raw.frames():
            if kind == frames.DATA:
                tokens += payload.count(b"\x10\x03\x18\x01")
                raw.send(frames.window_update(0, len(payload)), frames.window_update(1, len(payload)))
                if tokens < 100:
                    time.sleep(0.01)
            elif stream == 1 and flags & frames.END_STREAM:
                break
    assert tokens == 4000
