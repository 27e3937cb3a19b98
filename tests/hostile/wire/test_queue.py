"""How many run, how many wait, and who is turned away."""

import json
import re
from contextlib import ExitStack

from tests.hostile.raw_client import (
    COMPLETIONS,
    Wire,
    ask,
    http_post,
    is_error,
    post,
    running,
    wait_for_value,
    waiting,
)
from tests.hostile.stressed_server import stressed_server
from tests.hostile.waits import wait_for_running, wait_for_waiting
from tests.running_server import RunningServer

LONG = ask(max_tokens=4000, stream=True)


def test_waiting_requests_run_in_arrival_order() -> None:
    names = [f"guest-{number}" for number in range(8)]
    flags = (
        "--max-num-seqs",
        "1",
        "--max-waiting-queue-length",
        "8",
        "--inter-token-latency",
        "20ms",
    )
    with stressed_server(*flags) as server, ExitStack() as stack:
        port = server.port
        first = stack.enter_context(Wire(port)).post(LONG)
        wait_for_running(port, 1)
        wires = []
        for position, name in enumerate(names):
            wires.append(stack.enter_context(Wire(port)).send(request_named(name)))
            wait_for_waiting(port, position + 1)
        for stream in (False, True):
            is_error(post(port, ask(stream=stream)), 429, "RateLimitError")
        assert (running(port), waiting(port)) == (1, 8)
        first.sock.close()
        assert [wire.answer().status for wire in wires] == [200] * 8
        # The access log has a line for each, in the order in which they ended.
        wait_for_value(count_served, server, equals=8)
        assert served(server) == names


def request_named(name: str) -> bytes:
    headers = ("Content-Type: application/json", f"X-Request-Id: {name}")
    return http_post(COMPLETIONS, json.dumps(ask(max_tokens=5)).encode(), *headers)


def count_served(server: RunningServer) -> int:
    return len(served(server))


def served(server: RunningServer) -> list[str]:
    return re.findall(r'"request_id": "(guest-\d)"', server.log())
