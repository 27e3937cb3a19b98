"""The memory of all requests in flight, at a real server: rejected above its limit, and released.

The server may take 256 MiB, and its requests a fourth of that.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path

import pytest

from tests.hostile.raw_client import get, post
from tests.running_server import RunningServer, running_server

HEAD = (
    b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n"
)
LONG = json.dumps({"prompt": "a " * 700_000}).encode()
"""A body of 1.4 MB, whose prompt has 700,000 tokens."""


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    flags = ("--force-dummy-tokenizer", "--server-memory", "256MiB", "--client-timeout", "8s")
    with running_server(*flags) as running:
        yield running


def claimed_bytes(server: RunningServer) -> int:
    caches = json.loads(get(server.port, "/admin/memory").body)["caches"]
    size: int = caches["requests in flight"]["size_bytes"]
    return size


def unsent_bytes(server: RunningServer, client: socket.socket) -> int:
    """Returns what the server's side of a connection has not sent, as the kernel counts it."""
    here = f":{server.port:04X}"
    there = f":{client.getsockname()[1]:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(here) and fields[2].endswith(there):
            return int(fields[4].partition(":")[0], 16)
    raise AssertionError("there is no such connection")


def resident_bytes(server: RunningServer) -> int:
    size: int = json.loads(get(server.port, "/admin/memory").body)["resident_bytes"]
    return size


