"""An engine with fewer places or KV blocks for a while: requests wait until it is let go."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import pytest

from tests.client import Client, served
from tests.hostile.raw_client import wait_for_value

RUNNING = "vllm:num_requests_running{"
WAITING = "vllm:num_requests_waiting{"
USAGE = "vllm:kv_cache_usage_perc{"
CHOKE = "/admin/choke"
POLL_S = 0.01
"""Time between two reads of the running requests, which take 100 ms or longer."""
LATENCY = ("--time-to-first-token", "50ms", "--server-dev-mode")
BLOCKS = ("--block-size", "16", "--kv-cache-size", "200", "--max-model-len", "1024")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((*LATENCY, "--enable-kvcache", *BLOCKS), id="own timelines"),
        pytest.param(("--timing", "steps", *BLOCKS, "--server-dev-mode"), id="steps"),
        pytest.param(
            (*("--data-parallel-size", "2", "--data-parallel-mode", "internal"), *LATENCY)
            + ("--enable-kvcache", *BLOCKS),
            id="two engines",
        ),
    ],
)
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    with served(*request.param) as client:
        yield client


@contextmanager
def choked(client: Client, **choke: Any) -> Iterator[dict[str, Any]]:
    answer = client.post(CHOKE, choke)
    assert answer.status_code == 200, answer.text
    try:
        yield answer.json()
    finally:
        client.delete(CHOKE)


def total(client: Client, family: str) -> float:
    """The sum over all engines."""
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(family))


def engine_count(client: Client) -> int:
    lines = client.get("/metrics").text.splitlines()
    return sum(line.startswith(RUNNING) for line in lines)


def check_answers(futures: list[Future[Any]]) -> None:
    for future in futures:
        assert future.result(20)["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("choke", [{"paused": True}, {"kv_blocks": 0}])
def test_no_request_starts_while_the_engine_is_throttled_to_zero(
    client: Client, choke: dict[str, Any]
) -> None:
    with ThreadPoolExecutor(6) as pool:
        with choked(client, **choke):
            futures = [pool.submit(client.complete) for _ in range(6)]
            wait_for_value(total, client, WAITING, equals=6)
            assert total(client, RUNNING) == 0
            assert client.get(CHOKE).json()["waiting"] == 6
            if "kv_blocks" in choke:
                assert total(client, USAGE) == engine_count(client)
        check_answers(futures)
    assert total(client, RUNNING) == 0 and total(client, WAITING) == 0
    assert total(client, USAGE) == 0
    assert client.get(CHOKE).json()["choked"] is False


def test_requests_run_one_after_another_if_slots_are_throttled_to_one(client: Client) -> None:
    with ThreadPoolExecutor(6) as pool, choked(client, places=1):
        futures = [pool.submit(client.complete, max_tokens=20) for _ in range(6)]
        most_running = 0.0
        while wait(futures, timeout=POLL_S).not_done:
            most_running = max(most_running, client.get(CHOKE).json()["running"])
        check_answers(futures)
    assert 1 <= most_running <= engine_count(client)


def test_throttling_ends_after_its_duration(client: Client) -> None:
    with choked(client, paused=True, seconds=0.2):
        assert client.complete()["choices"]
        assert client.get(CHOKE).json()["choked"] is False


def test_pause_set_by_an_operator_outlasts_throttling(client: Client) -> None:
    client.post("/pause?mode=keep")
    with choked(client, paused=True):
        pass
    assert client.get("/is_paused").json() == {"is_paused": True}
    with choked(client, places=1):
        pass
    assert client.get("/is_paused").json() == {"is_paused": True}
    client.post("/resume")
    assert client.complete()["choices"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "A choke must specify places, kv_blocks, or paused."),
        ({"places": 0}, "places"),
        ({"kv_blocks": -1}, "kv_blocks"),
        ({"seats": 1}, "seats"),
        ({"paused": True, "seconds": 0}, "seconds"),
    ],
)
def test_invalid_throttling_request_changes_nothing(client: Client, body: Any, reason: str) -> None:
    with choked(client, places=1):
        answer = client.post(CHOKE, body)
        assert answer.status_code == 400 and reason in answer.json()["error"]["message"]
        assert client.get(CHOKE).json()["places"] == 1
