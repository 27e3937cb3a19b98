"""Sleep and wake, pause and resume, abort, drain."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pytest

from tests.hostile.raw_client import Wire, ask, wait_until
from tests.surface.conftest import Client, served

RUNNING, WAITING = "vllm:num_requests_running{", "vllm:num_requests_waiting{"


def pace(client: Client, itl: str) -> None:
    client.post("/admin/config", {"inter-token-latency": itl})


def state(client: Client) -> tuple[bool, bool]:
    """Asleep, and paused."""
    return client.get("/is_sleeping").json()["is_sleeping"], client.get("/is_paused").json()["is_paused"]


def test_a_server_sleeps_until_it_is_woken(client: Client) -> None:
    assert client.get("/is_sleeping").json() == {"is_sleeping": False}
    assert client.post("/sleep?level=2").json() == {"status": "sleeping", "level": 2}
    assert client.get("/is_sleeping").json() == {"is_sleeping": True}
    assert client.metric("vllm:engine_sleep_state", sleep_state="discard_all") == 1
    assert client.metric("vllm:engine_sleep_state", sleep_state="awake") == 0
    client.complete()
    assert client.post("/wake_up").json() == {"status": "awake", "tags": None}
    assert client.get("/is_sleeping").json() == {"is_sleeping": False}
    assert client.metric("vllm:engine_sleep_state", sleep_state="awake") == 1


def test_parts_wake_one_by_one(client: Client) -> None:
    client.post("/sleep")
    for tags in (["weights"], ["everything"], ["weights", "kv_cache"]):
        told = client.post("/wake_up", params={"tags": tags}).json()
        assert told == {"status": "sleeping", "tags": tags}
        assert state(client) == (True, True)
    assert client.post("/wake_up?tags=kv_cache").json() == {"status": "awake", "tags": ["kv_cache"]}
    assert state(client) == (False, False)


def test_the_memory_of_the_cache_is_released_in_a_pause_and_comes_back() -> None:
    def blocks() -> int:
        client.complete(prompt="Hello " * 100)
        usage = client.complete(prompt="Hello " * 100)["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    flags = ("--server-dev-mode", "--enable-kvcache", "--enable-prompt-tokens-details")
    with served(*flags, POD_IP="127.0.0.1") as client:
        assert blocks() > 0
        too_soon = client.post("/release_kv_cache_memory")
        assert (too_soon.status_code, too_soon.json()["error"]["type"]) == (500, "InternalServerError")
        client.post("/pause?mode=wait")
        assert client.post("/release_kv_cache_memory").json() == {"status": "kv_cache_released"}
        assert client.get("/is_sleeping").json() == {"is_sleeping": True}
        assert client.post("/release_kv_cache_memory").status_code == 500
        count = "vllm:sleep_mode_operation_duration_seconds_count"
        assert client.metric(count, operation="release_kv_cache_memory") == 1
        client.post("/wake_up?tags=kv_cache")
        assert state(client) == (False, False)
        client.post("/pause?mode=wait")
        client.post("/release_kv_cache_memory")
        client.post("/resume")
        details = client.complete(prompt="Hello " * 100)["usage"]["prompt_tokens_details"]
        assert details is None or not details["cached_tokens"]
        client.post("/wake_up")
        assert blocks() > 0
        client.post("/sleep")
        client.post("/pause")
        assert client.post("/release_kv_cache_memory").status_code == 500


def test_at_level_0_requests_wait(client: Client) -> None:
    client.post("/sleep?level=0")
    assert state(client) == (True, True)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.complete)
        wait_until(lambda: client.metric(WAITING) == 1)
        client.post("/wake_up")
        assert waiting.result(20)["choices"][0]["finish_reason"] == "length"
    assert client.get("/is_paused").json() == {"is_paused": False}


def test_a_pause_aborts_what_runs_and_keeps_what_comes_waiting(client: Client) -> None:
    with Wire(client.server.port) as running, ThreadPoolExecutor(1) as pool:
        pace(client, "1s")
        events = running.post(ask(max_tokens=1000, stream=True)).events()
        next(events)
        assert client.post("/pause").json() == {"status": "paused"}
        assert list(events)[-1]["choices"][0]["finish_reason"] == "abort"
        pace(client, "0s")
        late = pool.submit(client.complete)
        wait_until(lambda: client.metric(WAITING) == 1)
        assert client.post("/resume").json() == {"status": "resumed"}
        assert late.result(20)
    assert (client.metric(RUNNING), client.metric(WAITING)) == (0, 0)


def test_a_pause_may_wait_for_what_runs(client: Client) -> None:
    pace(client, "50ms")
    with Wire(client.server.port) as running:
        events = running.post(ask(max_tokens=5, stream=True)).events()
        next(events)
        client.post("/pause?mode=wait")
        assert client.metric(RUNNING) == 0
        assert list(events)[-1]["choices"][0]["finish_reason"] == "length"
    client.post("/resume")
    pace(client, "0s")


def test_a_sleep_that_waits_is_not_put_off_by_those_who_come_meanwhile() -> None:
    with (
        served("--server-dev-mode", "--max-num-seqs", "1", "--inter-token-latency", "20ms") as client,
        ThreadPoolExecutor(40) as pool,
    ):
        asked = [pool.submit(client.complete, max_tokens=10) for _ in range(40)]
        wait_until(lambda: client.metric(WAITING) > 20)
        client.post("/sleep?mode=wait")
        assert not all(one.done() for one in asked)
        assert client.get("/is_sleeping").json() == {"is_sleeping": True}
        # Who came meanwhile is served: a server that sleeps at level 1 has no weights to miss.
        pace(client, "0s")
        assert all(one.result(20)["choices"][0]["finish_reason"] == "length" for one in asked)


def test_nobody_falls_asleep_for_a_caller_who_has_left(client: Client) -> None:
    pace(client, "50ms")
    with Wire(client.server.port) as running, Wire(client.server.port) as operator:
        events = running.post(ask(max_tokens=4000, stream=True)).events()
        next(events)
        operator.post({}, "/sleep?mode=wait")
        wait_until(lambda: client.get("/is_paused").json()["is_paused"])
        operator.sock.close()
        wait_until(lambda: not client.get("/is_paused").json()["is_paused"])
        assert len([*islice(events, 5)]) == 5
    assert client.get("/is_sleeping").json() == {"is_sleeping": False}
    assert "Traceback" not in client.server.log()
    pace(client, "0s")


def test_words_that_mean_nothing_are_refused(client: Client) -> None:
    for path in (
        *("/sleep?level=7", "/sleep?level=-1", "/sleep?level=x", "/sleep?level=", "/sleep?mode=perhaps"),
        *("/pause?mode=perhaps", "/pause?mode=", "/pause?mode=wait&mode=x", "/pause?clear_cache=perhaps"),
        *("/reset_prefix_cache?reset_running_requests=2", "/reset_prefix_cache?reset_external=x"),
        "/server_info?config_format=yaml",
    ):
        answer = client.get(path) if path.startswith("/server") else client.post(path)
        name = path.partition("=")[0].rpartition("?")[2]
        error = answer.json()["error"]
        assert (answer.status_code, error["type"], error["param"]) == (400, "Bad Request", f"query.{name}")
        assert state(client) == (False, False)


@pytest.mark.parametrize("ids", [["cmpl-mine-0"], None])
@pytest.mark.parametrize("path", ["/abort_requests", "/inference/v1/abort_requests"])
def test_an_aborted_request_ends_with_abort(client: Client, path: str, ids: list[str] | None) -> None:
    """The engine knows a prompt of a text completion by its number, too."""
    pace(client, "1s")
    with Wire(client.server.port) as running:
        events = running.post(ask(max_tokens=1000, stream=True, request_id="mine")).events()
        next(events)
        assert client.post(path, {"request_ids": ["cmpl-mine"]}).status_code == 200
        body: dict[str, Any] = {} if ids is None else {"request_ids": ids}
        answer, named = client.post(path, body), path.startswith("/inference")
        if named and ids is None:
            assert answer.status_code == 400
            answer = client.post(path, {"request_ids": "cmpl-mine-0"})
        assert answer.text == ("" if named else '{"status":"aborted","aborted":1}')
        assert list(events)[-1]["choices"][0]["finish_reason"] == "abort"
    pace(client, "0s")
    assert client.metric("vllm:request_success_total", finished_reason="abort") >= 1


def test_the_small_routes_answer(client: Client) -> None:
    assert client.post("/reset_prefix_cache").json() == {"success": True}
    reset = "/reset_prefix_cache?reset_running_requests=yes&reset_external=1"
    assert client.post(reset).json() == {"success": True}
    assert client.post("/reset_mm_cache").status_code == 200
    assert client.post("/start_profile").status_code == client.post("/stop_profile").status_code == 200
    told = client.get("/server_info?config_format=json").json()["vllm_config"]
    assert told["model"] == "base"
    assert "model='base'" in client.get("/server_info").json()["vllm_config"]
    assert list(client.get("/kv_event_sources").json()) == ["0"]
    for path in ("/abort_requests", "/inference/v1/abort_requests"):
        for body in ([], "x"):  # names no requests
            answer = client.post(path, body)
            assert (answer.status_code, answer.json()["error"]["type"]) == (400, "Bad Request")


def test_without_development_mode_they_are_not_there() -> None:
    with served() as client:
        paths = ("/sleep", "/wake_up", "/pause", "/resume", "/reset_prefix_cache", "/start_profile")
        for path in (*paths, "/abort_requests"):
            assert client.post(path).json() == {"detail": "Not Found"}
        closed = client.post("/inference/v1/abort_requests")
        assert closed.json()["error"]["type"] == "PermissionDeniedError"


def test_a_draining_server_finishes_what_it_has_and_takes_no_more() -> None:
    with (
        served("--inter-token-latency", "50ms") as client,
        Wire(client.server.port) as staying,
        Wire(client.server.port) as running,
    ):
        next(staying.post(ask(max_tokens=4000, stream=True)).events())
        events = running.post(ask(max_tokens=10, stream=True)).events()
        next(events)
        told = client.post("/admin/drain").json()
        assert (told["status"], told["waiting"]) == ("draining", 0) and told["running"] in (1, 2)
        assert client.get("/health/ready").status_code == 503
        assert client.get("/health").status_code == 200
        refused = client.post("/v1/completions", ask())
        assert (refused.status_code, refused.json()["error"]["type"]) == (503, "Service Unavailable")
        assert len(list(events)) == 9
