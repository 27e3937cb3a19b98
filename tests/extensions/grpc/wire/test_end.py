"""No call is lost when a server reloads or ends."""

import signal
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.extensions.grpc.client import Engine, connected, generate
from tests.extensions.grpc.raw import GOAWAY, RawClient, call
from tests.hostile.raw_client import PATIENCE_S, wait_until
from tests.hostile.stressed_server import workers_of
from tests.hostile.waits import wait_for_new_workers
from tests.running_server import running_server

pytestmark = pytest.mark.grpc
CALLERS = 4
LAST_STREAM = 2**31 - 1
"""Stream of a GOAWAY that refuses no call yet (RFC 9113, section 6.8)."""


def last_stream_of(client: RawClient) -> int:
    """Last stream of the next GOAWAY, whose reason is no error."""
    payload = next(payload for kind, _, _, payload in client.frames() if kind == GOAWAY)
    last_stream, reason = struct.unpack_from(">LL", payload)
    assert reason == 0
    return int(last_stream)


def test_call_sent_after_the_first_goaway_frame_is_answered() -> None:
    with running_server("--grpc", "--drain-duration", "20s") as server:
        client = RawClient(server.port)
        with client.sock:
            client.send(call(generate(max_tokens=1), 1))
            client.ends(1)
            server.process.send_signal(signal.SIGTERM)
            assert last_stream_of(client) == LAST_STREAM
            client.send(call(generate(max_tokens=1), 3))
            assert client.ends(3)["grpc-status"] == "0"
        assert server.process.wait(PATIENCE_S) == 0


class Callers:
    """Threads that share a channel and call without a pause."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.answered = 0
        self.failures: list[str] = []
        self.is_over = threading.Event()
        self.threads = [threading.Thread(target=self.work) for _ in range(CALLERS)]

    def work(self) -> None:
        while not self.is_over.is_set():
            try:
                self.engine.generate(generate(max_tokens=5))
                self.answered += 1
            except Exception as error:
                self.failures.append(repr(error))


@contextmanager
def calling(engine: Engine) -> Iterator[Callers]:
    callers = Callers(engine)
    for thread in callers.threads:
        thread.start()
    try:
        yield callers
    finally:
        callers.is_over.set()
        for thread in callers.threads:
            thread.join()


def test_grpc_calls_do_not_fail_during_a_reload() -> None:
    with (
        running_server("--grpc", "--inter-token-latency", "2ms") as server,
        connected(server.port) as engine,
        calling(engine) as callers,
    ):
        for _ in range(2):
            answered = callers.answered
            wait_until(lambda answered=answered: callers.answered > answered)  # type: ignore[misc]
            workers_before = set(workers_of(server))
            server.process.send_signal(signal.SIGHUP)
            wait_for_new_workers(server, workers_before)
    assert callers.failures == []
