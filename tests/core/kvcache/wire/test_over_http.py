"""A server with a cache, asked over HTTP, and a subscriber that reads what it publishes."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any
from uuid import UUID

import msgspec
import pytest
import requests
import zmq

from tests.client import MODEL, Client, served
from tests.core.kvcache.test_recording import BLOCK_SIZE, RECORDING
from tests.running_server import free_port, running_gunicorn

PATIENCE_S = 20.0
FLUSH_S = 0.05
MAX_PROBES = 20
PROBE_S = 1.0
"""Longest wait for the event of a probe."""
CACHE = ("--enable-kvcache", "--block-size", "32", "--kv-cache-size", "66")
PROMPT: list[int] = RECORDING[0]["prompt"]


class Subscriber:
    """Binds a port as an index does, and reads what publishers that connect to it say.

    A thread reads all the time: ZMQ tells a new publisher what is wanted only while somebody reads.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._socket = context.socket(zmq.SUB)
        self._socket.linger = 0
        self._socket.subscribe("")
        self._joined = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self.port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.topics: set[str] = set()
        self.sequences: list[int] = []
        self._events: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def wait_for_publisher(self, complete: Callable[[Sequence[int]], object]) -> None:
        """Completes prompts of token ids until an event arrives, and reads it.

        What a publisher says before it knows of us is lost, and it has to read our subscription
        after the handshake.
        """
        assert self._joined.poll(int(PATIENCE_S * 1000)), "no publisher came"
        for token_id in range(1, MAX_PROBES):
            complete([token_id] * BLOCK_SIZE)
            if self._hears(token_id):
                return
        raise AssertionError("no event came")

    def _hears(self, token_id: int) -> bool:
        """Returns whether the event of a probe comes soon; events of earlier probes are dropped."""
        with suppress(Empty):
            while self._events.get(timeout=PROBE_S)["token_ids"][0] != token_id:
                pass
            return True
        return False

    def events(self, count: int) -> list[dict[str, Any]]:
        return [self._events.get(timeout=PATIENCE_S) for _ in range(count)]

    def has_more(self) -> bool:
        """Whether events come within three flush intervals."""
        time.sleep(3 * FLUSH_S)
        return not self._events.empty()

    def close(self) -> None:
        self._end.set()
        self._thread.join()
        self._socket.disable_monitor()
        self._joined.close()
        self._socket.close()

    def _read(self) -> None:
        while not self._end.is_set():
            if self._socket.poll(20):
                topic, sequence, payload = self._socket.recv_multipart()
                self.topics.add(topic.decode())
                self.sequences.append(int.from_bytes(sequence, "big"))
                for event in msgspec.msgpack.decode(payload)[1]:
                    self._events.put(event)


@contextmanager
def subscribed() -> Iterator[Subscriber]:
    with zmq.Context() as context:
        subscriber = Subscriber(context)
        try:
            yield subscriber
        finally:
            subscriber.close()


@contextmanager
def published(*flags: str, **env: str) -> Iterator[tuple[Client, Subscriber]]:
    with subscribed() as subscriber:
        endpoint = f"tcp://127.0.0.1:{subscriber.port}"
        flush = ("--event-flush-interval", f"{FLUSH_S}s", "--zmq-endpoint", endpoint)
        with served(*CACHE, *flush, "--enable-prompt-tokens-details", *flags, **env) as client:
            subscriber.wait_for_publisher(lambda ids: client.complete(prompt=ids))
            yield client, subscriber


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Client, Subscriber]]:
    adapters = ("--lora-modules", "first=/adapters/first", "second=/adapters/second")
    with published("--server-dev-mode", "--kv-cache-metrics", *adapters) as publishing:
        yield publishing


@pytest.fixture
def empty(shared: tuple[Client, Subscriber]) -> tuple[Client, Subscriber]:
    """That server with an empty cache, and its subscriber, who has read all events so far."""
    client, subscriber = shared
    assert client.post("/reset_prefix_cache").status_code == 200
    client.complete(prompt=[1])
    while subscriber.events(1)[0]["type"] != "AllBlocksCleared":
        pass
    return shared


Both = tuple[Client, Subscriber]


