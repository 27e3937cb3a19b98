"""Clients that connect by HTTP/2 and make no call cost a worker next to nothing."""

from __future__ import annotations

import resource
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import psutil
import pytest

from tests.extensions.grpc import raw as frames
from tests.extensions.grpc.client import connected, ends_of, generate
from tests.extensions.grpc.raw import PREFACE, RawClient, call, opening, reset, settings_frame
from tests.hostile.raw_client import get, wait_for_value
from tests.running_server import RunningServer, running_server

pytestmark = pytest.mark.grpc

START = PREFACE + settings_frame({})
CONNECTIONS = 6000
OPEN_AT_ONCE = 40
KEPT_OPEN = 800
MAX_GROWTH_BYTES = 25 << 20
"""Allowed growth of the worker: it was 100 MB and more when each connection had its state."""
MAX_BYTES_OF_A_CONNECTION = 10_000
"""Allowed memory of a connection without a call: it was over 17,000 with its tables."""
STREAMS = 2000


@pytest.fixture
def fresh() -> Iterator[RunningServer]:
    """A server that has not loaded its gRPC service yet."""
    with running_server() as server:
        yield server


def worker_of(server: RunningServer) -> psutil.Process:
    [worker] = psutil.Process(server.process.pid).children()
    return worker


class Memory:
    """Watches the largest memory of a worker in a `with` block."""

    def __init__(self, worker: psutil.Process) -> None:
        self._worker = worker
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._begin_bytes = worker.memory_info().rss
        self.growth_bytes = 0

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(0.02):
            growth_bytes = self._worker.memory_info().rss - self._begin_bytes
            self.growth_bytes = max(self.growth_bytes, growth_bytes)


def churn(port: int, data: bytes, count: int = CONNECTIONS) -> None:
    """Connects, sends `data` and disconnects `count` times, on 40 sockets at a time."""
    selector = selectors.DefaultSelector()
    begun = 0
    with ExitStack() as cleanup:
        cleanup.callback(selector.close)
        while begun < count or selector.get_map():
            while begun < count and len(selector.get_map()) < OPEN_AT_ONCE:
                sock = socket.create_connection(("127.0.0.1", port), 20)
                sock.setblocking(False)
                selector.register(sock, selectors.EVENT_WRITE)
                begun += 1
            for key, _ in selector.select(1):
                ready: socket.socket = key.fileobj  # type: ignore[assignment]
                with suppress(OSError):
                    ready.send(data)
                selector.unregister(ready)
                ready.close()


def has_loaded_grpc(worker: psutil.Process) -> bool:
    return any("/google/_upb/" in region.path for region in worker.memory_maps())


def test_empty_connections_leave_no_memory(fresh: RunningServer) -> None:
    worker = worker_of(fresh)
    with Memory(worker) as memory:
        churn(fresh.port, START)
        assert get(fresh.port, "/health").status == 200
    assert memory.growth_bytes < MAX_GROWTH_BYTES
    assert not has_loaded_grpc(worker)


def test_connections_that_end_during_a_call_leave_no_memory(fresh: RunningServer) -> None:
    with connected(fresh.port) as engine:
        assert ends_of(engine.generate(generate()))
        with Memory(worker_of(fresh)) as memory:
            churn(fresh.port, START + opening())
            assert get(fresh.port, "/health").status == 200
        assert memory.growth_bytes < MAX_GROWTH_BYTES
        wait_for_value(engine.running, equals=0)


def test_memory_is_not_kept_after_a_rapid_reset_flood(fresh: RunningServer) -> None:
    resets = b"".join(opening(stream) + reset(stream, 8) for stream in range(1, 2 * STREAMS + 1, 2))
    with connected(fresh.port) as engine:
        assert ends_of(engine.generate(generate()))
        with Memory(worker_of(fresh)) as memory:
            for _ in range(300):
                with suppress(OSError), socket.create_connection(("127.0.0.1", fresh.port)) as sock:
                    sock.sendall(START + resets)
            churn(fresh.port, START, count=2000)
            assert get(fresh.port, "/health").status == 200
        assert memory.growth_bytes < MAX_GROWTH_BYTES


def test_connection_gets_its_state_with_the_first_call(fresh: RunningServer) -> None:
    worker = worker_of(fresh)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    begin_bytes = worker.memory_info().rss
    with ExitStack() as sockets:
        clients = [RawClient(fresh.port, START) for _ in range(KEPT_OPEN)]
        for client in clients:
            sockets.enter_context(client.sock)
        for client in clients:
            client.send(frames.frame(frames.PING, 0, 0, bytes(8)))
            received = [client.frame() for _ in range(4)]
            kinds = [frame[0] for frame in received if frame is not None]
            assert kinds == [frames.SETTINGS, frames.WINDOW_UPDATE, frames.SETTINGS, frames.PING]
        growth_bytes = worker.memory_info().rss - begin_bytes
        assert not has_loaded_grpc(worker)
        assert growth_bytes / KEPT_OPEN < MAX_BYTES_OF_A_CONNECTION
        clients[0].send(call(generate(), 1))
        assert clients[0].ends(1)["grpc-status"] == "0"
        assert has_loaded_grpc(worker)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_call_sent_together_with_the_preface_is_answered(fresh: RunningServer) -> None:
    """Several of them, while the service is loaded; a client that leaves meanwhile delays none."""
    clients = [RawClient(fresh.port, START + call(generate(), 1)) for _ in range(8)]
    with socket.create_connection(("127.0.0.1", fresh.port)) as departed:
        departed.sendall(START + call(generate(), 1))
    for client in clients:
        with client.sock:
            assert client.ends(1)["grpc-status"] == "0"
    begin_s = time.monotonic()
    assert fresh.stop() == 0
    assert time.monotonic() - begin_s < 10