def wait_until(condition: Callable[[], object], patience_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + patience_s
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert condition()


def wait_for_release(server: RunningServer) -> None:
    wait_until(lambda: not claimed_bytes(server))


def connect(server: RunningServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=30)


def send_half(client: socket.socket, path: bytes, size: int) -> None:
    """Sends all but the last byte of a body."""
    client.sendall(HEAD % (path, size) + b"x" * (size - 1))


def answer_of(client: socket.socket) -> bytes:
    parts = []
    while part := client.recv(1 << 16):
        parts.append(part)
        if b"\r\n\r\n" in b"".join(parts) and b"}" in parts[-1]:
            break
    return b"".join(parts)


def test_half_bodies_are_rejected_in_sum_while_small_requests_pass(server: RunningServer) -> None:
    clients = []
    rejected = b""
    try:
        for _ in range(60):
            client = connect(server)
            clients.append(client)
            with suppress(OSError):  # rejected while it is sent
                send_half(client, b"/v1/chat/completions", 4_000_000)
        for client in clients:
            client.settimeout(0.2)
            with suppress(OSError):
                rejected = rejected or client.recv(1 << 16)
        assert 0 < claimed_bytes(server) <= 64 << 20
        assert post(server.port, {"prompt": "Hello " * 2000}, "/tokenize").status == 200
    finally:
        for client in clients:
            client.close()
    assert rejected.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nRetry-After: 1\r\n" in rejected
    error = json.loads(rejected.partition(b"\r\n\r\n")[2])["error"]
    assert error["type"] == "Service Unavailable" and error["code"] == 503
    assert "\n" not in error["message"]
    wait_for_release(server)


def test_memory_is_released_after_an_answer_and_after_an_error(server: RunningServer) -> None:
    assert post(server.port, json.loads(LONG), "/tokenize").status == 200
    wait_for_release(server)
    assert post(server.port, {"prompt": ["x" * 500_000]}, "/tokenize").status == 400
    wait_for_release(server)
    assert post(server.port, {"prompt": "x " * 300_000}, "/v1/completions").status == 400
    wait_for_release(server)


@pytest.mark.parametrize("path", [b"/tokenize", b"/v1/completions"])
def test_memory_is_released_when_the_client_leaves(server: RunningServer, path: bytes) -> None:
    for body in (LONG, LONG[:-1]):
        with closing(connect(server)) as client:
            client.sendall(HEAD % (path, len(LONG)) + body)
            time.sleep(0.3)
    wait_for_release(server)


def test_memory_is_released_when_a_body_times_out(server: RunningServer) -> None:
    with closing(connect(server)) as client:
        send_half(client, b"/tokenize", 1_000_000)
        wait_until(partial(claimed_bytes, server))
        assert answer_of(client).startswith(b"HTTP/1.1 408 ")
    wait_for_release(server)


def test_memory_of_a_stream_is_held_until_its_end(server: RunningServer) -> None:
    body = {"prompt": "Hello " * 3000, "max_tokens": 5, "stream": True}
    assert post(server.port, body, "/v1/completions").status == 200
    wait_for_release(server)


def test_request_that_never_has_room_is_too_large(server: RunningServer) -> None:
    answer = post(server.port, {"prompt": "x" * 2_000_000}, "/tokenize")
    assert answer.status == 413
    assert "all requests together have 64 MiB" in json.loads(answer.body)["error"]["message"]
    wait_for_release(server)


def test_long_replies_of_many_choices_count_before_they_are_sent(server: RunningServer) -> None:
    """128 replies of 32,000 tokens take 80 MB, however slowly the client reads them."""
    fields = {
        "prompt": "a",
        "n": 128,
        "max_tokens": 32_000,
        "ignore_eos": True,
        "stream": True,
    }
    answer = post(server.port, fields, "/v1/completions")
    assert b"of memory, but all requests together have 64 MiB" in answer.body
    wait_for_release(server)


def test_copies_of_a_long_id_count_for_each_choice(server: RunningServer) -> None:
    """A thousand prompts have a thousand ids, of 100 KB each."""
    fields = {"prompt": ["a"] * 1000, "request_id": "r" * 100_000, "max_tokens": 1}
    answer = post(server.port, fields, "/v1/completions")
    assert answer.status == 413
    chats = {"messages": [[{"role": "user", "content": "a"}]] * 1000, "request_id": "r" * 100_000}
    assert post(server.port, chats, "/v1/chat/completions/batch").status == 413
    del fields["request_id"]
    assert post(server.port, fields, "/v1/completions").status == 200
    wait_for_release(server)


@pytest.mark.parametrize(
    "fields",
    [{"n": 250, "max_tokens": 400}, {"max_tokens": 8000, "logprobs": 5}, {"max_tokens": 4000}],
)
def test_unread_streams_of_many_tokens_count(
    server: RunningServer, fields: Mapping[str, int]
) -> None:
    body = {"prompt": "a", "ignore_eos": True, "stream": True, **fields}
    data = json.dumps(body).encode()
    with closing(connect(server)) as client:
        client.sendall(HEAD % (b"/v1/completions", len(data)) + data)
        wait_until(lambda: claimed_bytes(server) >= 20 * fields["max_tokens"] * fields.get("n", 1))
    wait_for_release(server)


def test_kernel_keeps_little_of_a_stream_that_nobody_reads(server: RunningServer) -> None:
    """The stream has 5 MB. Without a limit, the kernel keeps up to 4 MB of each."""
    body = {"prompt": "a", "ignore_eos": True, "stream": True, "max_tokens": 8000, "logprobs": 5}
    data = json.dumps(body).encode()
    with closing(connect(server)) as client:
        client.sendall(HEAD % (b"/v1/completions", len(data)) + data)
        wait_until(lambda: unsent_bytes(server, client) > 1 << 14)
        time.sleep(0.5)
        assert unsent_bytes(server, client) < 1 << 18
    wait_for_release(server)


def test_whole_answers_that_nobody_reads_count(server: RunningServer) -> None:
    size = len(get(server.port, "/openapi.json").body)
    with ExitStack() as clients:
        for _ in range(20):
            client = clients.enter_context(connect(server))
            client.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
        wait_until(lambda: claimed_bytes(server) >= 20 * size)
    wait_for_release(server)


def test_stream_with_a_long_id_writes_few_events_at_once(server: RunningServer) -> None:
    """200 unread events with an id of 500 KB would be 100 MB."""
    before_bytes = resident_bytes(server)
    body = {"prompt": "a", "ignore_eos": True, "stream": True, "max_tokens": 200}
    data = json.dumps({**body, "request_id": "r" * 500_000}).encode()
    with closing(connect(server)) as client:
        client.sendall(HEAD % (b"/v1/completions", len(data)) + data)
        assert client.recv(1).startswith(b"H")
        time.sleep(0.5)
        assert resident_bytes(server) < before_bytes + (30 << 20)
    wait_for_release(server)


def test_parameters_that_are_rendered_for_each_prompt_count(server: RunningServer) -> None:
    """40 prompts with a megabyte of parameters are an answer of 40 MB, and its parts."""
    fields = {"prompt": ["a"] * 40, "kv_transfer_params": {"a": "x" * 1_000_000}}
    answer = post(server.port, fields, "/v1/completions/render")
    assert answer.status == 413
    assert "all requests together have 64 MiB" in json.loads(answer.body)["error"]["message"]
    wait_for_release(server)


def test_vectors_that_never_have_room_are_too_large() -> None:
    """A body of 2 KB asks for 61 vectors of 65,536 numbers: 96 MB with their text."""
    flags = ("--task", "embed", "--force-dummy-tokenizer", "--server-memory", "256MiB")
    with running_server(*flags) as server:
        vectors = {"input": ["a text with several words"] * 61, "dimensions": 65_536}
        answer = post(server.port, vectors, "/v1/embeddings")
        assert answer.status == 413
        assert "all requests together have 64 MiB" in json.loads(answer.body)["error"]["message"]
        vectors["dimensions"] = 64
        assert post(server.port, vectors, "/v1/embeddings").status == 200
        wait_for_release(server)
