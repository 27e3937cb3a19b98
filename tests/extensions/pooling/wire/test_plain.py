"""Plain requests for embeddings get the same answers as those that pass through Flask."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from app.extensions.pooling.plain import MAX_CHARACTERS
from tests.extensions.pooling.calls import EMBED, FLAGS
from tests.hostile.raw_client import (
    Whole,
    Wire,
    http_post,
    metric,
    requests_by_way,
)
from tests.running_server import RunningServer, running_server
from tests.waits import wait_for_metric

GENERAL = "TE: trailers"
"""A header without a meaning here, whose requests are left to gunicorn and Flask."""
JSON = "Content-Type: application/json"
RUNNING = "vllm:num_requests_running"
CREATED = re.compile(rb'"created":\d+')
PLAIN: list[dict[str, Any]] = [
    {"input": "What is new about the number 7 today?"},
    {"input": "Größe 東京 \n", "encoding_format": "float", "user": "me"},
    {"input": "the the the", "encoding_format": "base64"},
    {"input": "<|im_start|>", "model": None},
    {"input": "named", "model": ""},
]
NOT_PLAIN: list[dict[str, Any]] = [
    {"input": "x" * (MAX_CHARACTERS + 1)},
    {"input": "one two " * 32},
    {"input": ""},
    {"input": ["a"]},
    {"input": "a", "model": "unknown"},
    {"input": "a", "dimensions": 8},
    {"input": "a", "encoding_format": "bytes"},
    {"input": "a", "use_activation": False},
    {"input": 1},
    {},
]


@pytest.fixture(scope="module")
def served() -> Iterator[RunningServer]:
    """Serves all pooling routes, with a context of 64 tokens and vectors of 16 numbers."""
    with running_server("--task=pooling", *FLAGS) as server:
        yield server


def answer_to(server: RunningServer, body: dict[str, Any], *headers: str) -> Whole:
    fields = (JSON, "X-Request-Id: same", *headers)
    data = http_post(EMBED, json.dumps(body).encode(), *fields)
    with Wire(server.port) as wire:
        return wire.send(data).answer()


def assert_same_both_ways(server: RunningServer, body: dict[str, Any]) -> None:
    answer = answer_to(server, body)
    general = answer_to(server, body, GENERAL)
    assert answer.status == general.status
    assert CREATED.sub(b"", answer.body) == CREATED.sub(b"", general.body)
    for headers in (answer.headers, general.headers):
        headers.pop("date")
    assert answer.headers == general.headers


def test_plain_embeddings_are_identical_on_the_fast_and_flask_paths(served: RunningServer) -> None:
    old_counts = requests_by_way(served.port)
    for body in PLAIN:
        assert_same_both_ways(served, body)
    counts = requests_by_way(served.port)
    assert counts["fast"] - old_counts["fast"] == len(PLAIN)
    assert counts["flask"] - old_counts["flask"] == len(PLAIN)


def test_other_embedding_requests_go_to_the_handler_of_the_route(served: RunningServer) -> None:
    old_counts = requests_by_way(served.port)
    for body in NOT_PLAIN:
        assert_same_both_ways(served, body)
    counts = requests_by_way(served.port)
    assert counts["fast"] == old_counts["fast"]


def test_client_disconnect_during_a_plain_embedding_frees_its_slot() -> None:
    with running_server("--task=embed", "--model=tiny", "--time-to-first-token=1m") as server:
        with Wire(server.port) as wire:
            wire.post(PLAIN[0], EMBED)
            wait_for_metric(server.port, RUNNING, 1)
        wait_for_metric(server.port, RUNNING, 0)
        assert metric(server.port, "understudy_aborted_requests_total") == 1
        assert requests_by_way(server.port)["fast"] == 1
