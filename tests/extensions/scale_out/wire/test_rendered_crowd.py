"""Rendered chats with many tools, sent by a crowd, delay no other client."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.hostile.raw_client import Wire, http_post
from tests.hostile.stressed_server import stressed_server
from tests.hostile.waits import wait_for_log_count
from tests.running_server import RunningServer

CLIENTS = 60
REQUESTS = 3
TOOLS = 90
NAME = re.compile(r'"request_id": "(crowd|health)"')


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with stressed_server("--enable-scale-out", "--vllm-version", "0.33") as running:
        yield running


def rendered_chat() -> bytes:
    """A request whose question is found with four renderings of its tools."""
    properties = {f"p{number}": {"type": "string"} for number in range(10)}
    parameters = {"type": "object", "properties": properties}
    functions = [{"name": f"f{number}", "parameters": parameters} for number in range(TOOLS)]
    body: dict[str, Any] = {
        "token_ids": [*range(5, 100)],
        "sampling_params": {"max_tokens": 1},
        "parse_context": {
            "tools": [{"type": "function", "function": function} for function in functions],
            "tool_choice": "auto",
            "history_tool_call_cnt": 1,
        },
    }
    name = ("Content-Type: application/json", "X-Request-Id: crowd")
    return http_post("/inference/v1/generate", json.dumps(body).encode(), *name)


def ask_again(wire: Wire, request: bytes) -> None:
    for _ in range(REQUESTS):
        assert wire.send(request).answer().status == 200


def test_health_gets_turns_between_the_requests_of_a_crowd(server: RunningServer) -> None:
    request = rendered_chat()
    with ExitStack() as open_wires, Wire(server.port) as modest:
        crowd = [open_wires.enter_context(Wire(server.port)) for _ in range(CLIENTS)]
        threads = [threading.Thread(target=ask_again, args=(wire, request)) for wire in crowd]
        for thread in threads:
            thread.start()
        probe = b"GET /health HTTP/1.1\r\nHost: test\r\nX-Request-Id: health\r\n\r\n"
        probes = 0
        while any(thread.is_alive() for thread in threads):
            assert modest.send(probe).answer().status == 200
            probes += 1
        for thread in threads:
            thread.join()
    # Turns are compared, not times: the access log has one line for each.
    wait_for_log_count(server, '"request_id": "crowd"', CLIENTS * REQUESTS)
    wait_for_log_count(server, '"request_id": "health"', probes)
    turns = "".join(name[0] for name in NAME.findall(server.log()))
    assert turns.count("c") == CLIENTS * REQUESTS
    waits = [len(wait) for wait in turns.split("h")[:-1]]
    assert len(waits) == probes
    assert max(waits) <= CLIENTS / 2
