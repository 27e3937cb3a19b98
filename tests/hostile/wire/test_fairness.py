"""One client's appetite is no other client's delay."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.hostile.raw_client import Wire, aborts, ask, post
from tests.hostile.stressed_server import assert_idle, stressed_server
from tests.hostile.waits import wait_for_aborts, wait_for_log_count
from tests.running_server import RunningServer

ITL_S = 0.01


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    flags = (
        "--inter-token-latency",
        "10ms",
        "--client-timeout",
        "1s",
        "--max-request-body-size-mb",
        "8",
    )
    with stressed_server(*flags) as running:
        yield running


def request_named(name: str) -> bytes:
    return f"GET /v1/models HTTP/1.1\r\nHost: test\r\nX-Request-Id: {name}\r\n\r\n".encode()


def test_pipelining_connections_do_not_starve_another_connection(
    server: RunningServer,
) -> None:
    crowd = 12
    requests = 400  # a second of work: this process may wait for a core between two answers
    greedy_before = server.log().count('"request_id": "greedy"')
    with ExitStack() as open_wires, Wire(server.port) as modest:
        greedy = [open_wires.enter_context(Wire(server.port)) for _ in range(crowd)]
        # Each has a reader, so that the server never has to wait for a greedy one.
        readers = [threading.Thread(target=drain, args=(wire, requests)) for wire in greedy]
        for wire, reader in zip(greedy, readers, strict=True):
            reader.start()
            wire.send(request_named("greedy") * requests)
        for _ in range(5):
            modest.send(request_named("modest")).answer()
        for reader in readers:
            reader.join()
    # Turns are compared, not times: the access log has one line for each.
    wait_for_log_count(server, '"request_id": "greedy"', greedy_before + requests * crowd)
    turns = "".join(
        re.findall(r'"request_id": "(g|m)(?:reedy|odest)"', server.log())[greedy_before:]
    )
    assert max(map(len, turns.split("m")[:-1])) < requests * crowd / 2


def drain(wire: Wire, answers: int) -> None:
    while answers:
        answers -= wire.sock.recv(1 << 20).count(b"HTTP/1.1 200 OK")


def longest_gap_s(port: int, tokens: int, until: threading.Event) -> float:
    """The longest time that a stream was silent until `until` was set."""
    with Wire(port) as wire:
        last = None
        longest = 0.0
        for _ in wire.post(ask(max_tokens=tokens, stream=True)).events():
            now = time.monotonic()
            longest = max(longest, now - (last or now))
            last = now
            if until.is_set():
                break
    return longest


def test_four_megabyte_prompt_does_not_stall_running_streams(server: RunningServer) -> None:
    text = "Understudy reads a very long letter, and nobody waits for it. " * 68_000
    over = threading.Event()
    spent: list[float] = []

    def tokenize() -> None:
        start = time.monotonic()
        assert post(server.port, {"prompt": text}, "/tokenize").status == 200
        spent.append(time.monotonic() - start)
        over.set()

    heavy = threading.Thread(target=tokenize)
    heavy.start()
    gap_s = longest_gap_s(server.port, 2000, over)
    heavy.join()
    # Encoding on the hub would be one gap nearly as long as the request.
    assert gap_s < max(0.25, spent[0] / 3)
    assert_idle(server.port)


def hungry(choices: int = 64) -> dict[str, object]:
    """More bytes than socket buffers hold: the server will have to wait for whoever asks this."""
    return ask(n=choices, max_tokens=4000, stream=True, temperature=1, logprobs=5)


def test_slow_reading_client_delays_no_other_client(server: RunningServer) -> None:
    with Wire(server.port, receive_buffer=4096) as sipping:
        sipping.post(hungry())
        stop = threading.Event()

        def sip() -> None:
            while not stop.wait(0.1):
                sipping.sock.recv(1)

        drinker = threading.Thread(target=sip)
        drinker.start()
        try:
            totals = stream_together(server.port, clients=50, tokens=100)
        finally:
            stop.set()
            drinker.join()
    assert len(totals) == 50
    assert all(99 * ITL_S <= total < 99 * ITL_S + 5.0 for total in totals), max(totals)
    assert_idle(server.port)


def stream_together(port: int, clients: int, tokens: int) -> list[float]:
    """Seconds that each of `clients` streams took."""
    totals: list[float] = []

    def stream() -> None:
        with Wire(port) as wire:
            start = time.monotonic()
            assert len(list(wire.post(ask(max_tokens=tokens, stream=True)).events())) == tokens
            totals.append(time.monotonic() - start)

    threads = [threading.Thread(target=stream) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return totals


def test_client_that_reads_nothing_is_disconnected(
    server: RunningServer,
) -> None:
    aborts_before = aborts(server.port)
    with Wire(server.port, receive_buffer=4096) as stalled:
        stalled.post(hungry(32))
        wait_for_aborts(server.port, aborts_before + 32)
        assert_idle(server.port)
        stalled.seconds_until_closed()
