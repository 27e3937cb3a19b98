"""Faults of calls, which clients see as statuses, damaged messages and broken connections."""

from collections.abc import Iterator

import grpc
import pytest
import requests
from smg_grpc_proto import vllm_engine_pb2 as messages

from tests.extensions.grpc.client import LIMIT_S, Engine, connected, ends_of, generate
from tests.running_server import RunningServer, running_server

pytestmark = pytest.mark.grpc

Code = grpc.StatusCode
CODES = {
    400: Code.INVALID_ARGUMENT,
    401: Code.UNAUTHENTICATED,
    409: Code.ABORTED,
    418: Code.UNKNOWN,
}
CODES |= {429: Code.RESOURCE_EXHAUSTED, 500: Code.INTERNAL, 503: Code.UNAVAILABLE}


def test_injected_http_status_is_returned_as_the_matching_grpc_code(
    engine: Engine,
) -> None:
    for status, expected in CODES.items():
        code, text = engine.refusal(generate(), metadata=[("x-return-error", str(status))])
        assert code == expected and str(status) in text


def test_truncate_fault_ends_a_stream_early(engine: Engine) -> None:
    for rule, kinds in (
        ("truncate; after=2", ["chunk"] * 2),
        ("empty", []),
        ("missing-done", ["chunk"] * 5),
    ):
        messages = engine.generate(generate(ignore_eos=True), metadata=[("x-fault", rule)])
        assert [message.WhichOneof("response") for message in messages] == kinds


def bytes_said(
    engine: Engine, request: messages.GenerateRequest, *metadata: tuple[str, str]
) -> Iterator[bytes]:
    call = engine.channel.unary_stream(
        "/vllm.grpc.engine.VllmEngine/Generate",
        request_serializer=lambda message: message.SerializeToString(),
    )
    answers: Iterator[bytes] = call(request, timeout=LIMIT_S, metadata=metadata)
    return answers


@pytest.mark.parametrize("rule", ["malformed-chunk; chunk=2", "truncated-json; chunk=2"])
def test_malformed_fault_sends_an_undecodable_message(engine: Engine, rule: str) -> None:
    raw_messages = list(bytes_said(engine, generate(ignore_eos=True), ("x-fault", rule)))
    assert messages.GenerateResponse.FromString(raw_messages[0]).HasField("chunk")
    with pytest.raises(Exception, match="parsing"):
        messages.GenerateResponse.FromString(raw_messages[1])
    assert len(raw_messages) == (6 if rule.startswith("malformed") else 2)


def test_disconnect_fault_breaks_the_connection(served: RunningServer) -> None:
    with connected(served.port) as engine:
        call = engine.stub.Generate(
            generate(ignore_eos=True),
            timeout=LIMIT_S,
            metadata=[("x-fault", "disconnect; after=2")],
        )
        with pytest.raises(grpc.RpcError) as broken:
            list(call)
        assert broken.value.code() == Code.UNAVAILABLE
        assert ends_of(engine.generate(generate()))  # over another connection


def test_injected_failure_has_the_same_message_as_over_http() -> None:
    flags = ["--failure-injection-rate", "100", "--failure-types", "model_not_found"]
    with running_server("--grpc", *flags) as server, connected(server.port) as engine:
        code, text = engine.refusal(generate())
        answer = requests.post(
            f"{server.url}/v1/completions", json={"prompt": "a"}, timeout=LIMIT_S
        )
        assert (code, text) == (Code.NOT_FOUND, answer.json()["error"]["message"])


def test_client_disconnect_from_a_faulted_stream_is_not_logged_as_an_error(
    served: RunningServer, engine: Engine
) -> None:
    request = generate(max_tokens=1200, ignore_eos=True)
    length_before = len(served.log())
    for _ in range(3):
        rule = ("x-fault", "truncate; after=900")
        call = engine.stub.Generate(request, timeout=LIMIT_S, metadata=[rule])
        next(call)
        call.cancel()
    engine.wait_for(0)
    assert "Traceback" not in served.log()[length_before:]
