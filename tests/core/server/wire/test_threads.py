"""Under gunicorn's threaded worker, one loop serves the requests of all threads."""

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.core.kvcache.wire.test_over_http import subscribed
from tests.hostile.raw_client import (
    COMPLETIONS,
    Wire,
    ask,
    http_post,
    metric,
    post,
    running,
)
from tests.hostile.waits import wait_for_running
from tests.other_workers import THREADS, served_by
from tests.running_server import QUICK_STEPS, RunningServer

LATENCIES = {"SIM_TIME_TO_FIRST_TOKEN": "50ms", "SIM_INTER_TOKEN_LATENCY": "10ms"}
STEPS = {"SIM_PROFILE": str(QUICK_STEPS)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One place for all, and little time for a body."""
    settings = {**LATENCIES, "SIM_MAX_NUM_SEQS": "1", "SIM_CLIENT_TIMEOUT": "1s"}
    with served_by("gthread", tmp_path_factory.mktemp("gthread"), **settings) as running_server:
        yield running_server
        assert "Traceback" not in running_server.log()


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "server" in request.fixturenames:
        port = request.getfixturevalue("server").port
        wait_for_running(port, 0)


def text_of(port: int, number: int) -> str:
    """The reply to an equal request, as a stream or whole."""
    fields: Any = ask(max_tokens=20, temperature=0)
    if number % 2:
        text: str = post(port, fields).json()["choices"][0]["text"]
        return text
    with Wire(port) as wire:
        events = wire.post({**fields, "stream": True}).events()
        return "".join(event["choices"][0]["text"] for event in events)


@pytest.mark.parametrize(
    ("worker", "timing"), [("gthread", STEPS), ("threads of gevent", LATENCIES)]
)
def test_concurrent_streams_of_all_worker_threads_have_the_same_text(
    tmp_path: Path, worker: str, timing: dict[str, str]
) -> None:
    with served_by(worker, tmp_path, **timing) as server, ThreadPoolExecutor(THREADS) as several:
        texts = set(several.map(lambda number: text_of(server.port, number), range(3 * THREADS)))
        assert len(texts) == 1, texts
        assert running(server.port) == 0
        counted = metric(server.port, "vllm:request_success_total", finished_reason="length")
        assert counted == 3 * THREADS
        assert metric(server.port, "vllm:generation_tokens_total") == 3 * THREADS * 20
        assert "Traceback" not in server.log()


def test_client_that_sends_slowly_delays_no_other_client(server: RunningServer) -> None:
    request = http_post(COMPLETIONS, json.dumps(ask()).encode())
    with ExitStack() as stack:
        slow = [stack.enter_context(Wire(server.port)) for _ in range(THREADS - 1)]
        for wire in slow:
            wire.send(request[:-5])
        assert post(server.port, ask()).status == 200
        for wire in slow[1:]:
            wire.send(request[-5:])
        assert [wire.answer().status for wire in slow] == [408] + [200] * (THREADS - 2)
        assert slow[0].sock.recv(1) == b""


def test_threaded_worker_completes_a_running_stream_at_shutdown(
    tmp_path: Path,
) -> None:
    with subscribed() as subscriber:
        cache = {
            "SIM_ENABLE_KVCACHE": "true",
            "SIM_ZMQ_ENDPOINT": f"tcp://127.0.0.1:{subscriber.port}",
        }
        with (
            served_by("gthread", tmp_path, **LATENCIES, **cache) as server,
            Wire(server.port) as wire,
        ):
            subscriber.wait_for_publisher(lambda ids: post(server.port, ask(prompt=ids)))
            assert post(server.port, ask(prompt=list(range(1, 65)))).status == 200
            assert subscriber.events(1)[0]["type"] == "BlockStored"
            events = wire.post(ask(max_tokens=60, stream=True)).events()
            next(events)
            server.process.send_signal(signal.SIGTERM)
            assert len([*events]) == 59
            wire.sock.close()
            assert server.process.wait(10) == 0
            assert "Traceback" not in server.log()
