"""Routes that tell routers about the server, in SGLang's forms."""

from collections.abc import Iterator

import pytest
from werkzeug.test import TestResponse

from app.extensions.sglang import information
from tests.client import MODEL, Client, in_process

DIALECT = "--dialect=sglang"
CACHE = ("--enable-kvcache", "--enable-prompt-tokens-details")
PATHS = (
    "/model_info",
    "/server_info",
    "/get_load",
    "/v1/loads",
    "/health_generate",
    "/flush_cache",
)


@pytest.fixture(name="client", scope="module")
def _client() -> Iterator[Client]:
    with in_process(DIALECT, *CACHE) as client:
        yield client


def test_sglang_routes_are_off_by_default() -> None:
    with in_process() as client:
        assert {client.get(path).status_code for path in PATHS} == {404}


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
def test_model_info_route_describes_the_model(client: Client, path: str) -> None:
    info = client.get(path).json()
    assert info["model_path"] == info["served_model_name"] == info["tokenizer_path"] == MODEL
    assert info["is_generation"] is True
    assert info["weight_version"] == "default"
    assert (info["model_type"], info["architectures"]) == (None, None)


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_server_info_contains_the_capacity_and_the_kv_event_endpoint(
    client: Client, path: str
) -> None:
    info = client.get(path).json()
    assert (info["dp_size"], info["tp_size"], info["page_size"]) == (1, 1, 16)
    assert (info["status"], info["disaggregation_mode"]) == ("ready", "null")
    assert info["max_total_num_tokens"] == 4096 * 16
    assert len(info["internal_states"]) == 1
    assert info["kv_events"] == {
        "publisher": "zmq",
        "endpoint_host": "127.0.0.1",
        "endpoint_port_base": 5557,
        "topic": f"kv@127.0.0.1:8000@{MODEL}",
        "block_size": 16,
        "dp_size": 1,
    }


def test_kv_events_are_null_in_server_info_if_there_is_no_event_endpoint() -> None:
    with in_process(DIALECT, "--enable-kvcache", "--zmq-endpoint=") as client:
        assert client.get("/server_info").json()["kv_events"] is None


def test_load_report_of_an_idle_server_contains_zeros(client: Client) -> None:
    no_load = {"dp_rank": 0, "num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 0}
    assert client.get("/get_load").json() == [no_load]


def test_load_report_contains_the_tokens_of_running_and_waiting_requests() -> None:
    flags = ("--max-num-seqs=1", "--time-to-first-token=10m")
    with in_process(DIALECT, *flags) as client:
        streams = [unread_stream(client, tokens) for tokens in (100, 20)]
        assert client.get("/get_load").json() == [
            {"dp_rank": 0, "num_reqs": 2, "num_waiting_reqs": 1, "num_tokens": 120}
        ]
        [load] = client.get("/v1/loads").json()["loads"]
        assert (load["num_used_tokens"], load["num_waiting_uncached_tokens"]) == (100, 20)
        assert load["token_usage"] == 100 / (4096 * 16)
        busy = client.post("/flush_cache")
        assert busy.status_code == 400
        assert busy.text == "Cache not flushed: 1 requests run, 1 wait.\n"
        for stream in streams:
            stream.close()
        assert client.get("/get_load").json()[0]["num_reqs"] == 0


def unread_stream(client: Client, prompt_tokens: int) -> TestResponse:
    """A stream whose first token is due much later."""
    body = {"prompt": [1] * prompt_tokens, "stream": True}
    return client.app.test_client().post("/v1/completions", json=body)


def test_query_selects_sections_and_ranks_of_the_load_report(client: Client) -> None:
    whole = client.get("/v1/loads").json()
    assert [load["dp_rank"] for load in whole["loads"]] == [0]
    assert whole["loads"][0]["queues"]["waiting"] == 0
    assert whole["loads"][0]["memory"]["token_capacity"] == 4096 * 16
    core = client.get("/v1/loads?include=core&dp_rank=0").json()["loads"]
    [load] = core
    assert load["dp_rank"] == 0 and load["max_running_requests"] == 256
    assert {"memory", "queues", "disaggregation"}.isdisjoint(load)
    queues = client.get("/v1/loads?include=queues,%20disagg").json()["loads"][0]
    assert "queues" in queues and "disaggregation" in queues and "memory" not in queues
    assert client.get("/v1/loads?dp_rank=7").json()["loads"] == []


def test_loads_are_returned_as_prometheus_gauges_on_request(client: Client) -> None:
    lines = client.get("/v1/loads?format=prometheus").text.splitlines()
    assert "# TYPE sglang_num_running_reqs gauge" in lines
    assert 'sglang_num_running_reqs{dp_rank="0"} 0' in lines
    assert 'sglang_queues_waiting{dp_rank="0"} 0' in lines
    assert not any(line.startswith("sglang_dp_rank") for line in lines)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("include=core,everything", "Invalid include options: ['everything']"),
        ("dp_rank=first", "query.dp_rank"),
        ("format=xml", "query.format"),
    ],
)
def test_invalid_query_returns_a_flat_error_object(client: Client, query: str, words: str) -> None:
    answer = client.get(f"/v1/loads?{query}")
    assert answer.status_code == 400
    error = answer.json()
    assert words in error.pop("message")
    assert error == {"object": "error", "type": "Bad Request", "param": None, "code": 400}


def test_health_check_generates_one_token(client: Client) -> None:
    tokens_before = client.metric("vllm:generation_tokens_total")
    answer = client.get("/health_generate")
    assert (answer.status_code, answer.text) == (200, "")
    assert client.metric("vllm:generation_tokens_total") == tokens_before + 1


def test_draining_server_is_unhealthy() -> None:
    with in_process(DIALECT) as client:
        client.post("/admin/drain")
        assert client.get("/health_generate").status_code == 503


def test_flush_cache_empties_the_prefix_cache(client: Client) -> None:
    def cached() -> int:
        usage = client.complete(prompt="Hello " * 100)["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    cached()
    assert cached() > 0
    for ask in (client.get, client.post):
        answer = ask("/flush_cache?timeout=1")
        assert (answer.status_code, answer.text) == (200, "Cache flushed.\n")
    assert cached() == 0
    assert client.get("/flush_cache?timeout=-1").status_code == 400


def test_health_check_fails_if_no_token_is_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(information, "HEALTH_TIMEOUT_S", 0.01)
    with in_process(DIALECT, "--time-to-first-token=10m") as client:
        assert client.get("/health_generate").status_code == 503
        assert client.get("/get_load").json()[0]["num_reqs"] == 0, "the probe has ended"
        assert client.get("/health").status_code == 200


def test_native_routes_except_the_health_check_require_an_api_key() -> None:
    with in_process(DIALECT, "--api-key=secret") as client:
        for path in PATHS:
            status = 200 if path == "/health_generate" else 401
            assert client.get(path).status_code == status, path
            bearer = {"Authorization": "Bearer secret"}
            assert client.get(path, headers=bearer).status_code == 200, path
        answer = client.post("/generate", {"text": "Hello"})
        assert (answer.status_code, answer.json()) == (401, {"error": "Unauthorized"})


def test_native_control_routes_accept_any_host_name_only_with_a_required_key() -> None:
    headers = {"Host": "gpu7.corp.example", "Authorization": "Bearer secret"}
    for flags, status in ((("--api-key=secret",), 200), ((), 403)):
        with in_process(DIALECT, *flags) as client:
            for path in ("/get_load", "/get_server_info", "/flush_cache"):
                assert client.get(path, headers=headers).status_code == status, path
