"""Parts of a proxy: the target server, headers, bodies and rejections."""

import errno
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import gevent
import msgspec
from gevent.pywsgi import WSGIHandler, WSGIServer
from urllib3 import BaseHTTPResponse

from app.core.base.callers import watched
from app.core.server.http.client_connection import ClientConnection
from app.core.server.http.context import context_of
from app.shared.http_client import ROUTED_TO, pieces_of

READ_TIMEOUT_S = 300.0
"""Longest pause of a pod in seconds, before a response or within it."""
HOP_BY_HOP = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
NOT_FORWARDED = HOP_BY_HOP | {"host", "content-length", "expect"}
CLIENT = "relay.client"
"""Key of the client's connection in the WSGI environ."""
TARGET = "relay.target"
"""Key of the request's path and query, as sent, in the WSGI environ."""


def relayed(response: BaseHTTPResponse, timeout_s: float = READ_TIMEOUT_S) -> Iterator[bytes]:
    """Yields the body in pieces.

    Raises:
        ConnectionResetError: the body breaks off, so the client's has to break off, too. The cause
            is a TimeoutError when the next piece takes longer than `timeout_s`.
    """
    try:
        yield from pieces_of(response, timeout_s)
    except OSError as error:
        # For this errno the server closes the connection without a log entry and without the body's
        # end.
        raise ConnectionResetError(
            errno.ECONNRESET, f"the pod's response ended early: {error!r}"
        ) from error


class ClientHandler(WSGIHandler):  # type: ignore[misc]
    """Handler of gevent that also passes the client's connection and target to the application."""

    def get_environ(self) -> WSGIEnvironment:
        """Returns the environ of a request, with CLIENT and TARGET."""
        environ: WSGIEnvironment = super().get_environ()
        # A token must not wait for the acknowledgement of the previous one.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        environ[CLIENT] = ClientConnection(self.socket)
        environ[TARGET] = self.path
        return environ


def server_of(application: WSGIApplication, host: str = "127.0.0.1", port: int = 0) -> WSGIServer:
    """Returns a server, not yet started and without a log; port 0 is any free one."""
    return WSGIServer(
        (host, port), application, handler_class=ClientHandler, log=None, error_log=None
    )


@contextmanager
def watching(client: ClientConnection | None, gone: Callable[[], None]) -> Iterator[None]:
    """Calls `gone` in a greenlet when the client closes its side during the block.

    Notices this also while no data can be sent to the client.
    """
    greenlet = gevent.Greenlet(gone)
    try:
        with watched(client, greenlet.start):
            yield
    finally:
        greenlet.kill(block=False)


def request_headers(environ: WSGIEnvironment) -> dict[str, str]:
    """Returns the headers of a request that are forwarded, with lower-case names."""
    headers = context_of(environ).headers
    return {name: value for name, value in headers.items() if value and name not in NOT_FORWARDED}


def refuse(
    start_response: StartResponse, status: str, message: str, pod: str | None = None
) -> Iterable[bytes]:
    """Answers with an error in vLLM's format."""
    code, _, kind = status.partition(" ")
    body = {"error": {"message": message, "type": kind, "param": None, "code": int(code)}}
    headers = [(ROUTED_TO, pod)] if pod else []
    return reply(start_response, status, body, headers)


def reply(
    start_response: StartResponse,
    status: str,
    body: object,
    headers: Sequence[tuple[str, str]] = (),
) -> Iterable[bytes]:
    """Answers with JSON."""
    text = msgspec.json.encode(body)
    start_response(
        status,
        [("Content-Type", "application/json"), ("Content-Length", str(len(text))), *headers],
    )
    return [text]