def cached(answer: Any) -> int:
    tokens: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tokens


def test_events_equal_those_recorded_from_vllm() -> None:
    """Blocks of the reply differ: another model wrote it."""
    with published("--use-vllm-map-event-format", PYTHONHASHSEED="0") as (client, subscriber):
        for request in RECORDING:
            wanted = [event for batch in request["batches"] for event in batch]
            answer = client.complete(
                prompt=request["prompt"],
                max_tokens=len(request["reply"]),
                **({"cache_salt": request["salt"]} if request["salt"] else {}),
            )
            assert cached(answer) == request["cached_tokens"], request["name"]
            for event, fact in zip(subscriber.events(len(wanted)), wanted, strict=True):
                of_prompt(request["prompt"], event, fact)
        assert not subscriber.has_more()
        assert subscriber.sequences == sorted(set(subscriber.sequences))
        assert subscriber.topics == {f"kv@127.0.0.1:{client.server.port}@{MODEL}"}


def of_prompt(prompt: list[int], event: dict[str, Any], fact: dict[str, Any]) -> None:
    """Compare an event as far as it is about the prompt."""
    start = fact["first_block"] * BLOCK_SIZE
    end = start + BLOCK_SIZE * len(event["block_hashes"])
    written_by_us = end > len(prompt)
    of_reply = (
        {"block_hashes", "token_ids", "first_block"}
        if written_by_us
        else {"token_ids", "first_block"}
    )
    assert {k: v for k, v in event.items() if k not in of_reply} == {
        k: v for k, v in fact.items() if k not in of_reply
    }
    known_tokens = min(end, len(prompt)) - start
    assert event["token_ids"][:known_tokens] == prompt[start : start + known_tokens]


def test_cache_hits_are_shown_in_metrics_and_usage(empty: Both) -> None:
    client, subscriber = empty
    names = ("prefix_cache_queries_total", "prefix_cache_hits_total", "prompt_tokens_cached_total")
    values_before = [client.metric(f"vllm:{name}") for name in names]
    assert cached(client.complete(prompt=PROMPT)) == 0
    assert cached(client.complete(prompt=PROMPT)) == 96
    counted = [
        client.metric(f"vllm:{name}") - so_far
        for name, so_far in zip(names, values_before, strict=True)
    ]
    assert counted == [200, 96, 96] and client.metric("vllm:kv_cache_usage_perc") == 0
    assert [event["type"] for event in subscriber.events(1)] == ["BlockStored"]
    assert client.post("/reset_prefix_cache").status_code == 200
    assert not subscriber.has_more(), "the next step tells it"
    assert cached(client.complete(prompt=PROMPT)) == 0
    assert [event["type"] for event in subscriber.events(2)] == ["AllBlocksCleared", "BlockStored"]


