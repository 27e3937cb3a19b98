"""Limits of several ranks behind one port, with requests that do not end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import requests

from tests.client import Client, served

RANK = "X-data-parallel-rank"
TWO_RANKS = ("--data-parallel-mode=internal", "--data-parallel-size=2", "--time-to-first-token=1h")
BODY = {"prompt": "Hello", "max_tokens": 2}


@contextmanager
def streams(client: Client, *ranks: int | None) -> Iterator[None]:
    """Streams without an end, in order, each on the given rank, or on the least busy one."""
    with ExitStack() as stack:
        for rank in ranks:
            headers = {} if rank is None else {RANK: str(rank)}
            answer = requests.post(
                f"{client.server.url}/v1/completions",
                json={**BODY, "stream": True},
                headers=headers,
                stream=True,
                timeout=20,
            )
            stack.enter_context(answer)
            assert answer.status_code == 200
        yield


def numbers(client: Client, family: str) -> list[float]:
    """The numbers of the ranks' series in order."""
    page = client.get("/metrics").text
    return [float(text) for text in re.findall(rf"^{family}\{{engine=.*\}} (\S+)$", page, re.M)]


def test_idle_rank_accepts_requests_while_another_rank_is_full() -> None:
    flags = ("--max-num-seqs=1", "--max-waiting-queue-length=0")
    with served(*TWO_RANKS, *flags) as client, streams(client, 1, None):
        assert numbers(client, "vllm:num_requests_running") == [1.0, 1.0]
        assert client.post("/v1/completions", BODY).status_code == 429


def test_new_requests_go_to_the_rank_with_fewer_running_requests() -> None:
    """Three on rank 0 balance three on rank 1, wherever the scan starts."""
    with served(*TWO_RANKS) as client, streams(client, 0, 0, 0, None, None, None):
        assert numbers(client, "vllm:num_requests_running") == [3.0, 3.0]


def test_max_num_queued_reqs_applies_to_all_ranks_together() -> None:
    with served(*TWO_RANKS, "--max-num-queued-reqs=2") as client, streams(client, None, None):
        assert client.post("/v1/completions", BODY).status_code == 503
        rejections = client.metric("vllm:admission_rejections_total", reason="max_num_queued_reqs")
        assert rejections == 1


def test_shutdown_ends_the_running_requests_of_every_rank() -> None:
    with served(*TWO_RANKS, "--shutdown-mode=vllm") as client, streams(client, 0, 1):
        assert client.server.stop() == 0
