"""A server with a tier in host memory: events at a real subscriber, and the counters of /metrics."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import zmq
from msgspec import msgpack

from tests.client import Client, served
from tests.stubs import eventually

PROMPT = list(range(100, 200))
OTHER = list(range(1000, 1100))
BLOCKS = len(PROMPT) // 16
HITS = "vllm:external_prefix_cache_hits_total"
LOADED = "vllm:kv_offload_load_bytes_total"


class Subscriber:
    """Collects the events of a server."""

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self._socket = socket
        self._events: list[dict[str, Any]] = []

    def events(self, kind: str, medium: str) -> list[dict[str, Any]]:
        """Returns the events of a kind and a medium that have arrived so far."""
        while self._socket.poll(0):
            _, _, payload = self._socket.recv_multipart()
            self._events += msgpack.decode(payload)[1]
        return [
            event
            for event in self._events
            if event["type"] == kind and event.get("medium") == medium
        ]


@pytest.fixture
def subscriber() -> Iterator[tuple[Subscriber, str]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.SUB)
    socket.subscribe(b"")
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    yield Subscriber(socket), f"tcp://127.0.0.1:{port}"
    socket.close(linger=0)
    context.term()


def ask(client: Client, prompt: list[int]) -> None:
    client.complete(prompt=prompt, max_tokens=1)


def await_connection(client: Client, events: Subscriber) -> None:
    """Sends prompts until events arrive: a publisher drops those before the connection."""
    starts = count(2000, 20)

    def arrives() -> bool:
        first = next(starts)
        ask(client, list(range(first, first + 17)))
        return bool(events.events("BlockStored", "GPU"))

    eventually(arrives)


def hashes_of(events: Subscriber, medium: str) -> list[int]:
    """Returns the stored hashes of a medium, in order."""
    stored = events.events("BlockStored", medium)
    return [block_hash for event in stored for block_hash in event["block_hashes"]]


def test_subscriber_receives_events_of_blocks_that_a_later_prompt_loads(
    subscriber: tuple[Subscriber, str],
) -> None:
    events, endpoint = subscriber
    flags = (
        *("--enable-kvcache", "--kv-cache-size", "8", "--max-model-len", "112"),
        *("--zmq-endpoint", endpoint, "--event-flush-interval", "0s"),
        *("--kv-connector", "offloading", "--kv-offload-size", "1"),
    )
    with served(*flags) as client:
        await_connection(client, events)
        ask(client, PROMPT)
        eventually(lambda: len(device_hashes(events)) == BLOCKS)
        hashes = device_hashes(events)
        eventually(lambda: set(hashes) <= set(hashes_of(events, "CPU")))
        ask(client, OTHER)
        eventually(lambda: set(hashes) <= set(removed_hashes(events)))
        hits = client.metric(HITS)
        loaded_bytes = client.metric(LOADED)
        ask(client, PROMPT)

        assert client.metric(HITS) - hits == BLOCKS * 16
        assert client.metric(LOADED) - loaded_bytes == BLOCKS * 16 * 131_072
        assert client.metric("vllm:kv_offload_store_bytes_total") > 0
        assert client.metric("vllm:kv_offload_cpu_cache_usage_perc") == 0
    host = events.events("BlockStored", "CPU")
    assert all(event["token_ids"] == [] and event["block_size"] == 0 for event in host)


def device_hashes(events: Subscriber) -> list[int]:
    """Returns the hashes of the prompt's blocks on the devices."""
    for event in events.events("BlockStored", "GPU"):
        if event["token_ids"][0] == PROMPT[0]:
            return list(event["block_hashes"])
    return []


def removed_hashes(events: Subscriber) -> list[int]:
    """Returns the hashes of blocks that the devices have removed."""
    removed = events.events("BlockRemoved", "GPU")
    return [block_hash for event in removed for block_hash in event["block_hashes"]]
