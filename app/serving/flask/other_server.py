"""Serves the application under other WSGI servers: gunicorn's workers, uWSGI, waitress, mod_wsgi,
Flask's.

These servers differ in how they expose a client's socket, and in how they end an answer that breaks
off. Most servers end such an answer as if complete, or log a traceback. `BreakableBody` gives each
server its own signal.

A server with many threads gets an event loop in a separate native thread. The application belongs
to that loop, because its engine and timer wheel have no locks. A thread of gunicorn's `gthread`
worker, uWSGI, waitress or mod_wsgi passes its request to the loop, which serves all requests in
greenlets. The thread does the work that would block the loop: reading the body, and sending each
piece of the answer. A slow client therefore delays no other client, and at most one piece of an
answer is made ahead. Only the thread calls the server's functions: uWSGI identifies a request by
its thread.
"""

import logging
import operator
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from importlib import import_module
from queue import SimpleQueue
from threading import Lock, Thread, main_thread
from typing import Any, ParamSpec, TypeVar
from wsgiref.types import StartResponse, WSGIEnvironment

import gevent
from flask import Flask
from gevent import monkey
from gevent.event import AsyncResult
from werkzeug.wsgi import get_input_stream

from app.base.clock.pause import SWITCH_S, share_loop
from app.serving.gunicorn import ranks
from app.serving.http.client_connection import BrokenOffError, ClientConnection, reset_when_closed
from app.serving.http.context import CONTEXT, context_of

P = ParamSpec("P")
T = TypeVar("T")
RunInLoop = Callable[..., object]
"""Any thread: schedules a call of a function, with its arguments, in the loop."""
A_DAY_S = 86_400.0
GUNICORN, WERKZEUG, WAITRESS = "gunicorn.socket", "werkzeug.socket", "waitress.client_disconnected"
UWSGI, MOD_WSGI = "uwsgi.version", "mod_wsgi.version"
"""A key in the environ that only this server sets."""
SEVERAL = (
    "several processes serve, and each is a server of its own, with its own places, queue and metrics: "
    "start one process, with threads or greenlets"
)
log = logging.getLogger(__name__)


