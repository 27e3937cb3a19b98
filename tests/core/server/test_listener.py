"""A turn of the event loop accepts few connections, so that those that exist are served, too."""

from __future__ import annotations

import socket
from collections import Counter
from contextlib import ExitStack, closing

import gevent
import gevent.socket
import pytest

from app.core.server.gunicorn.fair_turns import ConnectionCost, FairTurns, Work
from app.core.server.gunicorn.listener import (
    BEHIND,
    MAX_ACCEPTED,
    MAX_ACCEPTED_BEHIND,
    ClientServer,
)

CLIENTS = 100
PATIENCE_S = 10.0


class NoTurns(FairTurns):
    """Counts work that waits, and runs none."""

    def schedule(self, cost: ConnectionCost, work: Work) -> list[Work]:
        self._long.append((cost, [work]))
        return []


@pytest.mark.parametrize(
    ("waiting_count", "max_accepted"), [(BEHIND, MAX_ACCEPTED), (BEHIND + 1, MAX_ACCEPTED_BEHIND)]
)
def test_connections_accepted_in_a_turn_are_limited(waiting_count: int, max_accepted: int) -> None:
    turns = NoTurns()
    for _ in range(waiting_count):
        turns.schedule(ConnectionCost(), lambda: None)
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
        server = ClientServer(listener, accept, is_full=lambda: False, turns=turns)
        with closing(server), gevent.Timeout(PATIENCE_S):
            server.start()
            while accepted_in_turn.total() < CLIENTS:
                gevent.sleep(0.001)
    assert max(accepted_in_turn.values()) == max_accepted
