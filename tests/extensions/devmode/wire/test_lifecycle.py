"""Sleep and wake, pause and resume, abort, drain, settings that change:

amid streams, and for all ranks.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pytest

from tests.client import EVERY_ROUTE, Client, served
from tests.hostile.raw_client import Wire, ask, wait_for_value, wait_until

RUNNING = "vllm:num_requests_running{"
WAITING = "vllm:num_requests_waiting{"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with served(*EVERY_ROUTE) as client:
        yield client


def pace(client: Client, itl: str) -> None:
    client.post("/admin/config", {"inter-token-latency": itl})


def test_requests_wait_during_sleep_level_0(client: Client) -> None:
    client.post("/sleep?level=0")
    assert client.get("/is_sleeping").json() == {"is_sleeping": True}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.complete)
        wait_for_value(client.metric, WAITING, equals=1)
        client.post("/wake_up")
        assert waiting.result(20)["choices"][0]["finish_reason"] == "length"
    assert client.get("/is_paused").json() == {"is_paused": False}


def test_pause_aborts_running_requests_and_holds_new_ones(client: Client) -> None:
    with Wire(client.server.port) as running, ThreadPoolExecutor(1) as pool:
        pace(client, "1s")
        events = running.post(ask(max_tokens=1000, stream=True)).events()
        next(events)
        assert client.post("/pause").json() == {"status": "paused"}
        assert list(events)[-1]["choices"][0]["finish_reason"] == "abort"
        pace(client, "0s")
        late = pool.submit(client.complete)
        wait_for_value(client.metric, WAITING, equals=1)
        assert client.post("/resume").json() == {"status": "resumed"}
        assert late.result(20)
    assert (client.metric(RUNNING), client.metric(WAITING)) == (0, 0)


def test_pause_in_wait_mode_lets_running_requests_finish(client: Client) -> None:
    pace(client, "50ms")
    with Wire(client.server.port) as running:
        events = running.post(ask(max_tokens=5, stream=True)).events()
        next(events)
        client.post("/pause?mode=wait")
        assert client.metric(RUNNING) == 0
        assert list(events)[-1]["choices"][0]["finish_reason"] == "length"
    client.post("/resume")
    pace(client, "0s")


def test_requests_that_arrive_later_do_not_delay_a_sleep_in_wait_mode() -> None:
    with (
        served(
            "--server-dev-mode", "--max-num-seqs", "1", "--inter-token-latency", "20ms"
        ) as client,
        ThreadPoolExecutor(40) as pool,
    ):
        completions = [pool.submit(client.complete, max_tokens=10) for _ in range(40)]
        wait_until(lambda: client.metric(WAITING) > 20)
        client.post("/sleep?mode=wait")
        assert not all(completion.done() for completion in completions)
        assert client.get("/is_sleeping").json() == {"is_sleeping": True}
        # Who came meanwhile is served: a server that sleeps at level 1 has no weights to miss.
        pace(client, "0s")
        assert all(
            completion.result(20)["choices"][0]["finish_reason"] == "length"
            for completion in completions
        )


def test_waiting_sleep_request_is_cancelled_when_its_client_disconnects(client: Client) -> None:
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


@pytest.mark.parametrize("ids", [["cmpl-mine-0"], None])
@pytest.mark.parametrize("path", ["/abort_requests", "/inference/v1/abort_requests"])
def test_aborted_request_ends_with_finish_reason_abort(
    client: Client, path: str, ids: list[str] | None
) -> None:
    """The engine knows a prompt of a text completion by its number, too."""
    pace(client, "1s")
    with Wire(client.server.port) as running:
        events = running.post(ask(max_tokens=1000, stream=True, request_id="mine")).events()
        next(events)
        assert client.post(path, {"request_ids": ["cmpl-mine"]}).status_code == 200
        body: dict[str, Any] = {} if ids is None else {"request_ids": ids}
        answer = client.post(path, body)
        named = path.startswith("/inference")
        if named and ids is None:
            assert answer.status_code == 400
            answer = client.post(path, {"request_ids": "cmpl-mine-0"})
        assert answer.text == ("" if named else '{"status":"aborted","aborted":1}')
        assert list(events)[-1]["choices"][0]["finish_reason"] == "abort"
    pace(client, "0s")
    assert client.metric("understudy_aborted_requests_total") >= 1


def test_draining_server_finishes_running_requests_and_rejects_new_ones() -> None:
    with (
        served("--inter-token-latency", "50ms") as client,
        Wire(client.server.port) as staying,
        Wire(client.server.port) as running,
    ):
        next(staying.post(ask(max_tokens=4000, stream=True)).events())
        events = running.post(ask(max_tokens=10, stream=True)).events()
        next(events)
        drained = client.post("/admin/drain").json()
        assert (drained["status"], drained["waiting"]) == ("draining", 0) and drained[
            "running"
        ] in (1, 2)
        assert client.get("/health/ready").status_code == 503
        assert client.get("/health").status_code == 200
        refused = client.post("/v1/completions", ask())
        assert (refused.status_code, refused.json()["error"]["type"]) == (
            503,
            "Service Unavailable",
        )
        assert len(list(events)) == 9


def test_running_stream_uses_a_changed_latency(client: Client) -> None:
    client.post("/admin/config", {"inter-token-latency": "1h"})
    with Wire(client.server.port) as wire:
        events = wire.post(ask(max_tokens=3, stream=True)).events()
        next(events)
        client.post("/admin/config", {"inter-token-latency": "0s"})
    client.complete()


def test_setting_change_that_one_rank_rejects_is_applied_to_no_rank() -> None:
    with served("--data-parallel-size", "3") as client:

        def itl(rank: int) -> str:
            url = f"http://127.0.0.1:{client.server.port + rank}/admin/config"
            shown: str = client.session.get(url, timeout=20).json()["inter-token-latency"]
            return shown

        client.post("/admin/config", {"inter-token-latency": "1ms"})
        assert [itl(rank) for rank in range(3)] == ["1ms", "0s", "0s"]
        changed = client.post("/admin/config?ranks=all", {"inter-token-latency": "5ms"}).json()
        assert [changed[str(rank)]["inter-token-latency"] for rank in range(3)] == ["5ms"] * 3
        assert [itl(rank) for rank in range(3)] == ["5ms"] * 3
        client.post("/admin/config", {"inter-token-latency": "50ms"})
        # Less than 30 % of the first rank's 50 ms, more than that of the others' 5 ms.
        refused = client.post("/admin/config?ranks=all", {"inter-token-latency-std-dev": "10ms"})
        assert (refused.status_code, refused.json()["error"]["type"]) == (400, "BadRequestError")
        assert "Rank 1" in refused.json()["error"]["message"]
        assert client.get("/admin/config").json()["inter-token-latency-std-dev"] == "0s"
        assert set(client.get("/admin/config?ranks=all").json()) == {"0", "1", "2"}
        assert set(client.post("/admin/drain?ranks=all").json()) == {"0", "1", "2"}
        last = f"http://127.0.0.1:{client.server.port + 2}/ready"
        assert client.session.get(last, timeout=20).status_code == 503


def test_fast_path_returns_503_during_a_pause_in_abort_mode() -> None:
    with served("--vllm-version", "0.33", "--server-dev-mode") as client:
        client.post("/pause")
        for path, body in (
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
            ("/v1/completions", {"prompt": "hi"}),
        ):
            answer = client.post(path, body | {"max_tokens": 2})
            assert answer.status_code == 503
            streamed = client.post(path, body | {"max_tokens": 2, "stream": True})
            assert streamed.status_code == 200
            assert streamed.text.count("data: ") == 2
            assert '"code":503' in streamed.text
        assert client.metric(WAITING) == 0
        client.post("/pause?mode=keep")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.complete)
            wait_for_value(client.metric, WAITING, equals=1)
            client.post("/resume")
            assert waiting.result(20)["choices"][0]["finish_reason"] == "length"
