"""Clients that break the rules of HTTP/2, send or ask for too much, or do not read:

only they suffer.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from random import Random

import grpc
import psutil
import pytest
from grpc_reflection.v1alpha import reflection_pb2
from h2.errors import ErrorCodes as Reason

from tests.extensions.grpc import raw as frames
from tests.extensions.grpc.client import Engine, connected, ends_of, generate, varint
from tests.extensions.grpc.raw import (
    RawClient,
    call,
    encode,
    frame,
    headers,
    message,
    opening,
    settings_frame,
)
from tests.hostile.raw_client import wait_until
from tests.running_server import RunningServer, running_server

pytestmark = pytest.mark.grpc

REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
WATCH = "/grpc.health.v1.Health/Watch"


@pytest.fixture
def raw(served: RunningServer) -> Iterator[RawClient]:
    client = RawClient(served.port)
    yield client
    client.sock.close()


@pytest.fixture(autouse=True)
def others_are_served(request: pytest.FixtureRequest, engine: Engine) -> Iterator[None]:
    yield
    assert ends_of(engine.generate(generate()))
    assert engine.running() == 0


def test_invalid_calls_do_not_affect_concurrent_valid_calls(raw: RawClient) -> None:
    get = encode({":method": "GET", ":scheme": "http", ":path": "/health", ":authority": "a"})
    raw.send(
        opening(1, get, 5),
        opening(3, headers(**{"content-type": "text/plain"})),
        opening(5, None, 5),
    )
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
def test_undecodable_message_ends_its_call_with_an_error_status(
    raw: RawClient, sent: bytes, status: str
) -> None:
    raw.send(opening(), frame(frames.DATA, frames.END_STREAM, 1, sent))
    assert raw.ends()["grpc-status"] == status


def test_incomplete_messages_do_not_accumulate_in_memory(served: RunningServer) -> None:
    [worker] = psutil.Process(served.process.pid).children()
    memory_before = worker.memory_info().rss
    raw = RawClient(served.port)
    begin = b"\0" + (4 << 20).to_bytes(4, "big")
    with raw.sock:
        for stream in range(1, 41, 2):
            raw.send(opening(stream), frame(frames.DATA, 0, stream, begin))
        with suppress(OSError):
            for stream in [*range(1, 41, 2)] * 200:
                raw.send(frame(frames.DATA, 0, stream, bytes(1 << 14)))
        assert worker.memory_info().rss - memory_before < 100 << 20


def test_connection_is_closed_only_after_very_many_stream_resets(
    served: RunningServer,
) -> None:
    raw = RawClient(served.port)
    with raw.sock:
        for stream in range(1, 1001, 2):
            raw.send(opening(stream), frames.reset(stream, Reason.CANCEL))
        raw.send(call(generate(), 1001))
        assert raw.ends(1001)["grpc-status"] == "0"
        try:
            for stream in range(1003, 100_003, 2):
                raw.send(opening(stream), frames.reset(stream, Reason.CANCEL))
        except OSError:
            return
        assert raw.reason() == Reason.ENHANCE_YOUR_CALM


def test_client_that_does_not_read_its_responses_is_disconnected(served: RunningServer) -> None:
    raw = RawClient(served.port)
    raw.sock.settimeout(5)
    pings = frame(frames.PING, 0, 0, bytes(8)) * 1000
    with raw.sock, pytest.raises(OSError):
        for _ in range(10_000):
            raw.send(pings)


FLOODS = {
    "PING": frame(frames.PING, 0, 0, bytes(8)),
    "PING acknowledgement": frame(frames.PING, frames.ACK, 0, bytes(8)),
    "SETTINGS": settings_frame({}),
    "PRIORITY": frame(frames.PRIORITY, 0, 1, bytes(4) + b"\x10"),
    "WINDOW_UPDATE": frames.window_update(0, 1),
    "WINDOW_UPDATE of a stream": frames.window_update(1, 1),
    "empty DATA": frame(frames.DATA, 0, 1),
    "DATA of a byte": frame(frames.DATA, 0, 1, b"a"),
    "a frame of an unknown kind": frame(200, 0, 0, b"a"),
}


@pytest.mark.parametrize("name", FLOODS)
def test_flood_of_frames_without_progress_closes_the_connection(
    served: RunningServer, name: str
) -> None:
    raw = RawClient(served.port)
    with raw.sock:
        raw.send(opening(1, headers(WATCH)))
        with suppress(ConnectionError):  # the server has closed the connection
            for _ in range(40):
                raw.send(FLOODS[name] * 500)
        assert raw.reason() in (Reason.ENHANCE_YOUR_CALM, None), "a reset may overtake the reason"


def test_frames_that_acknowledge_responses_do_not_close_the_connection(
    served: RunningServer,
) -> None:
    """A client that updates both windows, and measures the way by PING, at every message that it
    gets.
    """
    raw = RawClient(served.port)
    answered = 0
    with raw.sock:
        for stream in range(1, 41, 2):
            raw.send(call(generate(max_tokens=200, ignore_eos=True), stream))
            for kind, flags, number, payload in raw.frames():
                if kind == frames.DATA and payload:
                    answered += 1
                    size = len(payload)
                    raw.send(
                        frames.window_update(0, size),
                        frames.window_update(stream, size),
                        FLOODS["PING"],
                        FLOODS["SETTINGS"],
                    )
                if kind == frames.HEADERS and number == stream and flags & frames.END_STREAM:
                    break
            assert raw.headers[stream]["grpc-status"] == "0"
    assert answered


@pytest.mark.parametrize("window", [0, 40])
def test_client_without_flow_control_window_delays_no_other_client(
    impatient: tuple[RunningServer, Engine], window: int
) -> None:
    server, engine = impatient
    raw = RawClient(server.port)
    with raw.sock:
        raw.send(settings_frame({frames.INITIAL_WINDOW_SIZE: window}))
        raw.send(call(generate(max_tokens=500, ignore_eos=True)))
        assert ends_of(engine.generate(generate(), wait_for_ready=True))
        kinds = [kind for kind, _, stream, _ in raw.until_reset() if stream == 1]
    assert kinds[-1] == frames.RST_STREAM
    engine.wait_for(0)


@pytest.mark.parametrize("seed", range(3))
def test_random_frames_do_not_crash_the_server(served: RunningServer, seed: int) -> None:
    rng = Random(seed)
    raw = RawClient(served.port)
    raw.sock.settimeout(0.2)
    with raw.sock:
        for _ in range(200):
            kind = rng.randrange(12)
            flags = rng.randrange(256)
            stream = rng.randrange(8)
            payload = rng.choice(
                [headers(), rng.randbytes(rng.randrange(40)), message(rng.randbytes(9))]
            )
            with suppress(OSError):
                raw.send(frame(kind, flags, stream, payload))


def question(symbol: str = "vllm.grpc.engine.VllmEngine") -> bytes:
    request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol)
    return message(request.SerializeToString())


def test_responses_that_are_not_read_do_not_accumulate_in_memory(
    served: RunningServer, engine: Engine
) -> None:
    [worker] = psutil.Process(served.process.pid).children()
    raw = RawClient(served.port)
    with raw.sock:
        raw.send(settings_frame({frames.INITIAL_WINDOW_SIZE: 0}), opening(1, headers(REFLECTION)))
        memory_before = worker.memory_info().rss
        many = question() * (16_000 // len(question()))
        raw.send(*[frame(frames.DATA, 0, 1, many)] * 8)
        assert raw.ends(1)["grpc-status"] == "8"
        assert worker.memory_info().rss - memory_before < 10 << 20
    assert ends_of(engine.generate(generate()))


def test_memory_for_the_headers_of_incomplete_calls_is_limited(served: RunningServer) -> None:
    [worker] = psutil.Process(served.process.pid).children()
    memory_before = worker.memory_info().rss
    raw = RawClient(served.port)
    with raw.sock:
        endless_headers = (
            b"\x40\x01x" + b"\x7f\xbd\x1d" + b"y" * 3900
        )  # 127 + 3773 bytes, and from now on one byte
        raw.send(opening(1, headers() + endless_headers))
        block = headers() + b"\xbe" * 7
        raw.send(*(opening(stream, block) for stream in range(3, 4001, 2)))
        assert raw.reason_of(3999) == Reason.REFUSED_STREAM
        assert worker.memory_info().rss - memory_before < 200 << 20


def test_incomplete_frame_does_not_delay_shutdown() -> None:
    with running_server("--grpc", "--graceful-timeout", "15s") as server:
        raw = RawClient(server.port)
        with raw.sock:
            raw.send(frame(frames.PING, 0, 0, bytes(8)))
            wait_until(lambda: (raw.frame() or (None,))[0] == frames.PING)
            raw.send(b"\0\0\x10")
            time.sleep(1.2)  # it is no new connection any more
            assert server.stop(10) == 0


def test_timed_out_stream_writes_one_access_log_line_without_the_key() -> None:
    flags = ["--access-log", "--log-level", "debug", "--inter-token-latency", "50ms"]
    with running_server("--grpc", *flags) as server:
        with connected(server.port) as engine, pytest.raises(grpc.RpcError):
            request = generate(max_tokens=1000, ignore_eos=True)
            key = ("authorization", "Bearer secret-words")
            list(engine.stub.Generate(request, timeout=0.5, metadata=[key]))
        time.sleep(0.3)
        log = server.log()
    lines = [
        line for line in log.splitlines() if "VllmEngine/Generate" in line and "access" in line
    ]
    assert "secret-words" not in log and len(lines) == 1, log


def test_slow_subscriber_receives_every_batch() -> None:
    """The room for its answer is used up at the first batch, and comes back after the last."""
    subscribe = "/vllm.grpc.engine.VllmEngine/SubscribeKvEvents"
    request = message(b"")
    firsts = (1000, 2000, 3000)
    with (
        running_server("--grpc", "--enable-kvcache", "true") as server,
        connected(server.port) as engine,
    ):
        raw = RawClient(server.port)
        with raw.sock:
            raw.send(
                settings_frame({frames.INITIAL_WINDOW_SIZE: 9}), opening(1, headers(subscribe))
            )
            raw.send(frame(frames.DATA, frames.END_STREAM, 1, request))
            wait_until(lambda: (raw.frame() or (None,))[0] == frames.HEADERS)
            for first in firsts:
                engine.generate(generate(range(first, first + 33), max_tokens=2))
            raw.send(frames.window_update(1, 1 << 20))
            received = b""
            while not all(varint(first) + varint(first + 1) in received for first in firsts):
                kind, _, _, payload = raw.frame() or (None, 0, 0, b"")
                assert kind is not None
                received += payload if kind == frames.DATA else b""
