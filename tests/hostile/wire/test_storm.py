"""Many at once: everybody is answered, and afterwards nothing is left."""

import asyncio
import json
import os
import resource
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from random import Random

import pytest

from tests.hostile.raw_client import (
    COMPLETIONS,
    Wire,
    aborts,
    ask,
    http_post,
    metric,
    post,
)
from tests.hostile.stressed_server import assert_idle, stressed_server, workers_of
from tests.hostile.waits import wait_for_log
from tests.running_server import RunningServer, running_gunicorn

CONNECTIONS = 1000
TOKENS = 5
SPARE_FILES = 200
LEFT = 300
"""Clients that leave before their connections are accepted."""


@pytest.fixture(scope="module")
def connections() -> Iterator[int]:
    """As many connections as this process may open, at most 1,000."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield min(CONNECTIONS, hard - SPARE_FILES) if hard != resource.RLIM_INFINITY else CONNECTIONS
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    flags = ("--max-num-seqs", "1000", "--max-waiting-queue-length", "100000")
    latency = ("--time-to-first-token", "200ms", "--inter-token-latency", "20ms")
    with stressed_server(*flags, *latency) as running:
        yield running


def is_complete(answer: bytes, stream: bool) -> bool:
    head, _, body = answer.partition(b"\r\n\r\n")
    if stream:
        whole = body.count(b"data: {") == TOKENS and body.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    else:
        whole = json.loads(body)["usage"]["completion_tokens"] == TOKENS
    return head.startswith(b"HTTP/1.1 200 ") and whole


async def everybody_asks_at_once(port: int, count: int) -> Counter[str]:
    """Open all connections, then ask on all of them, then read all answers."""
    streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    headers = ("Content-Type: application/json", "Connection: close")
    bodies = [
        json.dumps(ask(max_tokens=TOKENS, stream=stream)).encode() for stream in (False, True)
    ]

    async def exchange(number: int) -> str:
        reader, writer = streams[number]
        try:
            writer.write(http_post(COMPLETIONS, bodies[number % 2], *headers))
            return "complete" if is_complete(await reader.read(), bool(number % 2)) else "broken"
        except OSError as error:
            return repr(error)
        finally:
            writer.close()

    return Counter(await asyncio.gather(*map(exchange, range(count))))


def test_thousands_of_concurrent_connections_get_complete_responses(
    server: RunningServer, connections: int
) -> None:
    served = metric(server.port, "vllm:request_success_total")
    outcome = asyncio.run(everybody_asks_at_once(server.port, connections))
    assert outcome == {"complete": connections}
    assert_idle(server.port)
    assert metric(server.port, "vllm:request_success_total") == served + connections


async def everybody_leaves(port: int, count: int, rng: Random) -> None:
    """Ask on `count` connections and leave each at a moment of its own, with a FIN or a RST."""

    async def exchange() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        fields = {
            "n": rng.choice((1, 1, 1, 3)),
            "stream": rng.random() < 0.7,
            "max_tokens": rng.randint(1, 200),
        }
        request = http_post(COMPLETIONS, json.dumps(ask(temperature=1, **fields)).encode())
        if rng.random() < 0.1:
            request = request[: rng.randrange(request.index(b"\r\n\r\n"))]
        writer.write(request)
        try:
            async with asyncio.timeout(rng.expovariate(2.0)):
                await reader.read(rng.choice((1, 1000, 10**6)))
        except (TimeoutError, OSError):
            pass
        if rng.random() < 0.3:
            writer.transport.abort()
        writer.close()

    await asyncio.gather(*(exchange() for _ in range(count)))


def test_mass_disconnects_at_every_stage_free_all_slots(
    server: RunningServer, connections: int
) -> None:
    counted = ("vllm:request_success_total", "vllm:request_prompt_tokens_count")
    values_before = [metric(server.port, name) for name in counted]
    asyncio.run(everybody_leaves(server.port, min(400, connections), Random(7)))
    assert_idle(server.port)
    finished, observed = (
        metric(server.port, name) - past for name, past in zip(counted, values_before, strict=True)
    )
    assert finished == observed
    assert aborts(server.port) > 0
    assert metric(server.port, "vllm:request_success_total", finished_reason="error") == 0


def test_requests_of_clients_that_left_the_backlog_are_not_begun(server: RunningServer) -> None:
    [worker] = workers_of(server)
    choices = 16
    request = ask(n=choices, max_tokens=1000, stream=True, temperature=1)
    aborted_before = aborts(server.port)
    os.kill(worker, signal.SIGSTOP)
    try:
        for _ in range(LEFT):
            Wire(server.port).post(request).close()
        last = Wire(server.port).post(ask())
    finally:
        os.kill(worker, signal.SIGCONT)
    with last:
        assert last.answer().status == 200
    assert_idle(server.port)
    assert aborts(server.port) - aborted_before < LEFT * choices / 4


def test_clients_wait_while_file_descriptors_are_exhausted() -> None:
    with running_gunicorn() as server:
        [worker] = workers_of(server)
        # What a request needs is loaded before: no more files are needed later.
        assert (
            post(server.port, ask(structured_outputs={"json": {"type": "integer"}})).status == 200
        )
        _, hard_limit = resource.prlimit(worker, resource.RLIMIT_NOFILE)
        few = len(os.listdir(f"/proc/{worker}/fd")) + 4
        resource.prlimit(worker, resource.RLIMIT_NOFILE, (few, hard_limit))
        with ExitStack() as clients:
            for _ in range(20):
                clients.enter_context(Wire(server.port)).send(b"POST /v1/completions HTTP/1.1\r\n")
            wait_for_log(server, "no more connections can be accepted")
        assert post(server.port, ask()).status == 200
        assert server.log().count("no more connections can be accepted") == 1
        assert "Traceback" not in server.log()
