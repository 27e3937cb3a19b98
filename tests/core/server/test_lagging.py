"""Slices for lagging clients wait for turns of the event loop, so that no crowd holds the loop."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from math import inf

import gevent
import gevent.socket
import pytest
from gunicorn.config import Config

from app.core.server.gunicorn.fair_turns import TURN_S, FairTurns, Work
from app.core.server.gunicorn.fast_connection import FastConnection
from app.core.server.gunicorn.hub_connection import FastPath
from app.core.server.gunicorn.logs import ServerLogger

CLIENTS = 8
SLICES = 3
PATIENCE_S = 5.0
WRITE_TIMEOUT_S = 0.05


class Clock:
    """Time that only work moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class SlowSource:
    """A stream whose slices take `cost_s` each to render; records the loop's iteration of each slice."""

    def __init__(self, clock: Clock, cost_s: float, iterations: list[int]) -> None:
        self._clock = clock
        self._cost_s = cost_s
        self._iterations = iterations
        self._left = SLICES
        self.was_left = False

    def next_slice(self) -> tuple[bytes, bool, bool]:
        self._clock.now_s += self._cost_s
        self._iterations.append(gevent.get_hub().loop.iteration)
        self._left -= 1
        return b"slice", self._left > 0, not self._left

    def leave(self) -> None:
        self.was_left = True


@pytest.fixture
def clock() -> Clock:
    return Clock()


class ManualTurns(FairTurns):
    """Long work runs only when a test runs it."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Work] = []

    def run_long(self, work: Work) -> None:
        self.waiting.append(work)


@pytest.fixture
def path(clock: Clock) -> FastPath:
    return FastPath(
        app=None,
        log=ServerLogger(Config()),
        turns=FairTurns(clock, clock),
        connections={},
        idle_s=inf,
        serve_general=lambda connection, data: None,
        client_timeout_s=WRITE_TIMEOUT_S,
    )


@pytest.fixture
def connections(path: FastPath) -> Iterator[list[FastConnection]]:
    """Connections whose sockets have room."""
    with ExitStack() as sockets:
        connections = []
        for _ in range(CLIENTS):
            server, client = gevent.socket.socketpair()
            sockets.enter_context(client)
            connection = FastConnection(path, server, ("127.0.0.1", 1), None)
            connection.busy = True
            connections.append(connection)
        yield connections
        for connection in connections:
            connection.close()


def test_slow_clients_share_the_time_limit_of_an_event_loop_iteration(
    connections: list[FastConnection], clock: Clock
) -> None:
    iterations: list[int] = []
    for connection in connections:
        connection.start(SlowSource(clock, 0.6 * TURN_S, iterations))
        connection.lag()
    with gevent.Timeout(PATIENCE_S):
        while len(iterations) < CLIENTS * SLICES:
            gevent.sleep(0.001)
    assert max(map(iterations.count, iterations)) == 2, (
        "a third slice would begin after the turn's end"
    )


def test_waiting_for_other_connections_is_not_part_of_the_client_timeout(
    path: FastPath, connections: list[FastConnection], clock: Clock
) -> None:
    connection, *_ = connections
    source = SlowSource(clock, 0.0, [])
    connection.start(source)
    turns = ManualTurns()
    path.turns = turns
    connection.lag()
    with gevent.Timeout(PATIENCE_S):
        while not turns.waiting:
            gevent.sleep(0.001)
    gevent.sleep(2 * WRITE_TIMEOUT_S)
    assert connection.is_open and not source.was_left
    turns.waiting.pop()()
    assert connection.lags


def test_client_that_reads_nothing_is_disconnected(
    connections: list[FastConnection], clock: Clock
) -> None:
    stalled, *_ = connections
    stalled.client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    source = SlowSource(clock, 0.0, [])
    stalled.start(source)
    stalled.put(b" " * (1 << 20))
    with gevent.Timeout(PATIENCE_S):
        while not source.was_left:
            gevent.sleep(0.001)
    assert not stalled.is_open


def test_client_that_begins_to_lag_while_a_slice_is_rendered_has_one_watcher(
    connections: list[FastConnection],
) -> None:
    """The head of a stream may fill the socket before its first slice is ready."""
    connection, *_ = connections
    connection.lag()
    watcher = connection._watcher
    connection.lag()
    assert connection._watcher is watcher
    connection.close()
    connection.lag()
    assert connection._watcher is None and not connection.lags
