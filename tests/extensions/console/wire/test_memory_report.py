"""GET /admin/memory explains the memory that requests take."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from tests.client import Client, served
from tests.hostile.stressed_server import workers_of

LATENCY = ("--inter-token-latency", "1ms", "--time-to-first-token", "5ms")
CLIENTS = 8
REQUESTS = 200
"""Requests of each client."""
COMPUTED = ("chat templates", "parts of texts", "plain chats", "plain prompts", "schemas", "words")
"""Caches within `cache-memory` that the requests below fill."""
OWN_LIMITS = ("journal", "console requests", "console history", "responses")


@pytest.fixture
def client() -> Iterator[Client]:
    with served("--console", "--cache-memory", "4MB", *LATENCY) as client:
        yield client


def resident_bytes(client: Client) -> int:
    [worker] = workers_of(client.server)
    pages = int(Path(f"/proc/{worker}/statm").read_text().split()[1])
    return pages * 4096


def memory_of(client: Client) -> dict[str, dict[str, int]]:
    caches: dict[str, dict[str, int]] = json.loads(client.get("/admin/memory").content)["caches"]
    return caches


def total_bytes(client: Client) -> int:
    return sum(cache["size_bytes"] for cache in memory_of(client).values())


def send_prompts(client: Client, seed: int, count: int) -> None:
    random = Random(seed)
    for number in range(count):
        words = " ".join(random.choice("abcdefghij") * 5 for _ in range(60))
        messages = [{"role": "user", "content": f"{seed} {number} {words}"}]
        body = {"messages": messages, "max_tokens": 60, "stream": number % 2 == 0}
        client.post("/v1/chat/completions", body).raise_for_status()


def send_all(client: Client, count: int) -> None:
    with ThreadPoolExecutor(CLIENTS) as pool:
        for sent in [pool.submit(send_prompts, client, seed, count) for seed in range(CLIENTS)]:
            sent.result()
    time.sleep(3)  # until the idle worker has collected its garbage


def test_reported_sizes_explain_the_growth_and_keep_their_limits(client: Client) -> None:
    send_all(client, 20)
    first_resident_bytes = resident_bytes(client)
    first_total_bytes = total_bytes(client)
    send_all(client, REQUESTS)
    growth_bytes = resident_bytes(client) - first_resident_bytes
    explained_bytes = total_bytes(client) - first_total_bytes
    assert explained_bytes >= 0.75 * growth_bytes
    caches = memory_of(client)
    assert set(OWN_LIMITS) <= caches.keys()
    computed = [caches[name] for name in COMPUTED if name in caches]
    assert sum(cache["limit_bytes"] for cache in computed) <= 4_000_000
    assert sum(cache["size_bytes"] for cache in computed) <= 4_000_000
