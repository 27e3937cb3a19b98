"""Engines of several ranks in one process: pinned requests, local ranks, commands and limits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from scripts.surface import is_flag
from tests.client import Client, in_process

INTERNAL = "--data-parallel-mode=internal"
RANK = "X-data-parallel-rank"
TOKENS = re.compile(r'^vllm:generation_tokens_total\{engine="(\d+)".*\} (\S+)$', re.M)


@pytest.fixture
def client() -> Iterator[Client]:
    with in_process(INTERNAL, "--data-parallel-size=2", "--enable-kvcache") as client:
        yield client


def generated(client: Client) -> Counter[int]:
    """Generated tokens of each rank."""
    rows = TOKENS.findall(client.get("/metrics").text)
    return Counter({int(rank): int(float(tokens)) for rank, tokens in rows})


def complete(client: Client, rank: object = None, **fields: Any) -> Any:
    headers = {} if rank is None else {RANK: str(rank)}
    body = {"prompt": "Hello", "max_tokens": 2, "ignore_eos": True, **fields}
    return client.post("/v1/completions", body, headers=headers)


def test_first_request_goes_to_the_second_rank(client: Client) -> None:
    """The start of the scan moves on before the first request, too."""
    complete(client)
    assert generated(client) == Counter({0: 0, 1: 2})


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "Hello"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}),
        ("/v1/completions", {"prompt": "Hello", "n": 3}),
        ("/v1/completions", {"prompt": ["Hello", "Goodbye"]}),
    ],
)
def test_rank_header_selects_the_rank_of_completions_and_chats(
    client: Client, path: str, body: dict[str, Any]
) -> None:
    fields = {**body, "max_tokens": 2, "ignore_eos": True}
    for _ in range(3):
        assert client.post(path, fields, headers={RANK: "0"}).status_code == 200
    assert generated(client)[0] > 0 and generated(client)[1] == 0


@pytest.mark.parametrize(
    ("flags", "ranks"),
    [
        (("--data-parallel-size=4", "--data-parallel-rank=2"), [2]),
        (
            (
                "--data-parallel-size=4",
                "--data-parallel-size-local=2",
                "--data-parallel-start-rank=2",
            ),
            [2, 3],
        ),
        (
            (
                "--data-parallel-size=8",
                "--data-parallel-size-local=3",
                "--data-parallel-start-rank=8",
            ),
            [8, 9, 10],
        ),
    ],
)
def test_rank_header_is_relative_to_the_first_rank_of_the_node(
    flags: tuple[str, ...], ranks: list[int]
) -> None:
    with in_process(INTERNAL, *flags) as client:
        for position in range(len(ranks)):
            for _ in range(position + 1):
                assert complete(client, position).status_code == 200
        assert generated(client) == Counter(
            {rank: 2 * (position + 1) for position, rank in enumerate(ranks)}
        )
        for requested in (-1, len(ranks), ranks[-1] + 10):
            rejected = complete(client, requested)
            message = f"data_parallel_rank {requested} is out of range [0, {len(ranks)})."
            assert (rejected.status_code, rejected.json()["error"]["message"]) == (400, message)


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_of_a_request_are_balanced_across_ranks(client: Client, stream: bool) -> None:
    prompts = ["One", "Two", "Three", "Four"]
    answer = complete(client, prompt=prompts, n=2, stream=stream)
    assert answer.status_code == 200
    assert generated(client) == Counter({0: 8, 1: 8})
    if not stream:
        indexes = [choice["index"] for choice in answer.json()["choices"]]
        assert indexes == list(range(8))
        assert answer.json()["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize(
    ("prompts", "n", "status"), [(4, 1, 200), (2, 2, 200), (5, 1, 429), (1, 3, 429)]
)
def test_prompts_of_one_request_use_the_slots_and_queues_of_all_ranks(
    prompts: int, n: int, status: int
) -> None:
    limits = ("--max-num-seqs=1", "--max-waiting-queue-length=1")
    with in_process(INTERNAL, "--data-parallel-size=2", *limits) as client:
        assert complete(client, prompt=["Hello"] * prompts, n=n).status_code == status
        assert complete(client, prompt=["Hello"] * 4).status_code == 200


def test_metrics_of_all_ranks_declare_each_family_once() -> None:
    for flags in (
        ("--lora-modules=a=/a", "--enable-lora", "--simulator-metrics", "--lora-residency-metrics"),
        ("--task=pooling",),
        ("--console", "--kv-cache-metrics", "--enable-kvcache"),
        ("--kv-index", "--enable-kvcache"),
        ("--profile=qwen3-14b-h100", "--enable-kvcache"),
    ):
        with in_process(INTERNAL, "--data-parallel-size=3", *filter(is_flag, flags)) as client:
            page = client.get("/metrics").text
            lines = [
                line.rpartition(" ")[0] for line in page.splitlines() if not line.startswith("#")
            ]
            assert [line for line, count in Counter(lines).items() if count > 1] == []
            types = re.findall(r"^# TYPE (\S+)", page, re.M)
            assert [name for name, count in Counter(types).items() if count > 1] == []
