"""Clients of /generate that disconnect leave nothing behind."""

import json
import socket

import pytest

from tests.client import Client, served
from tests.hostile.raw_client import wait_until


def wait_for_requests(client: Client, count: int) -> None:
    """Waits until the server has this number of running and waiting requests."""

    def is_count_reached() -> bool:
        [load] = client.get("/get_load").json()
        return bool(load["num_reqs"] == count)

    wait_until(is_count_reached)


@pytest.mark.parametrize("streams", [True, False])
def test_client_disconnect_frees_all_slots_of_the_request(streams: bool) -> None:
    body = json.dumps({"text": ["Hello", "there"], "stream": streams}).encode()
    head = b"POST /generate HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
    request = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with served("--dialect=sglang", "--time-to-first-token=30m") as client:
        with socket.create_connection(("127.0.0.1", client.server.port)) as connection:
            connection.sendall(request)
            wait_for_requests(client, 2)
        wait_for_requests(client, 0)
        assert client.get("/health").status_code == 200
