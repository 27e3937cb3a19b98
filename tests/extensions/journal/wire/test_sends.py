"""The moments of writes of a real server, compared with those at which a client received them."""

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any

import pytest
import requests

from tests.hostile.raw_client import wait_until
from tests.running_server import RunningServer, running_server

CHAT = "/v1/chat/completions"
FLAGS = ("--journal", "100", "--time-to-first-token", "30ms", "--inter-token-latency", "4ms")
SLACK_S = 0.001
MAX_SOCKET_BYTES = 4 << 20
"""Largest send buffer of a socket on Linux (tcp_wmem)."""


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(*FLAGS, "--force-dummy-tokenizer", "--max-num-seqs", "64") as server:
        yield server


def entry_of(server: RunningServer, request_id: str) -> dict[str, Any]:
    """The entry of a request, once its last byte has been written."""
    answer = requests.get(f"{server.url}/admin/journal", timeout=10).json()
    [entry] = [entry for entry in answer["entries"] if entry["id"] == request_id]
    return dict(entry)


def body_of(tokens: int, **fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": "Hello"}
    return {"messages": [message], "max_tokens": tokens, "ignore_eos": True, **fields}


@pytest.mark.parametrize("path", [CHAT, f"{CHAT}?general=1"], ids=["fast path", "Flask"])
def test_recorded_write_times_precede_the_times_at_which_the_client_reads(
    server: RunningServer, path: str
) -> None:
    headers = {"X-Request-Id": f"timed-{len(path)}"}
    start_s = time.time()
    with requests.post(
        server.url + path,
        json=body_of(tokens=20, stream=True),
        headers=headers,
        stream=True,
        timeout=30,
    ) as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()
        received_s = [time.time() for line in lines if line.startswith(b"data")]
    entry = entry_of(server, headers["X-Request-Id"])
    sends = entry["sends_s"]
    assert start_s - SLACK_S <= entry["arrived_s"] <= entry["first_s"] <= entry["last_s"]
    assert entry["arrived_s"] <= sends[0] <= received_s[0] + SLACK_S
    assert entry["last_s"] - SLACK_S <= sends[-1] <= received_s[-1] + SLACK_S
    # Each event was written before it was received; some writes have several events.
    assert 1 <= len(sends) <= len(received_s)


def test_client_that_does_not_read_delays_the_recorded_writes(server: RunningServer) -> None:
    body = json.dumps(
        body_of(tokens=600, n=16, stream=True, logprobs=True, top_logprobs=20)
    ).encode()
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nX-Request-Id: slow\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    with closing(socket.socket()) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(head.encode() + body)
        wait_until(partial(has_ended_slow, server))
        begun_s = time.time()
        received = 0
        while data := client.recv(1 << 20):
            received += len(data)
        end_s = time.time()
    entry = entry_of(server, "slow")
    sends = entry["sends_s"]
    assert received > 2 * MAX_SOCKET_BYTES
    assert sends == sorted(sends)
    # The engine was ready before the client began to read; the writes were not.
    assert entry["last_s"] < begun_s + SLACK_S < sends[-1] <= end_s + SLACK_S


def has_ended_slow(server: RunningServer) -> bool:
    """Returns whether the engine has ended its reply to the slow client."""
    entries = requests.get(f"{server.url}/admin/journal", timeout=10).json()["entries"]
    return any(entry["id"] == "slow" and entry["last_s"] is not None for entry in entries)


def test_parallel_requests_have_separate_send_times(server: RunningServer) -> None:
    def send(number: int) -> tuple[int, float, float]:
        headers = {"X-Request-Id": f"own-{number}", "X-Understudy-Scope": f"scope-{number % 3}"}
        start_s = time.time()
        body = body_of(tokens=2 + number, stream=True)
        with requests.post(server.url + CHAT, json=body, headers=headers, timeout=30) as answer:
            assert answer.status_code == 200
        return number, start_s, time.time()

    with ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(send, range(24)))
    for scope in range(3):
        answer = requests.get(f"{server.url}/admin/journal?scope=scope-{scope}", timeout=10).json()
        entries = {entry["id"]: entry for entry in answer["entries"]}
        mine = [row for row in rows if row[0] % 3 == scope]
        assert sorted(entries) == sorted(f"own-{number}" for number, _, _ in mine)
        for number, start_s, end_s in mine:
            entry = entries[f"own-{number}"]
            assert start_s - SLACK_S <= entry["arrived_s"] <= entry["sends_s"][-1]
            assert entry["sends_s"][-1] <= end_s + SLACK_S
            assert entry["usage"]["completion_tokens"] == 2 + number