USAGE: dict[str, Any] = {
    "/v1/chat/completions": lambda usage: (
        usage["prompt_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
        usage["prompt_tokens_details"]["created_cache_tokens"],
    ),
    "/v1/messages": lambda usage: (
        usage["input_tokens"]
        + usage["cache_read_input_tokens"]
        + usage["cache_creation_input_tokens"],
        usage["cache_read_input_tokens"],
        usage["cache_creation_input_tokens"],
    ),
    "/v1/responses": lambda usage: (
        usage["input_tokens"],
        usage["input_tokens_details"]["cached_tokens"],
        usage["input_tokens_details"]["cache_write_tokens"],
    ),
}
"""All tokens of a prompt, those that were cached, and those that are from now on."""


def told_usage(text: str) -> Any:
    """The last `usage` of an answer, whole or a stream."""
    lines = [
        line.removeprefix("data: ")
        for line in text.splitlines()
        if line.startswith(("data: {", "{"))
    ]
    usages = [
        chunk.get("usage") or chunk.get("response", {}).get("usage")
        for chunk in map(json.loads, lines)
    ]
    return [usage for usage in usages if usage][-1]


def test_usage_distinguishes_cached_and_newly_stored_tokens(empty: Both) -> None:
    client, _ = empty
    for number, (path, stream) in enumerate(
        (family, stream) for family in USAGE for stream in (False, True)
    ):
        text = f"{number} " + "one two three four five six seven " * 30
        body: dict[str, Any] = {"model": MODEL, "stream": stream}
        if path == "/v1/responses":
            body |= {"input": text, "max_output_tokens": 2}
        else:
            body |= {"messages": [{"role": "user", "content": text}], "max_tokens": 2}
        if path == "/v1/chat/completions" and stream:
            body["stream_options"] = {"include_usage": True}
        new, cached_usage = (
            USAGE[path](told_usage(client.post(path, body).text)) for _ in range(2)
        )
        tokens = new[0]
        whole = new[0] // 32 * 32
        assert new == (tokens, 0, whole) and tokens > 64, (path, stream)
        cached_tokens = (tokens - 1) // 32 * 32
        assert cached_usage == (tokens, cached_tokens, whole - cached_tokens), (path, stream)


def test_every_rank_publishes_events_on_its_own_port() -> None:
    first = free_port(2)
    env = {
        "SIM_FORCE_DUMMY_TOKENIZER": "1",
        "SIM_ENABLE_KVCACHE": "1",
        "SIM_ZMQ_ENDPOINT": f"tcp://*:{first}",
        "SIM_EVENT_FLUSH_INTERVAL": f"{FLUSH_S}s",
        "SIM_DATA_PARALLEL_SIZE": "2",
    }
    with running_gunicorn(env=env, ports=2) as server:
        sources = requests.get(f"{server.url}/kv_event_sources", timeout=20).json()
        assert [source["endpoint"] for source in sources.values()] == [
            f"tcp://*:{first + rank}" for rank in range(2)
        ]
        for rank in range(2):
            assert rank_of_an_event(first + rank, f"http://127.0.0.1:{server.port + rank}") == rank
        urls = [f"http://127.0.0.1:{server.port + rank}/query" for rank in (0, 1, 0)]
        rank_sources = [requests.get(url, timeout=20).json() for url in urls]
    assert rank_sources[0] == rank_sources[1] == rank_sources[2], (
        "every rank tells all engine ids, and goes on telling them"
    )
    assert (
        list(rank_sources[0]) == ["0", "1"]
        and len({UUID(event_source["engine_id"]) for event_source in rank_sources[0].values()}) == 2
    )


def rank_of_an_event(port: int, url: str) -> int:
    """The rank that an event from `port` tells when the server at `url` is asked."""
    end = time.monotonic() + PATIENCE_S
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.linger = 0
        socket.subscribe("kv@")
        socket.connect(f"tcp://127.0.0.1:{port}")
        for first_token in count(1):
            body = {"prompt": [first_token] * 64, "max_tokens": 1}
            requests.post(f"{url}/v1/completions", json=body, timeout=20).raise_for_status()
            if socket.poll(200):
                break
            assert time.monotonic() < end
        *_, payload = socket.recv_multipart()
    rank: int = msgspec.msgpack.decode(payload)[2]
    return rank


def test_server_of_one_rank_lists_only_its_own_event_endpoint() -> None:
    alone = ("--data-parallel-size", "4", "--data-parallel-rank", "2")
    with served(*alone, "--enable-kvcache", "--zmq-endpoint", "tcp://127.0.0.1:5600") as client:
        sources = client.get("/kv_event_sources").json()
        assert {rank: source["endpoint"] for rank, source in sources.items()} == {
            "2": "tcp://127.0.0.1:5602"
        }
        assert list(client.get("/query").json()) == ["0", "1", "2", "3"]


def test_request_header_sets_the_finish_reason_to_cache_threshold() -> None:
    """With simulator.md's header, also where no cache is played."""
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": "Hello"},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello"}]},
    }
    with served() as client:
        for path, body in bodies.items():
            for header, reason in (("true", "cache_threshold"), ("F", "length")):
                headers = {"X-Cache-Threshold-Finish-Reason": header}
                answer = client.post(
                    path, body | {"max_tokens": 1, "ignore_eos": True}, headers=headers
                )
                assert answer.json()["choices"][0]["finish_reason"] == reason
            wrong = client.post(path, body, headers={"X-Cache-Threshold-Finish-Reason": "maybe"})
            assert wrong.status_code == 400
