"""`serve --data-parallel-size N`: N engines behind one port, over the wire."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
import requests
import zmq

from tests.config.wire.test_headless import listening_ports
from tests.conformance.clients import openai_client
from tests.running_server import RunningServer, free_port, running_image
from tests.sdks import openai

RANKS = 3
RANK = "X-data-parallel-rank"
FINISHED = re.compile(
    r'^vllm:request_success_total\{engine="(\d)",finished_reason="length",.*\} (\d+)\.0$', re.M
)
SERIES = re.compile(r"^([a-zA-Z_:]+)(\{.*\})? ", re.M)


@pytest.fixture(scope="module")
def events_port() -> int:
    return free_port(RANKS)


@pytest.fixture(scope="module")
def server(events_port: int) -> Iterator[RunningServer]:
    config = {"enable_kv_cache_events": True, "endpoint": f"tcp://*:{events_port}"}
    words = [
        "serve",
        "tiny",
        f"--data-parallel-size={RANKS}",
        "--kv-events-config",
        json.dumps(config),
        "--enable-sleep-mode",
    ]
    with running_image(*words, env={"VLLM_SERVER_DEV_MODE": "1"}) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai_client(server, strict=False) as client:
        yield client


def metrics(server: RunningServer) -> str:
    return requests.get(f"{server.url}/metrics", timeout=20).text


def finished(server: RunningServer) -> Counter[int]:
    """Finished requests of each rank."""
    return Counter({int(rank): int(count) for rank, count in FINISHED.findall(metrics(server))})


def complete(client: openai.OpenAI, rank: object = None, **fields: Any) -> Any:
    headers = {} if rank is None else {RANK: str(rank)}
    options = {"max_tokens": 2, "extra_body": {"ignore_eos": True}, **fields}
    return client.completions.create(model="tiny", prompt="Hello", extra_headers=headers, **options)


def test_server_listens_on_one_port(server: RunningServer) -> None:
    """The arbiter holds the listeners of all workers."""
    assert listening_ports(server.process.pid) == {server.port}


def test_sequential_requests_go_to_the_ranks_in_rotation(
    server: RunningServer, client: openai.OpenAI
) -> None:
    finished_before = finished(server)
    for _ in range(2 * RANKS):
        complete(client)
    assert finished(server) - finished_before == Counter({rank: 2 for rank in range(RANKS)})


def test_concurrent_requests_go_to_all_ranks(server: RunningServer, client: openai.OpenAI) -> None:
    finished_before = finished(server)
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda _: complete(client), range(12)))
    spread = finished(server) - finished_before
    assert spread.total() == 12 and len(spread) == RANKS


@pytest.mark.parametrize("timing", ["--time-to-first-token=20ms", "--profile=qwen3-14b-h100"])
def test_ranks_stream_concurrently(timing: str) -> None:
    """Every engine has an alarm of its own."""
    words = ("serve", "tiny", "--data-parallel-size=4", timing, "--inter-token-latency=5ms")
    with (
        running_image(*words) as server,
        openai_client(server, strict=False) as client,
        ThreadPoolExecutor(16) as pool,
    ):
        answers = pool.map(lambda number: complete(client, number % 4, max_tokens=20), range(32))
        assert [answer.usage.completion_tokens for answer in answers] == [20] * 32
        assert finished(server) == Counter({rank: 8 for rank in range(4)})


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize("stream", [False, True])
def test_data_parallel_rank_header_selects_the_rank(
    server: RunningServer, client: openai.OpenAI, rank: int, stream: bool
) -> None:
    finished_before = finished(server)
    for _ in range(2):
        answer = complete(client, rank, stream=stream)
        if stream:
            list(answer)
    assert finished(server) - finished_before == Counter({rank: 2})


@pytest.mark.parametrize("rank", [RANKS, -1, 10**30])
def test_rank_out_of_range_is_rejected(client: openai.OpenAI, rank: int) -> None:
    message = f"data_parallel_rank {rank} is out of range [0, {RANKS})."
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, rank)
    assert caught.value.body == {
        "message": message,
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    }
    with pytest.raises(openai.APIError, match=re.escape(message)):
        list(complete(client, rank, stream=True))


def test_rank_header_that_is_not_a_number_is_ignored(client: openai.OpenAI) -> None:
    assert complete(client, "first").usage.completion_tokens == 2


def test_metrics_route_returns_the_series_of_all_ranks(server: RunningServer) -> None:
    page = metrics(server)
    types = re.findall(r"^# TYPE (\S+)", page, re.M)
    assert max(Counter(types).values()) == 1
    ranks_of_series: dict[str, set[str]] = {}
    for name, labels in SERIES.findall(page):
        rank = re.search(r'engine="(\d)"', labels)
        if rank is not None:
            ranks_of_series.setdefault(name, set()).add(rank[1])
    expected = {str(rank) for rank in range(RANKS)}
    assert len(ranks_of_series) > 50
    assert {name for name, ranks in ranks_of_series.items() if ranks != expected} == set()
    lines = [line.rpartition(" ")[0] for line in page.splitlines() if not line.startswith("#")]
    assert max(Counter(lines).values()) == 1


def test_system_fingerprint_contains_the_number_of_ranks(client: openai.OpenAI) -> None:
    assert f"-dp{RANKS}-" in complete(client).system_fingerprint


def test_every_rank_publishes_its_events(
    server: RunningServer, client: openai.OpenAI, events_port: int
) -> None:
    sources = requests.get(f"{server.url}/kv_event_sources", timeout=20).json()
    endpoints = {rank: source["endpoint"] for rank, source in sources.items()}
    assert endpoints == {str(rank): f"tcp://*:{events_port + rank}" for rank in range(RANKS)}
    for rank in range(RANKS):
        with zmq.Context() as context, context.socket(zmq.SUB) as socket:
            socket.linger = 0
            socket.subscribe("")
            socket.connect(f"tcp://127.0.0.1:{events_port + rank}")
            for number in range(100):
                client.completions.create(
                    model="tiny",
                    prompt=[rank * 100 + number] * 64,
                    max_tokens=1,
                    extra_headers={RANK: str(rank)},
                )
                if socket.poll(100):
                    break
            *_, payload = socket.recv_multipart(zmq.NOBLOCK)
        assert msgspec.msgpack.decode(payload)[2] == rank


def hit_tokens(server: RunningServer) -> Counter[int]:
    """Cached tokens that each rank has found."""
    hits = re.findall(
        r'^vllm:prefix_cache_hits_total\{engine="(\d)".*\} (\S+)$', metrics(server), re.M
    )
    return Counter({int(rank): int(float(tokens)) for rank, tokens in hits})


def test_prompt_is_cached_only_on_the_rank_that_served_it(
    server: RunningServer, client: openai.OpenAI
) -> None:
    prompt = [7] * 64
    hits_before = hit_tokens(server)
    for rank in (0, 0, 1, 1, 2):
        client.completions.create(
            model="tiny", prompt=prompt, max_tokens=1, extra_headers={RANK: str(rank)}
        )
    assert hit_tokens(server) - hits_before == Counter({0: 48, 1: 48})


def post(server: RunningServer, path: str, **fields: Any) -> requests.Response:
    return requests.post(f"{server.url}{path}", timeout=20, **fields)


def sleep_states(server: RunningServer) -> list[str]:
    """The ranks' sleep states in order."""
    pattern = r'^vllm:engine_sleep_state\{engine="\d".*sleep_state="(\w+)"\} 1\.0$'
    return re.findall(pattern, metrics(server), re.M)


