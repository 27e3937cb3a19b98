"""Passing on a request to another server, and its answer to the client: WSGI body, headers, refusals."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from wsgiref.types import StartResponse, WSGIEnvironment

import gevent
import msgspec
from gevent.pywsgi import WSGIHandler

from app.serving.http.client import ROUTED_TO
from app.serving.http.connection import Connection
from app.serving.http.context import headers_of

READ_TIMEOUT_S = 300.0
"""Longest pause of a pod in seconds, before a response or within it."""
HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "upgrade")
) | {"transfer-encoding"}
NOT_FORWARDED = HOP_BY_HOP | {"host", "content-length", "expect"}
PIECE = 65536
"""Most bytes of one read; smaller pieces are forwarded at once."""
CLIENT = "fleet.client_socket"
"""Key of the client's socket in the WSGI environ."""


def pieces_of(response: HTTPResponse) -> Iterator[bytes]:
    """Yields the body. Raises ConnectionResetError when it breaks off, to break off the client's, too."""
    why = ""
    try:
        while piece := response.read1(PIECE):
            yield piece
        if response.length:
            why = f"{response.length} bytes are missing"
    except (OSError, HTTPException, ValueError) as error:
        why = repr(error)
    if why:
        # For this errno the server closes the connection without a log entry and without the body's end.
        raise ConnectionResetError(errno.ECONNRESET, f"the pod's answer broke off: {why}")


class ClientHandler(WSGIHandler):  # type: ignore[misc]
    """Handler of gevent that also passes the client's socket to the application."""

    def get_environ(self) -> WSGIEnvironment:
        environ: WSGIEnvironment = super().get_environ()
        # A token must not wait for the acknowledgement of the previous one.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        environ[CLIENT] = self.socket
        return environ


@contextmanager
def watching(environ: WSGIEnvironment, left: Callable[[], None]) -> Iterator[None]:
    """Calls `left` in a greenlet when the client closes its side, also while no data can be sent to it."""
    connection, leaving = Connection(environ[CLIENT]), gevent.Greenlet(left)
    connection.watch(leaving.start)
    try:
        yield
    finally:
        connection.unwatch()
        leaving.kill(block=False)


def request_headers(environ: WSGIEnvironment) -> dict[str, str]:
    headers = headers_of(environ)
    return {name: value for name, value in headers.items() if value and name not in NOT_FORWARDED}


def refuse(
    start_response: StartResponse, status: str, message: str, pod: str | None = None
) -> Iterable[bytes]:
    code, _, kind = status.partition(" ")
    body = {"error": {"message": message, "type": kind, "param": None, "code": int(code)}}
    return reply(start_response, status, body, [(ROUTED_TO, pod)] if pod else [])


def reply(
    start_response: StartResponse, status: str, body: object, headers: Sequence[tuple[str, str]] = ()
) -> Iterable[bytes]:
    text = msgspec.json.encode(body)
    sizes = [("Content-Type", "application/json"), ("Content-Length", str(len(text)))]
    start_response(status, [*sizes, *headers])
    return [text]
