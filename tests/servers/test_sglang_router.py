"""sglang-router as docs/sglang.md configures it: loads decide, and ranks are chosen."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.hostile.raw_client import wait_until
from tests.running_server import RunningServer, running_image
from tests.servers.routers import routed

pytestmark = pytest.mark.routers
LIMIT_S = 60.0
"""Longest wait for the router, which reads loads every second."""
READINGS = 3
"""Readings of a load after which the router has used a new one: one may have been under way."""


def metric(server: RunningServer, pattern: str) -> float:
    page = requests.get(f"{server.url}/metrics", timeout=20).text
    return sum(map(float, re.findall(rf"^{pattern} (\S+)$", page, re.M)))


def completions(server: RunningServer) -> float:
    return metric(server, r'http_requests_total\{handler="/v1/completions".*\}')


def readings(server: RunningServer) -> float:
    return metric(server, r'http_requests_total\{handler="/get_load".*\}')


def generated_by_rank(server: RunningServer) -> list[float]:
    return [
        metric(server, rf'vllm:generation_tokens_total\{{engine="{rank}".*\}}') for rank in (0, 1)
    ]


def wait_for_workers(router: RunningServer, count: int) -> None:
    def are_known() -> bool:
        return len(requests.get(f"{router.url}/workers", timeout=20).json()["workers"]) == count

    wait_until(are_known, LIMIT_S)


def body(number: int, **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": f"Hello {number}", "ignore_eos": True, **fields}


def ask(router: RunningServer, path: str, request: dict[str, Any]) -> None:
    answer = requests.post(f"{router.url}{path}", json=request, timeout=20)
    assert answer.status_code == 200, answer.text


@contextmanager
def busy(server: RunningServer, *servers: RunningServer) -> Iterator[None]:
    """Keeps a server busy with a long request, from when the router has used its load."""
    request = body(0, prompt=[7] * 20_000, max_tokens=10_000, stream=True)
    with requests.post(
        f"{server.url}/v1/completions", json=request, stream=True, timeout=LIMIT_S
    ) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith(b'data: {"id"')
        counts_before = [readings(one_server) for one_server in servers]

        def are_read() -> bool:
            counts = [readings(one_server) for one_server in servers]
            return all(
                count >= count_before + READINGS
                for count, count_before in zip(counts, counts_before, strict=True)
            )

        wait_until(are_read, LIMIT_S)
        yield
        assert next(lines) == b""


@pytest.mark.timeout(180)
def test_power_of_two_policy_sends_40_requests_to_the_less_loaded_server(
    tmp_path: Path,
) -> None:
    words = ("serve", "tiny", "--dialect=sglang", "--inter-token-latency=50ms")
    with (
        running_image(*words) as first,
        running_image(*words) as second,
        routed("sglang-router power_of_two", tmp_path, [first, second]) as router,
    ):
        wait_for_workers(router, 2)
        for busy_server, idle_server in ((first, second), (second, first)):
            answered = completions(idle_server)
            with busy(busy_server, first, second):
                for number in range(20):
                    ask(router, "/v1/completions", body(number, max_tokens=1))
            assert completions(idle_server) == answered + 20


@pytest.mark.timeout(180)
def test_dp_aware_mode_of_the_router_uses_each_rank_of_a_server(tmp_path: Path) -> None:
    words = ("serve", "tiny", "--dialect=sglang", "--data-parallel-size=2")
    with (
        running_image(*words) as server,
        routed("sglang-router dp-aware", tmp_path, [server]) as router,
    ):
        wait_for_workers(router, 2)
        urls = [worker["url"] for worker in requests.get(f"{router.url}/workers").json()["workers"]]
        assert sorted(urls) == [f"{server.url}@{rank}" for rank in (0, 1)]
        chat = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
        for number in range(20):
            ask(router, "/v1/completions", body(number, max_tokens=3))
            ask(router, "/v1/completions", body(number, max_tokens=5))
        assert sorted(generated_by_rank(server)) == [20 * 3, 20 * 5], "requests take turns"
        ask(router, "/v1/chat/completions", {**chat, "max_tokens": 2, "ignore_eos": True})
        ask(router, "/v1/chat/completions", {**chat, "max_tokens": 2, "ignore_eos": True})
        assert sorted(generated_by_rank(server)) == [20 * 3 + 2, 20 * 5 + 2]


@pytest.mark.timeout(180)
def test_prefill_and_decode_servers_answer_behind_the_router(tmp_path: Path) -> None:
    with (
        running_image("serve", "tiny", "--dialect=sglang") as prefill,
        running_image("serve", "tiny", "--dialect=sglang") as decode,
        routed("sglang-router prefill-decode", tmp_path, [prefill, decode]) as router,
    ):
        wait_for_workers(router, 2)
        for number in range(10):
            ask(router, "/v1/completions", body(number, max_tokens=2))
            ask(router, "/generate", {"text": f"Hello {number}"})
        assert completions(prefill) == completions(decode) == 10
