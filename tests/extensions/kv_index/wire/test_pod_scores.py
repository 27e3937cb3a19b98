"""An indexer and the pods that publish to it, asked over HTTP for scores."""

import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


def until(told: Callable[[], Any], wanted: Any) -> None:
    """Ask until the answer is `wanted`."""
    end = time.monotonic() + PATIENCE_S
    while (answer := told()) != wanted:
        assert time.monotonic() < end, answer
        time.sleep(0.05)


def scores(index: Client, **body: Any) -> Any:
    """Pod -> matched blocks of a prompt of token ids."""
    answer = index.post("/score_tokens", {"tokens": TOKENS, **body})
    assert answer.status_code == 200, answer.text
    return {pod: score["matched"] for pod, score in answer.json()["scores"].items()}


@pytest.fixture(scope="module")
def fleet() -> Iterator[tuple[Client, Client, Client]]:
    """An indexer and two pods, the first of which has an adapter; both have seen a conversation or
    text.
    """
    adapter = ("--lora-modules", "first=/adapters/first")
    with indexer() as (index, endpoint), pod(endpoint, *adapter) as one, pod(endpoint) as other:
        for client in (one, other):
            asked = 0
            while name(client) not in (index.get("/kv/index").json()["pods"] or ()):
                asked += 1
                client.complete(prompt=[asked + 500] * 32)
                time.sleep(0.1)
        yield index, one, other


def test_pods_are_scored_by_what_they_have(fleet: tuple[Client, Client, Client]) -> None:
    index, one, other = fleet
    assert scores(index) == {}
    assert index.post("/score_completions", {"prompt": "Hi"}).text == "null", (
        "too short for a score"
    )
    one.complete(prompt=TOKENS)
    until(lambda: scores(index), {name(one): 6})
    other.complete(prompt=TOKENS[:50])
    until(lambda: scores(index), {name(one): 6, name(other): 3})
    assert scores(index, pods=[name(other), "nobody"]) == {name(other): 3}
    assert scores(index, tokens=TOKENS[:15]) == {}
    answer = index.post("/score_tokens", {"tokens": TOKENS}).json()
    assert answer["blocks"] == 6
    card = {"score": 3.0, "matched": 3, "match_ratio": 0.5, "tiers": {"gpu": 3}, "rank": 0}
    assert answer["scores"][name(other)] == card


def test_texts_and_conversations_meet_what_the_pods_made_of_them(
    fleet: tuple[Client, Client, Client],
) -> None:
    index, one, _ = fleet
    one.complete(prompt=TEXT)
    until(lambda: list(index.post("/score_completions", {"prompt": TEXT}).json()), [name(one)])
    one.chat(TEXT)
    until(
        lambda: list(index.post("/score_chat_completions", {"messages": CHAT}).json()), [name(one)]
    )
    blocks = index.post("/score_chat_completions", {"messages": CHAT, "model": MODEL}).json()[
        name(one)
    ]
    assert blocks == one.post("/tokenize", {"messages": CHAT}).json()["count"] // 16


def test_adapters_and_salts_are_told_apart_and_a_reset_cache_scores_nothing(
    fleet: tuple[Client, Client, Client],
) -> None:
    index, one, _ = fleet
    tokens = [7] * 64
    one.complete(prompt=tokens, model="first")
    until(lambda: scores(index, tokens=tokens, model="first"), {name(one): 4})
    assert scores(index, tokens=tokens, lora="first") == {name(one): 4}
    one.complete(prompt=TEXT, model="first")
    asked = {"prompt": TEXT, "model": "first"}
    until(lambda: list(index.post("/score_completions", asked).json()), [name(one)])
    assert scores(index, tokens=tokens) == {}
    one.complete(prompt=tokens, cache_salt="mine")
    until(lambda: scores(index, tokens=tokens, cache_salt="mine"), {name(one): 4})
    assert scores(index, tokens=tokens, cache_salt="yours") == scores(index, tokens=tokens) == {}
    one.complete(prompt=[8] * 64)
    until(lambda: scores(index, tokens=[8] * 64), {name(one): 4})
    assert one.post("/reset_prefix_cache").status_code == 200
    one.complete(prompt=[9])  # an index hears of it with the next step, as from vLLM
    until(lambda: scores(index, tokens=[8] * 64), {})


