"""The proxy forwards unchanged requests to the pod of the policy, until the client disconnects."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random

import gevent
import pytest

from app.extensions.plugins.policies import Incoming, Policy
from app.shared.http_client import JSON, HttpConnection, exchange
from tests import stubs
from workbench.fleet.indexer import Indexer
from workbench.fleet.proxy import Proxy
from workbench.load.policies import PrefixAware, RoundRobin

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


class Always:
    """Chooses the first pod that it is offered, and remembers what it was offered."""

    fallbacks = 0

    def __init__(self) -> None:
        self.offered: list[list[str]] = []

    def choose(self, incoming: Incoming, pods: Sequence[str], in_flight: Mapping[str, int]) -> str:
        self.offered.append(list(pods))
        return pods[0]


@contextmanager
def proxying(pods: Iterable[str], policy: Policy) -> Iterator[tuple[str, Proxy]]:
    """The address of a proxy in front of `pods`, and the proxy."""
    proxy = Proxy(list(pods), policy)
    with stubs.serving(proxy) as address:
        yield address, proxy


@contextmanager
def pod_behind_proxy(pod: stubs.Talker) -> Iterator[tuple[str, str, Proxy]]:
    """The addresses of a pod and of a proxy in front of it, and the proxy."""
    with stubs.talking(pod) as address, proxying([address], RoundRobin()) as (url, proxy):
        yield address, url, proxy


@contextmanager
def two_pods() -> Iterator[tuple[str, str]]:
    with stubs.serving(stubs.Pod("one")) as first, stubs.serving(stubs.Pod("two")) as second:
        yield first, second


def test_fleet_proxy_forwards_headers_body_and_status() -> None:
    pod = stubs.Pod("one")
    headers = {"Authorization": "Bearer k", "X-Request-Id": "7"}
    with (
        stubs.serving(pod) as address,
        proxying([address], RoundRobin()) as (url, _),
        stubs.posted(url, {"prompt": "ü"}, "/v1/chat/completions?beta=1", **headers) as response,
    ):
        assert (response.status, response.read()) == (201, b"one")
        assert response.getheader("x-pod") == "one"
        assert response.getheader("x-routed-to") == address
    assert pod.asked == [("POST", "/v1/chat/completions", json.dumps({"prompt": "ü"}).encode())]
    assert pod.headers[0]["HTTP_AUTHORIZATION"] == "Bearer k"
    assert pod.headers[0]["HTTP_X_REQUEST_ID"] == "7"
    assert pod.headers[0]["HTTP_HOST"] == address


@pytest.mark.parametrize("head", [b"", CHUNKED + b"5\r\nhello\r\n"])
def test_client_disconnect_ends_the_request_at_the_pod(head: bytes) -> None:
    talker = stubs.Talker(head)
    with pod_behind_proxy(talker) as (address, url, proxy):

        def is_routed() -> bool:
            return proxy.routed[address] == 1

        def is_ended() -> bool:
            return proxy.in_flight[address] == 0

        connection = HttpConnection(url, stubs.PATIENCE_S)
        connection.request("POST", "/v1/completions", b"{}", JSON)
        stubs.eventually(is_routed)
        gevent.sleep(0.01)
        connection.close()
        assert talker.client_left.wait(stubs.PATIENCE_S)
        stubs.eventually(is_ended)


def test_proxy_uses_another_pod_if_the_chosen_pod_is_unreachable() -> None:
    dead = stubs.unused_address()
    policy = Always()
    with (
        stubs.serving(stubs.Pod("alive")) as alive,
        proxying([dead, alive], policy) as (url, proxy),
        stubs.posted(url, {}) as response,
    ):
        assert response.read() == b"alive"
        assert response.getheader("x-routed-to") == alive
    assert policy.offered == [[dead, alive], [alive]]
    assert proxy.unreachable == {dead: 1} and proxy.routed == {dead: 0, alive: 1}
    assert proxy.in_flight == {dead: 0, alive: 0}


def test_fleet_proxy_returns_502_if_no_pod_is_reachable() -> None:
    expected = {
        "message": "no pod can be reached",
        "type": "Bad Gateway",
        "param": None,
        "code": 502,
    }
    with (
        proxying([stubs.unused_address()], RoundRobin()) as (url, _),
        stubs.posted(url, {}) as response,
    ):
        assert (response.status, json.load(response)) == (502, {"error": expected})
    with (
        pod_behind_proxy(stubs.Talker(b"", hang_up=True)) as (address, url, proxy),
        stubs.posted(url, {}) as response,
    ):
        assert response.status == 502 and address in json.load(response)["error"]["message"]
        assert proxy.in_flight[address] == 0


def test_routing_falls_back_to_load_if_the_indexer_is_unreachable() -> None:
    policy = PrefixAware(Indexer(stubs.unused_address()).scores, Random(1))
    with two_pods() as (first, second), proxying([first, second], policy) as (url, proxy):
        proxy.in_flight[first] += 1
        for number in range(3):
            with stubs.posted(url, {"prompt": f"number {number}"}) as response:
                assert response.read() == b"two"
        assert json.loads(exchange(url, "GET", "/routing")[1])["fallbacks"] == 3


def test_proxy_forwards_model_lists_and_answers_health_checks() -> None:
    with two_pods() as (first, second), proxying([first, second], RoundRobin()) as (url, proxy):
        proxy.in_flight[first] += 1
        assert exchange(url, "GET", "/v1/models") == (201, b"two")
        assert exchange(url, "GET", "/health")[0] == 200
        assert exchange(url, "POST", "/v1/embeddings", b"{}")[0] == 404
        assert exchange(url, "GET", "/v1/completions")[0] == 404
