"""What becomes of a client on the fast path when something of ours breaks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import gevent.socket
import pytest

from app.serving.gunicorn.connections import Connections, FastConnection, FastPath
from app.serving.gunicorn.fair_turns import FairTurns
from app.serving.gunicorn.logs import ServerLogger
from app.serving.http.context import RequestContext
from app.serving.http.response import Response
from app.serving.http.route import probe
from app.serving.middleware.stack import Middleware
from tests.application import application

PROBE = b"GET /probe HTTP/1.1\r\nHost: test\r\n\r\n"


class Broken(Middleware):
    """Fails at the first response that leaves."""

    def __init__(self) -> None:
        self.failures = 0

    def end(self, context: RequestContext, response: Response) -> None:
        if not self.failures:
            self.failures += 1
            raise RuntimeError("broken")


@pytest.fixture
def connections() -> FastPath:
    app = application([probe("/probe", lambda context: Response(b"fine"))], Broken())
    log = cast(ServerLogger, SimpleNamespace(access_log_enabled=False))
    return FastPath(app, log, FairTurns(), Connections(), 60.0, lambda connection, data: None)


def asked(connections: FastPath) -> bytes:
    """All that a new client gets within a moment."""
    server, client = gevent.socket.socketpair()
    FastConnection(connections, cast(Any, server), ("10.0.0.1", 1), None)
    client.sendall(PROBE)
    with gevent.Timeout(5):
        received: bytes = client.recv(1000)
    client.close()
    gevent.sleep(0.01)
    return received


def test_a_broken_middleware_lets_its_client_go_and_nobody_else(
    connections: FastPath, caplog: pytest.LogCaptureFixture
) -> None:
    assert asked(connections) == b""
    assert "broken" in caplog.text and not connections.open
    assert asked(connections).endswith(b"\r\n\r\nfine")
    assert not connections.open