def test_the_state_tells_of_pods_and_losses(fleet: tuple[Client, Client, Client]) -> None:
    index, one, other = fleet
    for client in (one, other):
        client.complete(prompt=[10] * 64)
    until(lambda: scores(index, tokens=[10] * 64), {name(one): 4, name(other): 4})
    state = index.get("/kv/index").json()
    assert set(state["pods"]) == {name(one), name(other)}
    assert {stream["pod"] for stream in state["streams"]} == set(state["pods"])
    assert all(stream["last_sequence"] >= 0 for stream in state["streams"])
    assert state["backend"] == "memory" and state["size"]["blocks"] > 0
    families = {f.name for f in text_string_to_metric_families(index.get("/metrics").text)}
    assert {
        "kvcache_index_lookup_requests",
        "kvcache_index_admissions",
        "kvcache_events_pods",
    } <= families


def test_bad_requests_are_told_as_vllm_would(fleet: tuple[Client, Client, Client]) -> None:
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


def test_a_server_indexes_its_own_cache() -> None:
    flags = ("--trust-request-chat-template", "-v", "5")
    with pod("", "--kv-index", "--kv-index-chat-answer", "templated", *flags) as client:
        client.complete(prompt=TOKENS)
        until(lambda: scores(client), {name(client): 6})
        assert '"score":6,' in client.post("/score_tokens", {"tokens": TOKENS}).text
        traced = client.server.log()
        assert re.search(r"TRACE .*: score base: tokens \[1, 2, 3,", traced)
        assert re.search(r"TRACE .*: score base: keys \[\d+, .*\], scores \[PodScore\(pod=", traced)
        own = {"messages": CHAT, "chat_template": "{{ messages[0].content }} and so on"}
        assert (
            client.post("/score_chat_completions", own)
            .json()["templated_messages"]
            .endswith("so on")
        )
        client.chat(TEXT)
        answer = client.post("/score_chat_completions", {"messages": CHAT}).json()
        assert TEXT.strip() in answer["templated_messages"]
        assert set(answer) == {"podScores", "templated_messages"}


def test_pods_may_be_connected_to(tmp_path: Path) -> None:
    """A file names the pods; one that is added is found, and its missed batches are asked for."""
    events, replays = free_port(), free_port()
    listed = tmp_path / "pods"
    listed.write_text("# none yet\n")
    flags = ("--kv-index-pods", f"file:{listed}")
    replay = ("--kv-events-replay-endpoint", f"tcp://*:{replays}")
    with served("--role", "indexer", *flags) as index, pod(f"tcp://*:{events}", *replay) as client:
        client.complete(prompt=TOKENS)
        listed.write_text(f"tcp://127.0.0.1:{events};replay=tcp://127.0.0.1:{replays}\n")

        def told() -> Any:
            client.complete(prompt=[9] * 32)
            return scores(index)

        until(told, {name(client): 6})


def scores_once_cached_anew(index: Client, client: Client) -> Any:
    """Scores after the pod has forgotten the prompt and been asked for it again:

    none yet, or all of it.
    """
    client.post("/reset_prefix_cache")
    client.complete(prompt=TOKENS)
    told = scores(index)
    assert told in ({}, {name(client): 6})
    return told


def test_an_indexer_lives_through_a_reload() -> None:
    with indexer() as (index, endpoint), pod(endpoint) as client:
        [first] = workers_of(index.server)
        index.server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: first not in workers_of(index.server))
        until(lambda: scores_once_cached_anew(index, client), {name(client): 6})
