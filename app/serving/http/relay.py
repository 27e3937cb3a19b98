"""Passing on a request to another server, and its answer to the client: WSGI body, headers, refusals."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from http.client import HTTPException, HTTPResponse
from wsgiref.types import StartResponse, WSGIEnvironment

import gevent
import msgspec
from gevent.pywsgi import WSGIHandler

from app.serving.http.client import ROUTED_TO, HttpConnection
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


class Relay:
    """WSGI body of a response. Owns the connection to the pod; `close` may be called at any time."""

    def __init__(
        self, connection: HttpConnection, unwatch: Callable[[], None], done: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._unwatch = unwatch
        self._done = done
        self._over = False
        self._response: HTTPResponse | None = None

    def of(self, response: HTTPResponse) -> Relay:
        self._response = response
        return self

    def __iter__(self) -> Iterator[bytes]:
        """Yields the body. Raises ConnectionResetError when it breaks off, to break off the client's, too."""
        response = self._response
        assert response is not None
        try:
            while piece := response.read1(PIECE):
                yield piece
        except (OSError, HTTPException, ValueError) as error:
            raise _broken(repr(error)) from error
        if response.length:
            raise _broken(f"{response.length} bytes are missing")

    def close(self) -> None:
        """Closes the connection, upon which the pod aborts the request."""
        if self._over:
            return
        self._over = True
        self._unwatch()
        self._connection.close()
        if self._response is not None:
            self._response.close()
        self._done()


def _broken(why: str) -> ConnectionResetError:
    # For this errno the server closes the connection without a log entry and without the body's end.
    return ConnectionResetError(errno.ECONNRESET, f"the pod's answer broke off: {why}")


class ClientHandler(WSGIHandler):  # type: ignore[misc]
    """Handler of gevent that also passes the client's socket to the application."""

    def get_environ(self) -> WSGIEnvironment:
        environ: WSGIEnvironment = super().get_environ()
        # A token must not wait for the acknowledgement of the previous one.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        environ[CLIENT] = self.socket
        return environ


def watched(client: socket.socket | None, left: Callable[[], None]) -> Callable[[], None]:
    """Calls `left` in a greenlet when the client closes its side, also while no data can be sent to it.

    Returns a function that ends the watch, and the greenlet.
    """
    if client is None:
        return lambda: None
    connection, leaving = Connection(client), gevent.Greenlet(left)
    connection.watch(leaving.start)

    def unwatch() -> None:
        connection.unwatch()
        leaving.kill(block=False)

    return unwatch


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
