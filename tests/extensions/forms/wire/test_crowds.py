"""Crowds of clients with schemas of their own, which are compiled off the event loop."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from socket import create_connection
from typing import Any

import pytest

from tests.hostile.raw_client import get, post
from tests.running_server import RunningServer, running_server

CHATS = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server("--server-memory", "1GiB") as running:
        yield running


def chat(number: int, properties: int) -> dict[str, Any]:
    """Returns a chat whose schema no other one has: 300 properties take a tenth of a second."""
    names = [f"p{number}_{place}" for place in range(properties)]
    schema = {
        "type": "object",
        "properties": {name: {"type": "string", "pattern": "^[a-z]{10}$"} for name in names},
        "required": names,
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return {"messages": [{"role": "user", "content": "Hi"}], "response_format": form}


def test_many_new_schemas_with_patterns_at_once_are_all_compiled(server: RunningServer) -> None:
    """Native threads that waited for the lock of the package `regex` waited forever."""

    def status(number: int) -> int:
        return post(server.port, chat(number, properties=40), CHATS).status

    with ThreadPoolExecutor(24) as clients:
        assert set(clients.map(status, range(72))) == {200}


def test_schemas_of_clients_that_left_are_not_compiled(server: RunningServer) -> None:
    for burst in range(4):
        clients = []
        for number in range(16):
            data = json.dumps(chat(1000 + 16 * burst + number, properties=300)).encode()
            client = create_connection(("127.0.0.1", server.port), timeout=30)
            clients.append(client)
            head = f"POST {CHATS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            client.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        time.sleep(0.05)
        for client in clients:
            client.close()
    deadline_s = time.monotonic() + 20.0
    while held_bytes(server) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert not held_bytes(server)
    assert post(server.port, chat(1, properties=3), CHATS).status == 200


def held_bytes(server: RunningServer) -> int:
    caches = json.loads(get(server.port, "/admin/memory").body)["caches"]
    size: int = caches["requests in flight"]["size_bytes"]
    return size
