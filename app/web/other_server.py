"""Requests that come by another server than our own worker: gunicorn's others, uWSGI, waitress, mod_wsgi.

Such servers differ in what they show of a client's socket, and in how they end an answer that breaks off.
Most of them end it as if it were whole, or log a traceback: here each is told in the way that it understands.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING

from app.http.connection import BrokenOffError, Connection, reset_when_closed
from app.http.wsgi import CONTEXT, context_of, ends_with_connection
from app.web.loop_thread import Application, LoopThread, brings_thread

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

GUNICORN, UWSGI, WAITRESS, MOD_WSGI = (
    "gunicorn.socket",
    "uwsgi.version",
    "waitress.client_disconnected",
    "mod_wsgi.version",
)
"""What each server alone has in its environ."""
SEVERAL = (
    "several processes serve, and each is a server of its own, with its own places, queue and metrics: "
    "start one process, with threads or greenlets"
)
log = logging.getLogger(__name__)


class OtherServer:
    """Serves `app` to a server that knows nothing of us."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._loop_thread = LoopThread(app)
        self._has_warned = False

    def serve(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """As WSGI has it. The context of the request is put into `environ`."""
        context = environ[CONTEXT] = context_of(environ)
        sock = client_socket(environ)
        if sock is not None and context.connection is None and context.scheme == "http":
            kind = ShownConnection if WAITRESS in environ else Connection
            resets = UWSGI in environ or ends_with_connection(environ)
            context.connection = kind(sock, plain=False, resets=resets)
        self._warn_of_processes(environ)
        if brings_thread(environ):
            body = self._loop_thread.serve(environ, start_response, context, sock)
        else:
            self._app.begin()
            body = self._app(environ, start_response)
        return body if GUNICORN in environ else BreakableBody(body, environ, sock)

    def _warn_of_processes(self, environ: WSGIEnvironment) -> None:
        """Logs it once. gunicorn's workers have been counted at its start."""
        if environ.get("wsgi.multiprocess") and GUNICORN not in environ and not self._has_warned:
            self._has_warned = True
            log.warning(SEVERAL)


def client_socket(environ: WSGIEnvironment) -> socket.socket | None:
    """Returns the socket of a request's client, where a server shows it; uWSGI's is a copy, to be closed."""
    sock: socket.socket | None = environ.get(GUNICORN)
    if WAITRESS in environ:
        sock = environ[WAITRESS].__self__.socket
    elif UWSGI in environ:
        sock = socket.socket(fileno=os.dup(import_module("uwsgi").connection_fd()))
    return sock


class ShownConnection(Connection):
    """waitress' socket of a client, which it alone writes to and ends; here the client's end is watched."""

    def shut(self) -> None:
        """The body breaks off, and tells the server: bytes that the server still holds are not lost."""


class BreakableBody:
    """An answer's body, of which the server notices when it breaks off.

    The server's own thread or greenlet iterates it, and closes it.
    """

    def __init__(self, body: Iterable[bytes], environ: WSGIEnvironment, sock: socket.socket | None) -> None:
        self._body = body
        self._pieces = iter(body)
        self._sock = sock if UWSGI in environ else None
        self._end = quiet_end(environ)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._pieces)
        except StopIteration:
            raise
        except Exception as error:
            if self._sock is not None:  # uWSGI has no chunks: by a reset alone the client knows
                reset_when_closed(self._sock)
            if not isinstance(error, BrokenOffError) or self._end is None:
                raise
        raise self._end

    def close(self) -> None:
        """The server is done with it."""
        try:
            if (close := getattr(self._body, "close", None)) is not None:
                close()
        finally:
            if self._sock is not None:
                self._sock.close()


def quiet_end(environ: WSGIEnvironment) -> BaseException | None:
    """What ends an answer on purpose without a traceback; None where BrokenOffError does."""
    if UWSGI in environ:
        return StopIteration()
    if WAITRESS in environ:
        end: BaseException = import_module("waitress.channel").ClientDisconnected()
        return end
    return SystemExit("broken off on purpose") if MOD_WSGI in environ else None
