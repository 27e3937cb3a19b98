"""How many run, how many wait, and who is turned away."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.hostile.raw_client import (
    COMPLETIONS,
    Wire,
    ask,
    http_post,
    is_error,
    metric,
    post,
    running,
    wait_until,
    waiting,
)
from tests.hostile.stressed_server import stressed_server
from tests.running_server import RunningServer

LONG = ask(max_tokens=4000, stream=True)


def rejections(server: RunningServer) -> float:
    return metric(server.port, "vllm:admission_rejections_total", reason="max_num_queued_reqs")


@contextmanager
def talking(port: int, clients: int, **fields: object) -> Iterator[None]:
    """So many clients whose replies take minutes."""
    with ExitStack() as stack:
        before = running(port) + waiting(port)
        for _ in range(clients):
            stack.enter_context(Wire(port)).post({**LONG, **fields})
        wait_until(lambda: running(port) + waiting(port) > before)
        yield
    wait_until(lambda: running(port) + waiting(port) == before)


def test_who_waits_is_served_in_order_of_arrival_and_who_finds_no_seat_is_turned_away() -> None:
    names = [f"guest-{number}" for number in range(8)]
    flags = ("--max-num-seqs", "1", "--max-waiting-queue-length", "8", "--inter-token-latency", "20ms")
    with stressed_server(*flags) as server, ExitStack() as stack:
        port = server.port
        first = stack.enter_context(Wire(port)).post(LONG)
        wait_until(lambda: running(port) == 1)
        wires = []
        for there, name in enumerate(names):
            wires.append(stack.enter_context(Wire(port)).send(request_named(name)))
            wait_until(lambda there=there: waiting(port) == there + 1)  # type: ignore[misc]
        for stream in (False, True):
            is_error(post(port, ask(stream=stream)), 429, "RateLimitError")
        assert (running(port), waiting(port)) == (1, 8)
        first.sock.close()
        assert [wire.answer().status for wire in wires] == [200] * 8
        # The access log has a line for each, in the order in which they ended.
        wait_until(lambda: len(served(server)) == 8)
        assert served(server) == names


def request_named(name: str) -> bytes:
    headers = ("Content-Type: application/json", f"X-Request-Id: {name}")
    return http_post(COMPLETIONS, json.dumps(ask(max_tokens=5)).encode(), *headers)


def served(server: RunningServer) -> list[str]:
    return re.findall(r'"request_id": "(guest-\d)"', server.log())


def test_vllm_s_own_limit_counts_choices_and_answers_503() -> None:
    flags = ("--max-num-seqs", "2", "--max-num-queued-reqs", "4", "--inter-token-latency", "20ms")
    with stressed_server(*flags) as server:
        port = server.port
        is_error(post(port, ask(n=5, temperature=1)), 503, "Service Unavailable")
        assert rejections(server) == 1
        with talking(port, 1, n=3, temperature=1):
            assert (running(port), waiting(port)) == (2, 1)
            is_error(post(port, ask(n=2, temperature=1)), 503, "Service Unavailable")
            is_error(post(port, ask(n=2, temperature=1, stream=True)), 503, "Service Unavailable")
            assert rejections(server) == 3
            with talking(port, 1):
                is_error(post(port, ask()), 503, "Service Unavailable")
                # A request that is refused for another reason is not counted.
                assert post(port, {"prompt": 5}).status == 400
                assert rejections(server) == 4
        assert post(port, ask(n=4, temperature=1)).status == 200
        assert rejections(server) == 4
