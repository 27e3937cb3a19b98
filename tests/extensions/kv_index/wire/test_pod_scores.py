"""An indexer scores the pods that publish to it, over HTTP."""

import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.client import MODEL, Client, served
from tests.hostile.raw_client import wait_until
from tests.hostile.stressed_server import workers_of
from tests.running_server import free_port

PATIENCE_S = 20.0
TOKENS = list(range(1, 101))
TEXT = (
    "The lighthouse keeper writes down every ship that passes, its name and where it is bound for. "
    * 8
)
CHAT = [{"role": "user", "content": TEXT}]


@contextmanager
def indexer(*flags: str) -> Iterator[tuple[Client, str]]:
    port = free_port()
    with served("--role", "indexer", "--kv-index-bind", f"tcp://*:{port}", *flags) as client:
        yield client, f"tcp://127.0.0.1:{port}"


@contextmanager
def pod(endpoint: str, *flags: str) -> Iterator[Client]:
    """A server with a cache that publishes to `endpoint`."""
    publishing = ("--enable-kvcache", "--zmq-endpoint", endpoint, "--event-flush-interval", "20ms")
    with served(*publishing, "--server-dev-mode", *flags) as client:
        yield client


def name(client: Client) -> str:
    return f"127.0.0.1:{client.server.port}"


def wait_until_equal(read: Callable[[], object], expected: object) -> None:
    """Reads a value until it is the expected one."""
    deadline = time.monotonic() + PATIENCE_S
    value = read()
    while value != expected:
        assert time.monotonic() < deadline, value
        time.sleep(0.05)
        value = read()


def scores(index: Client, **body: Any) -> Any:
    """Pod -> matched blocks of a prompt of token ids."""
    answer = index.post("/score_tokens", {"tokens": TOKENS, **body})
    assert answer.status_code == 200, answer.text
    return {pod: score["matched"] for pod, score in answer.json()["scores"].items()}


def wait_for_scores(index: Client, counts: dict[str, int], **body: Any) -> None:
    """Waits until the pods have these counts of matched blocks of a prompt of token ids."""
    wait_until_equal(partial(scores, index, **body), counts)


def wait_for_pod(index: Client, client: Client, path: str, body: dict[str, Any]) -> None:
    """Waits until a route scores a pod, and no other."""

    def scored_pods() -> list[str]:
        return list(index.post(path, body).json())

    wait_until_equal(scored_pods, [name(client)])


@pytest.fixture(scope="module")
def fleet() -> Iterator[tuple[Client, Client, Client]]:
    """An indexer and two pods that it knows. The first pod has an adapter."""
    adapter = ("--lora-modules", "first=/adapters/first")
    with (
        indexer() as (index, endpoint),
        pod(endpoint, *adapter) as first_pod,
        pod(endpoint) as second_pod,
    ):
        for client in (first_pod, second_pod):
            attempts = 0
            while name(client) not in (index.get("/kv/index").json()["pods"] or ()):
                attempts += 1
                client.complete(prompt=[attempts + 500] * 32)
                time.sleep(0.1)
        yield index, first_pod, second_pod


def test_pods_are_scored_by_their_cached_blocks(fleet: tuple[Client, Client, Client]) -> None:
    index, first_pod, second_pod = fleet
    assert scores(index) == {}
    assert index.post("/score_completions", {"prompt": "Hi"}).text == "{}", "too short for a score"
    first_pod.complete(prompt=TOKENS)
    wait_for_scores(index, {name(first_pod): 6})
    second_pod.complete(prompt=TOKENS[:50])
    wait_for_scores(index, {name(first_pod): 6, name(second_pod): 3})
    assert scores(index, pods=[name(second_pod), "nobody"]) == {name(second_pod): 3}
    assert scores(index, tokens=TOKENS[:15]) == {}
    answer = index.post("/score_tokens", {"tokens": TOKENS}).json()
    assert answer["blocks"] == 6
    card = {"score": 3.0, "matched": 3, "match_ratio": 0.5, "tiers": {"gpu": 3}, "rank": 0}
    assert answer["scores"][name(second_pod)] == card


def test_pods_that_cache_blocks_of_the_prompt_or_chat_are_scored(
    fleet: tuple[Client, Client, Client],
) -> None:
    index, first_pod, _ = fleet
    first_pod.complete(prompt=TEXT)
    wait_for_pod(index, first_pod, "/score_completions", {"prompt": TEXT})
    first_pod.chat(TEXT)
    wait_for_pod(index, first_pod, "/score_chat_completions", {"messages": CHAT})
    blocks = index.post("/score_chat_completions", {"messages": CHAT, "model": MODEL}).json()[
        name(first_pod)
    ]
    assert blocks == first_pod.post("/tokenize", {"messages": CHAT}).json()["count"] // 16


