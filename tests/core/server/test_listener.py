"""A turn of the event loop accepts few connections, so that those that exist are served, too."""

from __future__ import annotations

import socket
import time
from collections import Counter
from contextlib import ExitStack, closing

import gevent
import gevent.socket
import pytest

from app.core.server.gunicorn.listener import ClientServer
from app.core.server.gunicorn.request_connection import has_left
from app.core.server.http.client_connection import ESTABLISHED, reset_when_closed, tcp_state

CLIENTS = 100
PATIENCE_S = 10.0
REQUEST = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def test_connections_accepted_in_a_turn_are_limited() -> None:
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
        server = ClientServer(listener, accept, is_full=bool)
        with closing(server), gevent.Timeout(PATIENCE_S):
            server.start()
            while accepted_in_turn.total() < CLIENTS:
                gevent.sleep(0.001)
    assert max(accepted_in_turn.values()) == ClientServer.max_accept


@pytest.mark.parametrize(
    ("sent", "has_tls", "is_left"),
    [
        (b"", False, True),
        (HTTP2, False, True),
        (REQUEST, False, False),
        (REQUEST, True, True),
    ],
)
def test_closed_connection_is_served_only_with_a_request(
    sent: bytes, has_tls: bool, is_left: bool
) -> None:
    """A client of HTTP/1.1 may have closed its side alone, and waits for its answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        with client, accepted:
            client.sendall(sent)
            assert not has_left(accepted, has_tls)
            client.shutdown(socket.SHUT_WR)
            deadline_s = time.monotonic() + PATIENCE_S
            while tcp_state(accepted) == ESTABLISHED and time.monotonic() < deadline_s:
                time.sleep(0.001)
            assert has_left(accepted, has_tls) == is_left


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
            assert has_left(accepted, has_tls=False)
