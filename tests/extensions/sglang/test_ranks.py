"""Data-parallel ranks in SGLang's interface."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from app.extensions.sglang.ranks import rank_of
from tests.client import Client, in_process

FLAGS = ("--data-parallel-size=2", "--data-parallel-mode=internal", "--enable-kvcache")
PATHS = ("/v1/chat/completions", "/v1/completions", "/generate")
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello"}]},
    "/v1/completions": {"prompt": "Hello"},
    "/generate": {"text": "Hello"},
}


@pytest.fixture(name="client", scope="module")
def _client() -> Iterator[Client]:
    with in_process("--dialect=sglang", *FLAGS) as client:
        yield client


def test_server_info_route_contains_the_state_of_every_rank(client: Client) -> None:
    info = client.get("/server_info").json()
    assert info["dp_size"] == info["kv_events"]["dp_size"] == len(info["internal_states"]) == 2


def test_load_routes_have_an_entry_for_each_rank(client: Client) -> None:
    assert [load["dp_rank"] for load in client.get("/get_load").json()] == [0, 1]
    assert [load["dp_rank"] for load in client.get("/v1/loads").json()["loads"]] == [0, 1]
    [load] = client.get("/v1/loads?dp_rank=1").json()["loads"]
    assert load["dp_rank"] == 1


def test_requests_are_counted_in_the_load_report_of_their_rank() -> None:
    with in_process("--dialect=sglang", *FLAGS, "--time-to-first-token=10m") as client:
        body = {"input_ids": [1] * 50, "stream": True, "routed_dp_rank": 1}
        stream = client.app.test_client().post("/generate", json=body)
        assert [load["num_tokens"] for load in client.get("/get_load").json()] == [0, 50]
        stream.close()
        assert [load["num_tokens"] for load in client.get("/get_load").json()] == [0, 0]


@pytest.mark.parametrize("field", ["routed_dp_rank", "data_parallel_rank"])
@pytest.mark.parametrize("path", PATHS)
def test_rank_field_selects_the_rank_of_a_request(client: Client, path: str, field: str) -> None:
    for rank in (0, 1, 1):
        name = "vllm:request_success_total"
        requests_before = client.metric(name, engine=str(rank))
        assert client.post(path, {**BODIES[path], field: rank}).status_code == 200
        assert client.metric(name, engine=str(rank)) == requests_before + 1


@pytest.mark.parametrize("path", PATHS)
def test_rank_header_selects_the_rank_of_a_request(client: Client, path: str) -> None:
    name = "vllm:request_success_total"
    requests_before = client.metric(name, engine="1")
    headers = {"X-data-parallel-rank": "1"}
    assert client.post(path, BODIES[path], headers=headers).status_code == 200
    assert client.metric(name, engine="1") == requests_before + 1


@pytest.mark.parametrize("path", PATHS)
def test_rank_out_of_range_is_rejected(client: Client, path: str) -> None:
    for rank in (-1, 2, 10**30):
        answer = client.post(path, {**BODIES[path], "data_parallel_rank": rank})
        assert answer.status_code == 400
        assert "out of range [0, 2)" in answer.text


@pytest.mark.parametrize("rank", [None, "1", True, 1.5])
def test_openai_routes_ignore_a_rank_that_is_not_an_integer(client: Client, rank: Any) -> None:
    for path in PATHS[:2]:
        assert client.post(path, {**BODIES[path], "routed_dp_rank": rank}).status_code == 200


def test_gauges_have_a_rank_label(client: Client) -> None:
    page = client.get("/metrics").text
    assert re.findall(r'^sglang:page_size\{dp_rank="(\d)".*\} (\S+)$', page, re.M) == [
        ("0", "16.0"),
        ("1", "16.0"),
    ]


def test_rank_field_is_found_at_any_position_of_a_json_body() -> None:
    assert rank_of(b'{"prompt": "a_rank", "text": [1, {}], "data_parallel_rank": 1}') == 1
    assert rank_of(b'{"routed_dp_rank": "x", "data_parallel_rank": 1}') == 1
    assert rank_of(b'{"data_parallel_rank": %b}' % (b"9" * 5000)) is None
    assert rank_of(b'{"data_parallel_rank": 1') is None
    assert rank_of(b"[%b]" % (b"[" * 100_000)) is None