def test_scores_are_separate_for_each_adapter_and_cache_salt(
    fleet: tuple[Client, Client, Client],
) -> None:
    index, first_pod, _ = fleet
    tokens = [7] * 64
    first_pod.complete(prompt=tokens, model="first")
    wait_for_scores(index, {name(first_pod): 4}, tokens=tokens, model="first")
    assert scores(index, tokens=tokens, lora="first") == {name(first_pod): 4}
    first_pod.complete(prompt=TEXT, model="first")
    body = {"prompt": TEXT, "model": "first"}
    wait_for_pod(index, first_pod, "/score_completions", body)
    assert scores(index, tokens=tokens) == {}
    first_pod.complete(prompt=tokens, cache_salt="mine")
    wait_for_scores(index, {name(first_pod): 4}, tokens=tokens, cache_salt="mine")
    assert scores(index, tokens=tokens, cache_salt="yours") == scores(index, tokens=tokens) == {}
    first_pod.complete(prompt=[8] * 64)
    wait_for_scores(index, {name(first_pod): 4}, tokens=[8] * 64)
    assert first_pod.post("/reset_prefix_cache").status_code == 200
    first_pod.complete(prompt=[9])  # as in vLLM, the next step publishes the reset
    wait_for_scores(index, {}, tokens=[8] * 64)


def test_state_route_lists_the_pods_and_streams_of_the_index(
    fleet: tuple[Client, Client, Client],
) -> None:
    index, first_pod, second_pod = fleet
    for client in (first_pod, second_pod):
        client.complete(prompt=[10] * 64)
    wait_for_scores(index, {name(first_pod): 4, name(second_pod): 4}, tokens=[10] * 64)
    state = index.get("/kv/index").json()
    assert set(state["pods"]) == {name(first_pod), name(second_pod)}
    assert {stream["pod"] for stream in state["streams"]} == set(state["pods"])
    assert all(stream["last_sequence"] >= 0 for stream in state["streams"])
    assert state["backend"] == "memory" and state["size"]["blocks"] > 0
    families = {f.name for f in text_string_to_metric_families(index.get("/metrics").text)}
    assert {
        "kvcache_index_lookup_requests",
        "kvcache_index_admissions",
        "kvcache_events_pods",
    } <= families


def test_error_for_an_invalid_score_request_names_the_field(
    fleet: tuple[Client, Client, Client],
) -> None:
    for path, body, status, param in (
        ("completions", {"prompt": TEXT, "model": "unknown"}, 404, "model"),
        ("completions", {"model": MODEL}, 400, "body.prompt"),
        ("completions", {"prompt": 7}, 400, "body.prompt"),
        ("completions", {"prompt": "\ud800" * 300}, 400, None),
        ("chat_completions", {"messages": []}, 400, None),
        ("chat_completions", {"messages": CHAT, "chat_template": "{{ 1 }}"}, 400, None),
        ("tokens", {"tokens": [-1]}, 400, "body.tokens.0"),
        ("tokens", {"tokens": [2**32]}, 400, "body.tokens.0"),
        ("tokens", {"tokens": "all"}, 400, "body.tokens"),
    ):
        answer = fleet[0].post(f"/score_{path}", body)
        assert answer.status_code == status, answer.text
        assert param is None or answer.json()["error"]["param"] == param


def test_server_indexes_its_own_cache() -> None:
    flags = ("--trust-request-chat-template", "-v", "5")
    with pod("", "--kv-index", "--kv-index-chat-answer", "templated", *flags) as client:
        client.complete(prompt=TOKENS)
        wait_for_scores(client, {name(client): 6})
        assert '"score":6,' in client.post("/score_tokens", {"tokens": TOKENS}).text
        traced = client.server.log()
        assert re.search(r"TRACE .*: score base: tokens \[1, 2, 3,", traced)
        assert re.search(r"TRACE .*: score base: keys \[\d+, .*\], scores \[PodScore\(pod=", traced)
        body = {"messages": CHAT, "chat_template": "{{ messages[0].content }} and so on"}
        assert (
            client.post("/score_chat_completions", body)
            .json()["templated_messages"]
            .endswith("so on")
        )
        client.chat(TEXT)
        answer = client.post("/score_chat_completions", {"messages": CHAT}).json()
        assert TEXT.strip() in answer["templated_messages"]
        assert set(answer) == {"podScores", "templated_messages"}


def test_indexer_replays_the_events_of_pods_added_to_the_list_file(
    tmp_path: Path,
) -> None:
    """The indexer also requests the batches that it missed."""
    events = free_port()
    replays = free_port()
    listed = tmp_path / "pods"
    listed.write_text("# none yet\n")
    flags = ("--kv-index-pods", f"file:{listed}")
    replay = ("--kv-events-replay-endpoint", f"tcp://*:{replays}")
    with served("--role", "indexer", *flags) as index, pod(f"tcp://*:{events}", *replay) as client:
        client.complete(prompt=TOKENS)
        listed.write_text(f"tcp://127.0.0.1:{events};replay=tcp://127.0.0.1:{replays}\n")

        def scores_after_a_request() -> Any:
            client.complete(prompt=[9] * 32)
            return scores(index)

        wait_until_equal(scores_after_a_request, {name(client): 6})


def scores_after_recaching(index: Client, client: Client) -> Any:
    """Scores after the pod has reset its cache and cached the prompt again: none yet, or all blocks."""
    client.post("/reset_prefix_cache")
    client.complete(prompt=TOKENS)
    counts = scores(index)
    assert counts in ({}, {name(client): 6})
    return counts


def test_indexer_scores_newly_cached_blocks_after_a_reload() -> None:
    with indexer() as (index, endpoint), pod(endpoint) as client:
        [first] = workers_of(index.server)
        index.server.process.send_signal(signal.SIGHUP)

        def is_worker_replaced() -> bool:
            return first not in workers_of(index.server)

        wait_until(is_worker_replaced)
        wait_until_equal(partial(scores_after_recaching, index, client), {name(client): 6})
