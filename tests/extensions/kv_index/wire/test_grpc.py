"""`indexer.v1.IndexerService` on the port of an indexer, and on that of a server with an index."""

from collections.abc import Callable
from functools import partial
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.client import served
from tests.extensions.grpc.client import LIMIT_S
from tests.hostile.raw_client import wait_until
from tests.running_server import free_port

pytestmark = pytest.mark.grpc
SERVICE = "indexer.v1.IndexerService"
TEXT = "The lighthouse keeper writes down every ship that passes, and where it is bound for. " * 4


def get_pod_scores(channel: grpc.Channel) -> Callable[..., Any]:
    from app.extensions.kv_index.indexer_proto import GetPodScoresRequest, GetPodScoresResponse

    call = channel.unary_unary(
        f"/{SERVICE}/GetPodScores",
        request_serializer=GetPodScoresRequest.SerializeToString,
        response_deserializer=GetPodScoresResponse.FromString,
    )

    def ask(**fields: Any) -> list[tuple[str, float]]:
        answer = call(GetPodScoresRequest(**fields), timeout=LIMIT_S)
        return [(score.pod, score.score) for score in answer.scores]

    return ask


def services(channel: grpc.Channel) -> list[str]:
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    [answer] = stub.ServerReflectionInfo(iter([request]), timeout=LIMIT_S)
    return [service.name for service in answer.list_services_response.service]


def test_indexer_serves_grpc_with_reflection_and_error_statuses() -> None:
    with (
        served("--role", "indexer", "--kv-index-bind", f"tcp://127.0.0.1:{free_port()}") as client,
        grpc.insecure_channel(f"127.0.0.1:{client.server.port}") as channel,
    ):
        ask = get_pod_scores(channel)
        assert ask(prompt=TEXT) == []
        assert SERVICE in services(channel)
        with pytest.raises(grpc.RpcError) as caught:
            ask(prompt=TEXT, model_name="unknown")
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND


def test_server_with_an_index_scores_its_own_blocks_over_grpc() -> None:
    with (
        served("--kv-index", "--enable-kvcache", "--zmq-endpoint=") as client,
        grpc.insecure_channel(f"127.0.0.1:{client.server.port}") as channel,
    ):
        ask = get_pod_scores(channel)
        assert client.post("/v1/completions", {"prompt": TEXT, "max_tokens": 1}).status_code == 200
        wait_until(partial(ask, prompt=TEXT))
        [(pod, score)] = ask(prompt=TEXT)
        assert score >= 2
        assert ask(prompt=TEXT, pod_identifiers=[pod]) == [(pod, score)]
        assert ask(prompt=TEXT, pod_identifiers=["another"]) == []
        assert {SERVICE, "vllm.grpc.engine.VllmEngine"} <= set(services(channel))
