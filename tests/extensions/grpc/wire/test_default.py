"""gRPC without a setting: served where it can be, and loaded by the first connection."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from smg_grpc_proto.generated import common_pb2

from tests.extensions.grpc.client import connected, generate, tokens_of
from tests.extensions.grpc.raw import PREFACE
from tests.hostile.raw_client import Wire, ask, post, requests_by_way
from tests.running_server import RunningServer, running_gunicorn, running_image, running_server

pytestmark = pytest.mark.grpc


@pytest.fixture(params=["python -m app", "gunicorn"])
def unset(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    start = running_gunicorn if request.param == "gunicorn" else running_server
    with start() as server:
        yield server


def test_http_and_grpc_are_served_on_one_port(unset: RunningServer) -> None:
    assert post(unset.port, ask(max_tokens=2)).status == 200
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: generated_tokens(unset.port), range(4)))
    assert answers == [3, 3, 3, 3], "connections that come while the service is loaded wait"
    assert requests_by_way(unset.port)["grpc"] == 4
    assert post(unset.port, ask(max_tokens=2)).status == 200


def generated_tokens(port: int) -> int:
    with connected(port) as engine:
        return len(tokens_of(engine.generate(generate(max_tokens=3, ignore_eos=True))))


def test_kv_event_subscription_is_unimplemented_without_an_endpoint() -> None:
    """Events that no client wants would cost each request time."""
    with (
        running_server("--enable-kvcache", "--zmq-endpoint=") as server,
        connected(server.port) as engine,
        pytest.raises(grpc.RpcError) as caught,
    ):
        list(engine.stub.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest(), timeout=20))
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("flag", ["--no-grpc", "--fast-path=false"])
def test_server_without_grpc_does_not_speak_http2(flag: str) -> None:
    with running_server(flag) as server, Wire(server.port) as wire:
        assert wire.send(PREFACE).begin().version == 11


def test_serve_command_enables_grpc_only_with_the_flag() -> None:
    with running_image("serve", "tiny") as server, Wire(server.port) as wire:
        assert wire.send(PREFACE).begin().version == 11
