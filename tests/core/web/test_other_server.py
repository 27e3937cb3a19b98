"""What each server that is not ours is told of an answer that breaks off; tests/servers has the
real ones.
"""

import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from werkzeug.test import EnvironBuilder

from app.core.server.http.context import RequestContext
from app.core.server.http.response import Response
from app.core.server.http.route import get
from tests.application import application, empty_response


class ClientDisconnected(Exception):
    """waitress's own."""


class Shown:
    """What a server has in its environ, and its end of a connection."""

    def __init__(self, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.client = socket.create_connection(listener.getsockname())
            self.socket, _ = listener.accept()
        self.client.settimeout(5)
        modules = {
            "uwsgi": SimpleNamespace(connection_fd=self.socket.fileno),
            "waitress.channel": SimpleNamespace(ClientDisconnected=ClientDisconnected),
        }
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        self.environ = {
            "uwsgi": {"uwsgi.version": b"2.0.31"},
            "waitress": {"waitress.client_disconnected": self.client_disconnected},
            "mod_wsgi": {"mod_wsgi.version": (6, 1, 1)},
            "another": {},
        }[server]

    def client_disconnected(self) -> bool:
        raise AssertionError("nobody asks")


def ignore_start(status: str, headers: object) -> None:
    """The `start_response` of a server that does not look at the head."""


def broken_body(
    shown: Shown, break_off: Callable[[RequestContext], object], **environ: object
) -> Iterator[bytes]:
    """The body of an answer that `break_off` ends behind its first piece."""

    def pieces(context: RequestContext) -> Iterator[bytes]:
        yield b"1"
        break_off(context)

    def view(context: RequestContext) -> Response:
        return Response(pieces(context), 200)

    app = application([get("/", view)])
    wsgi_environ = EnvironBuilder("/", environ_overrides={**shown.environ, **environ}).get_environ()
    body: Any = app(wsgi_environ, ignore_start)
    return body


@pytest.mark.parametrize("server", ["uwsgi", "waitress", "mod_wsgi", "another"])
def test_error_while_streaming_a_body_is_raised_under_every_wsgi_server(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Shown(server, monkeypatch)

    def fail(context: RequestContext) -> None:
        raise ZeroDivisionError

    body = broken_body(shown, fail)
    assert next(body) == b"1"
    with pytest.raises(ZeroDivisionError):
        next(body)
    body.close()
    shown.socket.close()
    shown.client.close()


def test_server_with_several_processes_logs_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """And only the thread of a request calls what its server gave it."""
    app = application([get("/", empty_response)])
    called = list[int]()

    def start_response(status: str, headers: object) -> None:
        called.append(threading.get_ident())

    with caplog.at_level(logging.WARNING):
        for several in (False, True, True):
            wsgi_flags = {"wsgi.multiprocess": several, "wsgi.multithread": several}
            environ = EnvironBuilder("/", environ_overrides=wsgi_flags).get_environ()
            app(environ, start_response)
    assert caplog.text.count("each is a separate server") == 1
    assert set(called) == {threading.get_ident()}
