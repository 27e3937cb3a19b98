"""What goes wrong with calls, on purpose or not: each has the code that is expected, and frees its place."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import grpc
import psutil
import pytest
import requests
from grpc_health.v1 import health_pb2, health_pb2_grpc
from smg_grpc_proto import vllm_engine_pb2 as messages
from smg_grpc_proto.generated import common_pb2

from tests.grpc.client import LIMIT_S, Engine, connected, ends_of, generate, tokens_of, wait_until
from tests.running_server import RunningServer, running_server

pytestmark = pytest.mark.grpc

Code = grpc.StatusCode
CODES = {400: Code.INVALID_ARGUMENT, 401: Code.UNAUTHENTICATED, 409: Code.ABORTED, 418: Code.UNKNOWN}
CODES |= {429: Code.RESOURCE_EXHAUSTED, 500: Code.INTERNAL, 503: Code.UNAVAILABLE}


@pytest.fixture(scope="module")
def slow() -> Iterator[tuple[RunningServer, Engine]]:
    """A server of two places, with room for one that waits; tokens come every 50 ms."""
    flags = ["--max-num-seqs", "2", "--max-waiting-queue-length", "1", "--inter-token-latency", "50ms"]
    with running_server("--grpc", *flags) as server, connected(server.port) as engine:
        yield server, engine


def long() -> messages.GenerateRequest:
    """A request for a minute's tokens."""
    return generate(max_tokens=1200, ignore_eos=True)


def test_every_status_has_its_code(engine: Engine) -> None:
    for status, expected in CODES.items():
        code, text = engine.refusal(generate(), metadata=[("x-return-error", str(status))])
        assert code == expected and str(status) in text


def test_a_stream_can_end_too_early(engine: Engine) -> None:
    for rule, kinds in (("truncate; after=2", ["chunk"] * 2), ("empty", []), ("missing-done", ["chunk"] * 5)):
        said = engine.said(generate(ignore_eos=True), metadata=[("x-fault", rule)])
        assert [message.WhichOneof("response") for message in said] == kinds


def bytes_said(
    engine: Engine, request: messages.GenerateRequest, *metadata: tuple[str, str]
) -> Iterator[bytes]:
    """The messages of a stream, which may be none."""
    call = engine.channel.unary_stream(
        "/vllm.grpc.engine.VllmEngine/Generate",
        request_serializer=lambda message: message.SerializeToString(),
    )
    answers: Iterator[bytes] = call(request, timeout=LIMIT_S, metadata=metadata)
    return answers


@pytest.mark.parametrize("rule", ["malformed-chunk; chunk=2", "truncated-json; chunk=2"])
def test_a_message_can_be_none(engine: Engine, rule: str) -> None:
    said = list(bytes_said(engine, generate(ignore_eos=True), ("x-fault", rule)))
    assert messages.GenerateResponse.FromString(said[0]).HasField("chunk")
    with pytest.raises(Exception, match="parsing"):
        messages.GenerateResponse.FromString(said[1])
    assert len(said) == (6 if rule.startswith("malformed") else 2)


def test_a_connection_can_break(served: RunningServer) -> None:
    with connected(served.port) as engine:
        call = engine.stub.Generate(
            generate(ignore_eos=True), timeout=LIMIT_S, metadata=[("x-fault", "disconnect; after=2")]
        )
        with pytest.raises(grpc.RpcError) as broken:
            list(call)
        assert broken.value.code() == Code.UNAVAILABLE
        assert ends_of(engine.said(generate()))  # over another connection


def test_clients_that_leave_free_their_places(slow: tuple[RunningServer, Engine]) -> None:
    """They cancel at any stage, run out of time, or disappear with their connection."""
    server, engine = slow
    for tokens in (0, 1, 5) * 5:
        call = engine.stub.Generate(long(), timeout=LIMIT_S)
        for _ in range(tokens):
            next(call)
        call.cancel()
    engine.wait_for(0)
    with pytest.raises(grpc.RpcError) as late:
        list(engine.stub.Generate(long(), timeout=0.3))
    assert late.value.code() == Code.DEADLINE_EXCEEDED
    engine.wait_for(0)
    with connected(server.port) as other:
        calls = [other.stub.Generate(long(), timeout=LIMIT_S) for _ in range(2)]
        for call in calls:
            next(call)
        waiting = other.stub.Generate(long(), timeout=LIMIT_S)
        engine.wait_for(3)
        waiting.cancel()
        engine.wait_for(2)
    engine.wait_for(0)


def test_keys_quotas_and_failures_by_chance_hold() -> None:
    flags = ["--api-key", "secret", "--requests-per-minute", "2"]
    flags += ["--failure-injection-rate", "100", "--failure-types", "model_not_found"]
    with running_server("--grpc", *flags) as server, connected(server.port) as engine:
        assert engine.refusal(generate()) == (Code.UNAUTHENTICATED, "Unauthorized")
        other = [("authorization", "Bearer other")]
        assert engine.refusal(generate(), metadata=other)[0] == Code.UNAUTHENTICATED
        key = [("authorization", "Bearer secret")]
        code, text = engine.refusal(generate(), metadata=key)
        url, headers = f"{server.url}/v1/completions", {"Authorization": "Bearer secret"}
        answer = requests.post(url, json={"prompt": "a"}, headers=headers, timeout=LIMIT_S)
        assert (code, text) == (Code.NOT_FOUND, answer.json()["error"]["message"])
        assert engine.refusal(generate(), metadata=key)[0] == Code.RESOURCE_EXHAUSTED


def test_a_server_that_ends_lets_streams_end_but_endless_ones_and_takes_no_more() -> None:
    flags = ["--inter-token-latency", "50ms", "--enable-kvcache", "true"]
    with running_server("--grpc", *flags) as server, connected(server.port) as engine:
        watch = health_pb2_grpc.HealthStub(engine.channel).Watch(health_pb2.HealthCheckRequest())
        next(watch)
        events = engine.stub.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest())
        events.initial_metadata()
        call = engine.stub.Generate(generate(max_tokens=40, ignore_eos=True), timeout=LIMIT_S)
        said = [next(call)]
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: refused_by(server.port) == Code.UNAVAILABLE)
        said += call
        assert len(tokens_of(said)) == 40
        assert server.process.wait(LIMIT_S) == 0
        for endless in (watch, events):
            with pytest.raises(grpc.RpcError) as ended:
                list(endless)
            assert ended.value.code() == Code.UNAVAILABLE


def refused_by(port: int) -> grpc.StatusCode | None:
    with connected(port) as engine:
        try:
            engine.said(generate())
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
    return None


def test_a_worker_that_is_killed_comes_back() -> None:
    with running_server("--grpc", "--inter-token-latency", "50ms") as server:
        with connected(server.port) as engine:
            call = engine.stub.Generate(long(), timeout=LIMIT_S)
            next(call)
            [worker] = psutil.Process(server.process.pid).children()
            os.kill(worker.pid, signal.SIGKILL)
            with pytest.raises(grpc.RpcError) as broken:
                list(call)
            assert broken.value.code() == Code.UNAVAILABLE
        with connected(server.port) as engine:
            assert ends_of(engine.said(generate(), wait_for_ready=True))
            assert engine.running() == 0


def test_a_client_may_leave_a_damaged_stream(served: RunningServer, engine: Engine) -> None:
    before = len(served.log())
    for _ in range(3):
        rule = ("x-fault", "truncate; after=900")
        call = engine.stub.Generate(long(), timeout=LIMIT_S, metadata=[rule])
        next(call)
        call.cancel()
    engine.wait_for(0)
    assert "Traceback" not in served.log()[before:]
