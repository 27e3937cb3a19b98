"""A turn of the event loop accepts few connections, so that those that exist are served, too."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from itertools import count
from types import SimpleNamespace
from typing import cast

import gevent
import gevent.socket
import pytest

from app.core.server.gunicorn.listener import MAX_LEFT, ClientServer
from app.core.server.gunicorn.worker import Worker
from app.core.server.http.client_connection import ESTABLISHED, reset_when_closed, tcp_state

CLIENTS = 100
PATIENCE_S = 10.0
REQUEST = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"


def accepted_in_turns(has_left: Callable[[object], bool], dropped: int = 0) -> Counter[int]:
    """Returns how many connections each turn of the loop hands on, until all but `dropped` are."""
    loop = gevent.get_hub().loop
    accepted_in_turn: Counter[int] = Counter()

    def accept(client: gevent.socket.socket, address: object) -> None:
        accepted_in_turn[loop.iteration] += 1
        client.close()

    with ExitStack() as sockets:
        listener = gevent.socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(CLIENTS)
        for _ in range(CLIENTS):
            sockets.enter_context(socket.create_connection(listener.getsockname()))
        server = ClientServer(listener, accept, has_left=has_left, is_full=bool)
        with closing(server), gevent.Timeout(PATIENCE_S):
            server.start()
            while accepted_in_turn.total() < CLIENTS - dropped:
                gevent.sleep(0.001)
    assert max(accepted_in_turn.values()) <= ClientServer.max_accept
    return accepted_in_turn


def test_connections_accepted_in_a_turn_are_limited() -> None:
    turns = accepted_in_turns(has_left=lambda client: False)
    assert max(turns.values()) == ClientServer.max_accept


def test_connections_whose_clients_have_left_are_dropped_without_a_turn() -> None:
    numbers = count()
    turns = accepted_in_turns(lambda client: bool(next(numbers) % 10), dropped=CLIENTS * 9 // 10)
    assert len(turns) == 1 and turns.total() == CLIENTS // 10


def test_a_turn_ends_even_if_all_clients_have_left() -> None:
    turns = accepted_in_turns(lambda client: True, dropped=CLIENTS - CLIENTS // (MAX_LEFT + 1))
    assert turns.total() == CLIENTS // (MAX_LEFT + 1)


@pytest.mark.parametrize("must_stay", [False, True])
def test_client_that_has_closed_its_side_has_left_only_if_it_must_stay(must_stay: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        with client, accepted:
            client.sendall(REQUEST)
            assert not has_left(accepted, must_stay)
            client.shutdown(socket.SHUT_WR)
            deadline_s = time.monotonic() + PATIENCE_S
            while tcp_state(accepted) == ESTABLISHED and time.monotonic() < deadline_s:
                time.sleep(0.001)
            assert has_left(accepted, must_stay) == must_stay


def has_left(accepted: socket.socket, must_stay: bool) -> bool:
    """Returns what a worker finds, whose requests wait for a turn if clients `must_stay`."""
    worker = SimpleNamespace(
        certificate=None, _turns=SimpleNamespace(has_time=lambda: not must_stay)
    )
    return Worker._has_left(cast(Worker, worker), SimpleNamespace(_sock=accepted))


def test_reset_connection_is_not_served() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        with accepted:
            client.sendall(REQUEST)
            reset_when_closed(client)
            client.close()
            deadline_s = time.monotonic() + PATIENCE_S
            while tcp_state(accepted) == ESTABLISHED and time.monotonic() < deadline_s:
                time.sleep(0.001)
            assert has_left(accepted, must_stay=False)
