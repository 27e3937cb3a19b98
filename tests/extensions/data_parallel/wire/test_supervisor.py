"""`--data-parallel-multi-port-external-lb`: a port for each local rank, and their supervisor."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import psutil
import pytest
import requests

from tests.config.wire.test_headless import listening_ports
from tests.conformance.clients import openai_client
from tests.hostile.raw_client import Wire, wait_for_value
from tests.hostile.waits import wait_for_log
from tests.running_server import RunningServer, free_port, running_image
from tests.sdks import openai

FIRST_RANK = 2
LOCAL_RANKS = 2
PATHS = ("/health", "/ready", "/readyz")
RANK = "X-data-parallel-rank"


@contextmanager
def supervised(*flags: str) -> Iterator[tuple[RunningServer, str]]:
    """The server of ranks 2 and 3 of 4, and the URL of its supervisor."""
    port = free_port()
    words = [
        *("serve", "tiny", "--data-parallel-multi-port-external-lb", "--data-parallel-size=4"),
        *(f"--data-parallel-size-local={LOCAL_RANKS}", f"--data-parallel-start-rank={FIRST_RANK}"),
        *("--data-parallel-supervisor-port", str(port), "--dp-supervisor-probe-interval-s=0.05"),
    ]
    with running_image(*words, *flags) as server:
        url = f"http://127.0.0.1:{port}"
        wait_for_value(status_of, url, equals=200)
        yield server, url


def status_of(url: str, path: str = "/health") -> int | None:
    """None if the port is closed."""
    try:
        answer = requests.get(url + path, timeout=20)
    except requests.ConnectionError:
        return None
    assert answer.content == b""
    return answer.status_code


@pytest.fixture(scope="module")
def ranks() -> Iterator[tuple[RunningServer, str]]:
    with supervised() as running:
        yield running


def rank_servers(server: RunningServer) -> list[RunningServer]:
    """The server of each rank, by its port."""
    return [
        RunningServer(server.port + position, server.process, server.log_file)
        for position in range(LOCAL_RANKS)
    ]


def test_supervisor_and_local_ranks_each_listen_on_a_separate_port(
    ranks: tuple[RunningServer, str],
) -> None:
    server, supervisor = ranks
    workers = psutil.Process(server.process.pid).children()
    ports = set().union(*(listening_ports(worker.pid) for worker in workers))
    assert ports == {server.port, server.port + 1, int(supervisor.rpartition(":")[2])}


def test_metrics_use_global_rank_numbers(ranks: tuple[RunningServer, str]) -> None:
    for position, server in enumerate(rank_servers(ranks[0])):
        page = requests.get(f"{server.url}/metrics", timeout=20).text
        assert set(re.findall(r'engine="(\d+)"', page)) == {str(FIRST_RANK + position)}


def test_rank_header_counts_from_0_on_every_port(ranks: tuple[RunningServer, str]) -> None:
    for server in rank_servers(ranks[0]):
        with openai_client(server, strict=False) as client:

            def complete(rank: int, client: openai.OpenAI = client) -> int:
                headers = {RANK: str(rank)}
                body = {"model": "tiny", "prompt": "Hello", "max_tokens": 2}
                answer = client.completions.create(
                    **body, extra_headers=headers, extra_body={"ignore_eos": True}
                )
                return answer.usage.completion_tokens

            assert complete(0) == 2
            for rank in (1, FIRST_RANK, -1):
                message = f"data_parallel_rank {rank} is out of range [0, 1)."
                with pytest.raises(openai.BadRequestError, match=re.escape(message)):
                    complete(rank)


def test_supervisor_serves_only_its_documented_paths(ranks: tuple[RunningServer, str]) -> None:
    _, supervisor = ranks
    assert [status_of(supervisor, path) for path in PATHS] == [200, 200, 200]
    other = requests.get(f"{supervisor}/metrics", timeout=20)
    assert (other.status_code, other.json()) == (404, {"detail": "Not Found"})
    assert requests.post(f"{supervisor}/health", timeout=20).status_code == 405


def test_half_requests_do_not_keep_probes_from_the_supervisor() -> None:
    flags = ("--client-timeout=1s", "--keep-alive-timeout=1s")
    with supervised(*flags) as (_, supervisor), ExitStack() as stack:
        port = int(supervisor.rpartition(":")[2])
        wires = [stack.enter_context(Wire(port)) for _ in range(300)]
        for wire in wires:
            with suppress(OSError):  # a new client may take the place of an old one
                wire.send(b"GET /hea")
        assert status_of(supervisor) == 200
        for wire in wires:
            wire.seconds_until_closed()


def test_unresponsive_rank_ends_the_server() -> None:
    flags = ("--dp-supervisor-probe-timeout-s=0.1", "--dp-supervisor-probe-failure-threshold=2")
    with supervised(*flags) as (server, supervisor):
        [stopped] = [
            child.pid
            for child in psutil.Process(server.process.pid).children()
            if listening_ports(child.pid) == {server.port + 1}
        ]
        os.kill(stopped, signal.SIGSTOP)
        wait_for_log(server, "stopping the server")
        assert status_of(supervisor) in (503, None)
        os.kill(stopped, signal.SIGCONT)
        assert server.process.wait(20) == 0
        assert f"not healthy: 127.0.0.1:{server.port + 1}" in server.log()


def test_supervisor_is_not_ready_during_shutdown() -> None:
    flags = ("--shutdown-timeout=20", "--inter-token-latency=20ms")
    with supervised(*flags) as (server, supervisor):
        with openai_client(server, strict=False) as client:
            stream = client.completions.create(
                model="tiny",
                prompt="Hello",
                max_tokens=50,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            next(iter(stream))
            server.process.send_signal(signal.SIGTERM)
            wait_for_value(status_of, supervisor, equals=503)
            assert len(list(stream)) > 10
        assert server.process.wait(20) == 0
        assert status_of(supervisor) is None


def test_occupied_supervisor_port_is_logged_and_retried() -> None:
    taken = free_port()
    words = ("serve", "tiny", "-dpm", "--data-parallel-size=2", "--data-parallel-size-local=2")
    options = (
        "--data-parallel-supervisor-port",
        str(taken),
        "--dp-supervisor-probe-interval-s=0.05",
    )
    url = f"http://127.0.0.1:{taken}"
    with ExitStack() as held:
        held.enter_context(socket.create_server(("127.0.0.1", taken)))
        with running_image(*words, *options) as server:
            wait_for_log(server, "supervisor: cannot listen on")
            held.close()
            wait_for_value(status_of, url, equals=200)