class OtherServer:
    """Serves `app`, which belongs to one loop, under a server without hooks for this application.

    `begin` is called before each request, `end` after the last one. For a server with threads, the
    loop starts with the first request, after every fork, and ends with the process.
    """

    def __init__(self, app: Flask, begin: Callable[[], None], end: Callable[[], None]) -> None:
        self._app, self._begin, self._end = app, begin, end
        self._starting = Lock()
        self._run: RunInLoop | None = None
        self._has_warned = False

    def serve(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Serves a WSGI request; adds its context to `environ`."""
        if WERKZEUG in environ:  # Werkzeug's server provides an input without an end
            environ["wsgi.input"] = get_input_stream(environ)
        if environ.get("wsgi.multiprocess") and not self._has_warned:
            self._has_warned = True
            if ranks.SETTINGS not in os.environ:  # else our arbiter has one worker for each rank
                log.warning(SEVERAL)
        context = environ[CONTEXT] = context_of(environ)
        sock, end = shown_by(environ)
        if sock is not None and context.connection is None and context.scheme == "http":
            kind = ShownConnection if WAITRESS in environ else ClientConnection
            context.connection = kind(sock, UWSGI in environ or context.http_version == "HTTP/1.0")
        call: Callable[..., Any] = operator.call
        body: Iterable[bytes]
        if not environ.get("wsgi.multithread") or monkey.is_module_patched("threading"):
            self._begin()
            body = self._app.wsgi_app(environ, start_response)
        else:
            with self._starting:
                request = ThreadRequest(self._run or self._started(), environ["wsgi.input"], sock)
            context.source = environ["wsgi.input"] = request
            head: list[Any] = []
            in_loop: Callable[..., Any] = partial(request.call, copy_context().run)  # type: ignore[arg-type]
            call = in_loop
            body = call(self._app.wsgi_app, environ, lambda *given: head.extend(given))
            start_response(*head)
        return body if isinstance(body, list) else BreakableBody(body, call, end, sock)

    def _started(self) -> RunInLoop:
        sys.setswitchinterval(SWITCH_S)
        made: SimpleQueue[RunInLoop] = SimpleQueue()

        def run() -> None:
            share_loop()
            made.put(gevent.get_hub().loop.run_callback_threadsafe)
            while True:
                gevent.sleep(A_DAY_S)

        Thread(target=run, name="event loop", daemon=True).start()
        self._run = in_loop = made.get()

        def end_with_process() -> None:
            # The interpreter waits for this thread. In `atexit`, no threads could be started
            # (3.12).
            main_thread().join()
            ThreadRequest(in_loop).call(self._end)

        Thread(target=end_with_process, name="end of event loop").start()
        ThreadRequest(in_loop).call(self._begin)
        return in_loop


def shown_by(environ: WSGIEnvironment) -> tuple[socket.socket | None, BaseException | None]:
    """Returns the client's socket, and the error that ends an answer under this server without a
    traceback.

    Both may be None. uWSGI's socket is a duplicate.
    """
    if UWSGI in environ:
        return socket.socket(fileno=os.dup(import_module("uwsgi").connection_fd())), StopIteration()
    if WAITRESS in environ:
        gone: BaseException = import_module("waitress.channel").ClientDisconnected()
        return environ[WAITRESS].__self__.socket, gone
    return environ.get(GUNICORN), SystemExit(
        "broken off on purpose"
    ) if MOD_WSGI in environ else None


class ShownConnection(ClientConnection):
    """A client's socket under waitress, used only to watch for the client's end."""

    def shut(self) -> None:
        """Does nothing:

        `BreakableBody` ends the answer, and waitress sends its held bytes first.
        """


class BreakableBody:
    """An answer's body, which signals a break to the server; the server's thread iterates and
    closes it.

    `call` runs functions where the application belongs. A break raises `end`, if there is one.
    uWSGI, whose `end` looks like any other, sends no chunks: only a reset of `sock` shows the
    client the break.
    """

    def __init__(
        self,
        body: Iterable[bytes],
        call: Callable[..., Any],
        end: BaseException | None,
        sock: socket.socket | None,
    ) -> None:
        self._body, self._pieces, self._call = body, iter(body), call
        self._end, self._sock = end, sock if isinstance(end, StopIteration) else None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            piece: bytes | None = self._call(next, self._pieces, None)
        except Exception as error:
            if self._sock is not None:
                reset_when_closed(self._sock)
            if self._end is None or not isinstance(error, BrokenOffError):
                raise
        else:
            if piece is None:
                raise StopIteration
            return piece
        raise self._end

    def close(self) -> None:
        try:
            if (close := getattr(self._body, "close", None)) is not None:
                self._call(close)
        finally:
            if self._sock is not None:
                self._sock.close()


class ThreadRequest:
    """A server's thread with one request: calls into the loop, and reads the body for it.

    It is also the request's body, which its thread reads from `source`, and the client's socket
    `sock`.
    """

    def __init__(
        self, in_loop: RunInLoop, source: Any = None, sock: socket.socket | None = None
    ) -> None:
        self._in_loop, self._source, self._sock = in_loop, source, sock
        self.reader = getattr(source, "reader", None)
        """gunicorn's reader, whose buffer shows the bytes read already."""
        self._errands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        """Calls for the waiting thread; None ends its wait."""

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Thread: runs `function` in a greenlet of the loop; returns or raises its outcome."""
        outcome: Future[T] = Future()

        def attempt() -> None:
            try:
                outcome.set_result(function(*args, **kwargs))
            except BaseException as error:
                outcome.set_exception(error)
            finally:
                self._errands.put(None)

        self._in_loop(gevent.spawn, attempt)
        while (errand := self._errands.get()) is not None:
            errand()
        return outcome.result()

    def read(self, size: int = -1, /) -> bytes:
        """Greenlet: see `RequestContext.source`. The waiting thread reads."""
        done = AsyncResult()

        def errand() -> None:
            try:
                self._in_loop(done.set, self._source.read(size))
            except BaseException as error:
                self._in_loop(done.set_exception, error)

        self._errands.put(errand)
        try:
            data: bytes = done.get()
            return data
        except gevent.Timeout:
            # The answer needs the thread, which might read for ever.
            if self._sock is not None:
                with suppress(OSError):
                    # TLS's own shutdown would drop the encryption and send the answer in clear
                    # text. With this one, the answer over TLS is lost.
                    socket.socket.shutdown(self._sock, socket.SHUT_RD)
            raise
