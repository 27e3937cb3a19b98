"""A running server with fake metrics: requests are served as ever and leave no trace in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.hostile.raw_client import Whole, ask, get, post
from tests.running_server import RunningServer, running_server

FAKES = {"running-requests": 10, "prefix-cache-hits": 100, "prefix-cache-queries": 200}


@pytest.fixture(scope="module")
def faking() -> Iterator[RunningServer]:
    with running_server("--fake-metrics", json.dumps(FAKES)) as server:
        yield server


def update(server: RunningServer, **keys: object) -> Whole:
    return post(server.port, {key.replace("_", "-"): value for key, value in keys.items()}, "/fake_metrics")


def families(server: RunningServer) -> list[str]:
    """The lines of all `vllm:` families."""
    text = get(server.port, "/metrics").body.decode()
    return [line for line in text.splitlines() if re.match(r"(# \w+ )?vllm:", line)]


def test_requests_are_served_and_not_counted(faking: RunningServer) -> None:
    before = families(faking)
    assert post(faking.port, ask()).status == 200
    assert families(faking) == before


def test_an_update_is_told_at_once(faking: RunningServer) -> None:
    answer = update(faking, running_requests=7, prefix_cache_hits=150)
    assert (answer.status, answer.body) == (204, b"")
    told = "\n".join(families(faking))
    assert re.search(r"vllm:num_requests_running\{.*\} 7.0", told)
    assert re.search(r"vllm:prefix_cache_hits_total\{.*\} 150.0", told)
    assert re.search(r"vllm:prefix_cache_queries_total\{.*\} 200.0", told)


def test_a_server_with_true_metrics_refuses_every_update(server: RunningServer) -> None:
    answer = update(server, running_requests=7)
    assert answer.status == 400
    assert "the server was started without them" in answer.json()["error"]["message"]