def test_sleep_and_wake_up_act_on_all_ranks(server: RunningServer) -> None:
    assert sleep_states(server) == ["awake"] * RANKS
    assert post(server, "/sleep?level=1").status_code == 200
    assert sleep_states(server) == ["weights_offloaded"] * RANKS
    assert requests.get(f"{server.url}/is_sleeping", timeout=20).json() == {"is_sleeping": True}
    assert post(server, "/wake_up").status_code == 200
    assert sleep_states(server) == ["awake"] * RANKS


def test_pause_stops_all_ranks_until_resume(server: RunningServer, client: openai.OpenAI) -> None:
    assert post(server, "/pause?mode=keep").status_code == 200
    with ThreadPoolExecutor(RANKS) as pool:
        answers = [pool.submit(complete, client, rank) for rank in range(RANKS)]
        waiting: list[str] = []
        while waiting != ["1.0"] * RANKS:
            pattern = r'^vllm:num_requests_waiting\{engine="\d".*\} (\S+)$'
            waiting = re.findall(pattern, metrics(server), re.M)
        assert post(server, "/resume").status_code == 200
        assert [answer.result().usage.completion_tokens for answer in answers] == [2] * RANKS


def test_control_routes_respond_as_with_a_single_rank(server: RunningServer) -> None:
    assert post(server, "/reset_prefix_cache").status_code == 200
    scaled = post(server, "/scale_elastic_ep", json={"new_data_parallel_size": RANKS})
    assert scaled.json() == {"message": f"Scaled to {RANKS} data parallel engines"}
    called = post(server, "/collective_rpc", json={"method": "get_supported_tasks"})
    assert called.json() == {"results": [["generate"], None]}
    shown = requests.get(f"{server.url}/admin/config?ranks=all", timeout=20).json()
    assert list(shown) == ["0"]
