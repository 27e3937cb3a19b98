"""Hundreds of requests that go wrong in every way leave nothing behind."""

from __future__ import annotations

import json
import os
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from tests.faults.client import PATHS, Asker, ask, got, question
from tests.hostile.raw_client import get, running, wait_until, waiting
from tests.hostile.stressed_server import stressed_server, workers_of

FAULTS = (
    *("disconnect", "disconnect; after=1", "disconnect; after=4", "truncate; after=3", "truncated-json"),
    *("malformed-chunk; chunk=2", "missing-done", "empty", "error; status=503", "rate-limit; rate=600"),
    *("stall; seconds=0.02; after=2", "slow-first-token; seconds=0.02", ""),
)
REQUESTS = 400
CLIENT = "address:127.0.0.1"


def test_places_and_connections_come_back_after_hundreds_of_faults() -> None:
    """Four places, so that one that is lost is soon missed."""
    with stressed_server("--max-num-seqs", "4", "--inter-token-latency", "1ms") as server:
        draw = random.Random(3)
        wanted = [
            (draw.choice(PATHS), draw.random() < 0.8, draw.choice(FAULTS), draw.choice(("1.0", "1.1")))
            for _ in range(REQUESTS)
        ]
        with ThreadPoolExecutor(8) as clients:
            list(clients.map(lambda one: ask_and_be_cut(server.port, *one), wanted))
        wait_until(lambda: running(server.port) == 0)
        (worker,) = workers_of(server)
        before = open_files(worker)
        for _ in range(100):
            ask(server.port, PATHS[0], True, "disconnect; after=1")
        wait_until(lambda: open_files(worker) <= before)
        assert all(got(server.port, path, True).chunks[-1] == "data: [DONE]" for path in PATHS)


def ask_and_be_cut(port: int, path: str, stream: bool, fault: str, version: str) -> None:
    with suppress(ConnectionResetError):  # so a stream of HTTP/1.0 breaks off
        ask(port, path, stream, fault, version)


def open_files(process: int) -> int:
    return len(os.listdir(f"/proc/{process}/fd"))


def test_a_client_that_leaves_a_faulty_stream_frees_its_place() -> None:
    rules = [{"action": "malformed-chunk", "chunk": 2}]
    slow = ("--inter-token-latency", "50ms", "--fault-rules", json.dumps(rules))
    with stressed_server("--max-num-seqs", "2", *slow) as server:
        for version in ("1.0", "1.1"):
            for _ in range(6):
                with Asker(server.port) as asker:
                    asker.send(PATHS[0], question(PATHS[0], True, max_tokens=2000), version)
                    received = b""
                    while b"}{" not in received:
                        received += asker.sock.recv(65536)
            wait_until(lambda: running(server.port) == 0)
        # A place is free a moment before it is known whose fault it was.
        wait_until(lambda: get(server.port, "/admin/verdict").json()["clients"][CLIENT]["disconnects"] == 12)
        assert get(server.port, "/admin/verdict").json()["clean"] is True


def test_a_stream_that_stalls_keeps_its_place() -> None:
    with (
        stressed_server("--max-num-seqs", "1") as single,
        Asker(single.port) as first,
        Asker(single.port) as second,
    ):
        first.send(PATHS[0], question(PATHS[0], True), X_Fault="stall; seconds=3600")
        wait_until(lambda: running(single.port) == 1)
        second.send(PATHS[0], question(PATHS[0], True))
        wait_until(lambda: waiting(single.port) == 1)
        first.sock.close()
        answer = second.answer()
        assert answer and answer.chunks[-1] == "data: [DONE]"
