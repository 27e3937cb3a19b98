"""Tells when a client has left, also while nothing can be written to it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gevent
from gevent.pywsgi import WSGIHandler, WSGIServer
from gevent.socket import wait_read

CLIENT = "fleet.client_socket"


class Handler(WSGIHandler):  # type: ignore[misc]
    """gevent's, which also hands the client's socket to the application."""

    def get_environ(self) -> dict[str, Any]:
        """The WSGI environment."""
        environ: dict[str, Any] = super().get_environ()
        # A token must not wait for the acknowledgement of the one before.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        environ[CLIENT] = self.socket
        return environ


def server_of(application: Callable[..., Any], port: int = 0) -> WSGIServer:
    """A server on loopback that is not started yet; port 0 is any free one. It writes no log."""
    return WSGIServer(("127.0.0.1", port), application, handler_class=Handler, log=None, error_log=None)


def watched(client: Any, left: Callable[[], None]) -> Callable[[], None]:
    """Call `left` when the client closes its side; call what is returned to look no more."""
    if client is None:
        return _nothing
    greenlet = gevent.spawn(_watch, client, left)
    return lambda: greenlet.kill(block=False)


def _watch(client: Any, left: Callable[[], None]) -> None:
    with suppress(OSError):
        wait_read(client.fileno())
        # More bytes than the request: the next one, so the client is there.
        if client.recv(1, socket.MSG_PEEK):
            return
    left()


def _nothing() -> None:
    pass
