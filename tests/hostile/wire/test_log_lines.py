"""What clients and other ranks cause to be logged is bounded, in lines and in their length."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from tests.hostile.raw_client import COMPLETIONS, Wire, ask, get, wait_until
from tests.hostile.stressed_server import workers_of
from tests.hostile.waits import wait_for_new_workers
from tests.running_server import RunningServer, free_port, running_gunicorn

INVALID_REQUESTS = (
    b"GET\r\n\r\n",
    b"GET /health HTTP/9\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost a\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
    b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    b"POST /health HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
)
ROUNDS = 30
MAX_LINE_CHARS = 4_000


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    env = {
        "SIM_ENABLE_KVCACHE": "true",
        "SIM_KV_CONNECTOR": "mooncake",
        "SIM_KV_SIDE_CHANNEL_HOST": "127.0.0.1",
        "SIM_KV_SIDE_CHANNEL_PORT": str(free_port()),
        "SIM_MOONCAKE_BOOTSTRAP_PORT": str(free_port()),
        "SIM_DATA_PARALLEL_SIZE": "2",
        "SIM_SERVER_DEV_MODE": "true",
    }
    with running_gunicorn(env=env, ports=2) as server:
        yield server


def lines_since(server: RunningServer, text: str) -> list[str]:
    return server.log().removeprefix(text).splitlines()


def test_invalid_requests_log_about_a_line_in_a_second(server: RunningServer) -> None:
    time.sleep(1.1)  # the line about an earlier request may have begun an interval
    log = server.log()
    start_s = time.monotonic()
    for request in INVALID_REQUESTS * ROUNDS:
        with suppress(OSError), Wire(server.port) as wire:
            wire.send(request).sock.recv(1)
    lines = lines_since(server, log)
    assert 1 <= len(lines) <= 2 + time.monotonic() - start_s
    assert max(map(len, lines)) <= MAX_LINE_CHARS


def test_a_long_address_of_a_peer_is_logged_in_a_line_of_limited_length(
    server: RunningServer,
) -> None:
    log = server.log()
    parameters = {
        "do_remote_prefill": True,
        "remote_engine_id": "e",
        "transfer_id": "t",
        "remote_bootstrap_addr": "http://" + "a" * 100_000,
    }
    with Wire(server.port) as wire:
        wire.post({**ask(max_tokens=1), "kv_transfer_params": parameters}).answer()
    lines = lines_since(server, log)
    assert any("http://aaa" in line for line in lines)
    assert max(map(len, lines)) <= MAX_LINE_CHARS


def test_concurrent_requests_to_all_ranks_log_nothing(server: RunningServer) -> None:
    log = server.log()
    with ThreadPoolExecutor(20) as clients:
        answers = [clients.submit(get, server.port, "/admin/config?ranks=all") for _ in range(100)]
        assert {answer.result().status for answer in answers} == {200}
    assert lines_since(server, log) == []


def test_sigabrt_under_load_ends_a_worker_without_a_traceback(server: RunningServer) -> None:
    has_ended = False

    def load() -> None:
        while not has_ended:
            with suppress(Exception), Wire(server.port) as wire:
                while not has_ended:
                    wire.post({**ask(max_tokens=8), "n": 4}, COMPLETIONS).answer()

    with ThreadPoolExecutor(8) as clients:
        for _ in range(8):
            clients.submit(load)
        try:
            time.sleep(0.5)
            workers = set(workers_of(server))
            for worker in workers:
                os.kill(worker, signal.SIGABRT)
            wait_for_new_workers(server, workers)
            wait_until(lambda: is_healthy(server))
        finally:
            has_ended = True
    assert "Traceback" not in server.log()


def is_healthy(server: RunningServer) -> bool:
    with suppress(OSError):
        return get(server.port, "/health").status == 200
    return False
