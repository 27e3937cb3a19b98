"""Heads above the limit of the fast path are left to gunicorn, and not remembered."""

from math import inf

import gevent
import gevent.socket
import pytest
from gunicorn.config import Config

from app.core.application import create_app
from app.core.server.gunicorn.fair_turns import FairTurns
from app.core.server.gunicorn.fast_connection import FastConnection
from app.core.server.gunicorn.heads import MAX_HEAD_BYTES
from app.core.server.gunicorn.hub_connection import FastPath
from app.core.server.gunicorn.logs import ServerLogger
from app.core.settings import load

PATIENCE_S = 5.0


@pytest.mark.parametrize(("size", "is_read"), [(MAX_HEAD_BYTES, True), (MAX_HEAD_BYTES + 1, False)])
def test_only_request_heads_within_the_size_limit_are_parsed(
    size: int, is_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_data: list[bytes] = []
    read_data: list[bytes] = []
    app = create_app(load(("--force-dummy-tokenizer",), {}))
    path = FastPath(
        app=app,
        log=ServerLogger(Config()),
        turns=FairTurns(),
        connections={},
        idle_s=inf,
        serve_general=lambda connection, data: left_data.append(data),
        client_timeout_s=PATIENCE_S,
    )
    monkeypatch.setattr(path.heads, "read", read_data.append)  # None: the head is left, too
    server, client = gevent.socket.socketpair()
    connection = FastConnection(path, server, ("127.0.0.1", 1), None)
    start = b"GET /health HTTP/1.1\r\nHost: test\r\nX-Filler: "
    head = start + b"a" * (size - len(start) - 4) + b"\r\n\r\n"
    with client, gevent.Timeout(PATIENCE_S):
        client.sendall(head)
        while not left_data:
            gevent.sleep(0.001)
    connection.close()
    assert left_data == [head]
    assert read_data == ([head] if is_read else [])
