"""Clients that ask for more than they take, or would have us keep or do much for little: it is bounded."""

from __future__ import annotations

import time

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from h2.errors import ErrorCodes as Reason

from tests.grpc import raw as frames
from tests.grpc.client import Engine, connected, ends_of, generate, wait_until
from tests.grpc.raw import RawClient, frame, headers, message, opening, settings_frame
from tests.running_server import RunningServer, running_server

pytestmark = pytest.mark.grpc

REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
WATCH = "/grpc.health.v1.Health/Watch"


def question(symbol: str = "vllm.grpc.engine.VllmEngine") -> bytes:
    asked = reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol)
    return message(asked.SerializeToString())


def test_answers_that_are_not_taken_are_not_made(served: RunningServer, engine: Engine) -> None:
    [worker] = psutil.Process(served.process.pid).children()
    raw = RawClient(served.port)
    with raw.sock:
        raw.send(settings_frame({frames.INITIAL_WINDOW_SIZE: 0}), opening(1, headers(REFLECTION)))
        before = worker.memory_info().rss
        many = question() * (16_000 // len(question()))
        raw.send(*[frame(frames.DATA, 0, 1, many)] * 8)
        assert raw.ends(1)["grpc-status"] == "8"
        assert worker.memory_info().rss - before < 10 << 20
    assert ends_of(engine.said(generate()))


def test_questions_are_answered_in_their_order_however_many_come_at_once(served: RunningServer) -> None:
    names = [f"no.such.Service{number}" for number in range(300)]
    raw = RawClient(served.port)
    with raw.sock:
        asked = b"".join(map(question, names))
        raw.send(opening(1, headers(REFLECTION)), frame(frames.DATA, frames.END_STREAM, 1, asked))
        told = b""
        for kind, flags, _, payload in raw.frames():
            if kind == frames.DATA:
                told += payload
                raw.send(*(frames.window_update(stream, len(payload)) for stream in (0, 1)))
            elif kind == frames.HEADERS and flags & frames.END_STREAM:
                assert raw.headers[1]["grpc-status"] == "0"
                break
    found = []
    while told:
        end = 5 + int.from_bytes(told[1:5], "big")
        answer = reflection_pb2.ServerReflectionResponse.FromString(told[5:end])
        found.append(answer.original_request.file_containing_symbol)
        told = told[end:]
    assert found == names


def test_headers_of_calls_that_do_not_go_on_are_bounded(served: RunningServer) -> None:
    [worker] = psutil.Process(served.process.pid).children()
    before = worker.memory_info().rss
    raw = RawClient(served.port)
    with raw.sock:
        kept = b"\x40\x01x" + b"\x7f\xbd\x1d" + b"y" * 3900  # 127 + 3773 bytes, and from now on one byte
        raw.send(opening(1, headers() + kept))
        block = headers() + b"\xbe" * 7
        raw.send(*(opening(stream, block) for stream in range(3, 12_001, 2)))
        assert raw.reason_of(11_999) == Reason.REFUSED_STREAM
        assert worker.memory_info().rss - before < 200 << 20


def test_room_for_others_is_no_room_for_a_call(impatient: tuple[RunningServer, Engine]) -> None:
    server, engine = impatient
    raw = RawClient(server.port)
    raw.sock.settimeout(0.05)
    with raw.sock:
        raw.send(settings_frame({frames.INITIAL_WINDOW_SIZE: 0}))
        body = message(generate().SerializeToString())
        raw.send(opening(), frame(frames.DATA, frames.END_STREAM, 1, body))

        def is_cut_off() -> bool:
            raw.send(frames.window_update(0, 1))
            try:
                return raw.reason_of(1) == Reason.CANCEL
            except TimeoutError:
                return False

        wait_until(is_cut_off)
    engine.wait_for(0)


def test_half_a_frame_does_not_hold_up_the_end_of_the_server() -> None:
    with running_server("--grpc", "--graceful-timeout", "15s") as server:
        raw = RawClient(server.port)
        with raw.sock:
            raw.send(frame(frames.PING, 0, 0, bytes(8)))
            wait_until(lambda: (raw.frame() or (None,))[0] == frames.PING)
            raw.send(b"\0\0\x10")
            time.sleep(1.2)  # it is no new connection any more
            assert server.stop(10) == 0


def test_watchers_are_counted_and_make_room_when_they_leave(served: RunningServer, engine: Engine) -> None:
    raw = RawClient(served.port)
    body = frame(frames.DATA, frames.END_STREAM, 1, message(b""))[9:]
    with raw.sock:
        for stream in range(1, 601, 2):
            raw.send(opening(stream, headers(WATCH)), frame(frames.DATA, frames.END_STREAM, stream, body))
        assert raw.ends(599)["grpc-status"] == "8"
    health = health_pb2_grpc.HealthStub(engine.channel)

    def is_watched() -> bool:
        call = health.Watch(health_pb2.HealthCheckRequest())
        try:
            return bool(next(call).status == health_pb2.HealthCheckResponse.SERVING)
        except grpc.RpcError:
            return False
        finally:
            call.cancel()

    wait_until(is_watched)


def test_a_stream_that_is_too_late_has_one_line_in_the_log_which_shows_no_key() -> None:
    flags = ["--access-log", "--log-level", "debug", "--inter-token-latency", "50ms"]
    with running_server("--grpc", *flags) as server:
        with connected(server.port) as engine, pytest.raises(grpc.RpcError):
            call = engine.stub.Generate(
                generate(max_tokens=1000, ignore_eos=True),
                timeout=0.5,
                metadata=[("authorization", "Bearer secret-words")],
            )
            list(call)
        time.sleep(0.3)
        log = server.log()
    lines = [line for line in log.splitlines() if "VllmEngine/Generate" in line and "access" in line]
    assert "secret-words" not in log and len(lines) == 1, log


def test_many_streams_of_one_client_end_with_it() -> None:
    flags = ["--max-num-seqs", "500", "--inter-token-latency", "200ms"]
    with running_server("--grpc", *flags) as server, connected(server.port) as engine:
        raw = RawClient(server.port)
        body = message(generate(max_tokens=1000, ignore_eos=True).SerializeToString())
        with raw.sock:
            raw.send(settings_frame({frames.INITIAL_WINDOW_SIZE: 0}))
            for stream in range(1, 601, 2):
                raw.send(opening(stream), frame(frames.DATA, frames.END_STREAM, stream, body))
            engine.wait_for(300)
            for window in (100, 0, 2**31 - 1, 0) * 20:
                raw.send(settings_frame({frames.INITIAL_WINDOW_SIZE: window}), frames.window_update(0, 1))
        engine.wait_for(0)
