"""gRPC before a model that computes: the same door as over HTTP."""

from collections.abc import Iterator

import grpc
import pytest
import requests
from smg_grpc_proto.generated import common_pb2

from tests.extensions.grpc.client import LIMIT_S, Engine, connected, ends_of, generate, tokens_of
from tests.running_server import RunningServer, running_server

pytestmark = [pytest.mark.engine, pytest.mark.grpc]


@pytest.fixture(scope="module")
def served(model: str) -> Iterator[tuple[RunningServer, Engine]]:
    flags = [
        "--engine",
        "llm",
        "--model",
        model,
        "--zmq-endpoint",
        "",
        "--grpc",
        "--enable-scale-out",
    ]
    with (
        running_server(*flags, env={"OMP_NUM_THREADS": "1"}) as server,
        connected(server.port) as engine,
    ):
        yield server, engine


@pytest.mark.parametrize("stream", [True, False])
def test_grpc_replies_of_a_real_model_equal_those_over_http(
    served: tuple[RunningServer, Engine], stream: bool
) -> None:
    server, engine = served
    sampling = {"temperature": 0.0, "max_tokens": 20, "ignore_eos": True, "logit_bias": {5: 1.0}}
    messages = engine.generate(generate(range(5, 40), stream, **sampling))
    body = {
        "token_ids": list(range(5, 40)),
        "sampling_params": {**sampling, "logit_bias": {"5": 1.0}},
    }
    answer = requests.post(f"{server.url}/inference/v1/generate", json=body, timeout=LIMIT_S).json()
    [end] = ends_of(messages)
    assert (tokens_of(messages) if stream else list(end.output_ids)) == answer["choices"][0][
        "token_ids"
    ]
    assert (end.finish_reason, end.prompt_tokens) == ("length", 35)


def test_cancelled_call_stops_its_generation(served: tuple[RunningServer, Engine]) -> None:
    _, engine = served
    call = engine.stub.Generate(generate(max_tokens=900, ignore_eos=True), timeout=LIMIT_S)
    next(call)
    call.cancel()
    engine.wait_for(0)
    assert engine.stub.FlushCache(
        common_pb2.FlushCacheRequest(timeout_s=5), timeout=LIMIT_S
    ).success


def test_grpc_kv_event_subscriptions_and_media_requests_are_rejected(
    served: tuple[RunningServer, Engine],
) -> None:
    (request := generate()).mm_inputs.mm_placeholders.add(offset=0, length=1)
    assert served[1].refusal(request)[0] == grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.RpcError) as refusal:
        list(
            served[1].stub.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest(), timeout=LIMIT_S)
        )
    assert refusal.value.code() == grpc.StatusCode.UNIMPLEMENTED
