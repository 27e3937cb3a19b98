"""Serves the application under other WSGI servers: gunicorn's workers, uWSGI, waitress, mod_wsgi, Flask's.

These servers differ in how they expose a client's socket, and in how they end an answer that breaks off.
Most servers end such an answer as if complete, or log a traceback. `BreakableBody` gives each server its own
signal.

A server with many threads gets an event loop in a separate native thread. The application
belongs to that loop, because its engine and timer wheel have no locks. A thread of gunicorn's `gthread`
worker, uWSGI, waitress or mod_wsgi passes its request to the loop, which serves all requests in greenlets.
The thread does the work that would block the loop: reading the body, and sending each piece of the answer. A
slow client therefore delays no other client, and at most one piece of an answer is made ahead. Only the
thread calls the server's functions: uWSGI identifies a request by its thread.
"""

from __future__ import annotations

import logging
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
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import gevent
from gevent import monkey
from gevent.event import AsyncResult
from werkzeug.wsgi import get_input_stream

from app.base.clock.pause import SWITCH_S, share_loop
from app.serving.http.connection import BrokenOffError, Connection, reset_when_closed
from app.serving.http.context import CONTEXT, context_of

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

P = ParamSpec("P")
T = TypeVar("T")
RunInLoop = Callable[..., object]
"""Any thread: schedules a call of a function, with its arguments, in the loop."""
A_DAY_S = 86_400.0
GUNICORN, UWSGI, WAITRESS, MOD_WSGI, WERKZEUG = (
    "gunicorn.socket",
    "uwsgi.version",
    "waitress.client_disconnected",
    "mod_wsgi.version",
    "werkzeug.socket",
)
"""A key in the environ that only this server sets."""
SEVERAL = (
    "several processes serve, and each is a server of its own, with its own places, queue and metrics: "
    "start one process, with threads or greenlets"
)
log = logging.getLogger(__name__)


class OtherServer:
    """Serves `app`, which belongs to one loop, under a server without hooks for this application.

    `begin` is called before the first request, `end` after the last one. For a server with threads, the loop
    starts with the first request, after every fork, and ends with the process.
    """

    def __init__(self, app: WSGIApplication, begin: Callable[[], None], end: Callable[[], None]) -> None:
        self._app, self._begin, self._end = app, begin, end
        self._starting = Lock()
        self._run: RunInLoop | None = None
        self._has_warned = False

    def serve(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Serves a WSGI request; adds its context to `environ`."""
        if WERKZEUG in environ:  # Werkzeug's server provides an input without an end
            environ["wsgi.input"] = get_input_stream(environ)
        context = environ[CONTEXT] = context_of(environ)
        sock = client_socket(environ)
        if sock is not None and context.connection is None and context.scheme == "http":
            kind = ShownConnection if WAITRESS in environ else Connection
            resets = UWSGI in environ or context.http_version == "HTTP/1.0"
            context.connection = kind(sock, resets)
        if environ.get("wsgi.multiprocess") and GUNICORN not in environ and not self._has_warned:
            self._has_warned = True  # gunicorn's workers have been counted at its start
            log.warning(SEVERAL)
        end, cut = end_of_answer(environ), sock if UWSGI in environ else None
        call: Callable[..., Any] = _call
        if not environ.get("wsgi.multithread") or monkey.is_module_patched("threading"):
            self._begin()
            body = self._app(environ, start_response)
            return body if end is None else BreakableBody(body, call, end, cut)
        with self._starting:
            request = ThreadRequest(self._run or self._started(), environ["wsgi.input"], sock)
        context.source = environ["wsgi.input"] = request
        head: list[Any] = []
        in_loop: Callable[..., Any] = partial(request.call, copy_context().run)  # type: ignore[arg-type]
        answer: Iterable[bytes] = in_loop(self._app, environ, lambda *given: head.extend(given))
        start_response(*head)
        is_whole = isinstance(answer, list)
        if is_whole and end is None:
            return answer
        return BreakableBody(answer, call if is_whole else in_loop, end, cut)

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
            # The interpreter waits for this thread. In `atexit`, no threads could be started (3.12).
            main_thread().join()
            ThreadRequest(in_loop).call(self._end)

        Thread(target=end_with_process, name="end of event loop").start()
        ThreadRequest(in_loop).call(self._begin)
        return in_loop


def client_socket(environ: WSGIEnvironment) -> socket.socket | None:
    """Returns the client's socket if the server exposes it. uWSGI's is a duplicate that the caller closes."""
    sock: socket.socket | None = environ.get(GUNICORN)
    if WAITRESS in environ:
        sock = environ[WAITRESS].__self__.socket
    elif UWSGI in environ:
        sock = socket.socket(fileno=os.dup(import_module("uwsgi").connection_fd()))
    return sock


class ShownConnection(Connection):
    """A client's socket under waitress, used only to watch for the client's end."""

    def shut(self) -> None:
        """Does nothing: `BreakableBody` ends the answer, and waitress sends its held bytes first."""


def end_of_answer(environ: WSGIEnvironment) -> BaseException | None:
    """Returns what ends an answer under this server without a traceback; None for an unknown server."""
    if UWSGI in environ:
        return StopIteration()
    if WAITRESS in environ:
        disconnected: BaseException = import_module("waitress.channel").ClientDisconnected()
        return disconnected
    return SystemExit("broken off on purpose") if MOD_WSGI in environ else None


def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


class BreakableBody:
    """An answer's body, which signals a break to the server; the server's thread iterates and closes it.

    `call` runs functions where the application belongs. A break raises `end`, if there is one, and resets the
    connection `resets`, which is closed with the body.
    """

    def __init__(
        self,
        body: Iterable[bytes],
        call: Callable[..., Any],
        end: BaseException | None,
        cut: socket.socket | None,
    ) -> None:
        self._body, self._pieces, self._call = body, iter(body), call
        self._end, self._sock = end, cut

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            piece: bytes | None = self._call(next, self._pieces, None)
        except Exception as error:
            if self._sock is not None:  # uWSGI sends no chunks: only a reset shows the client the break
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
    """A server's thread with one request: calls into the loop, and calls from the loop into the thread.

    It is also the request's body, which its thread reads from `source`, and the client's socket `sock`.
    """

    def __init__(self, in_loop: RunInLoop, source: Any = None, sock: socket.socket | None = None) -> None:
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

    def send(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Greenlet: runs `function` in the waiting thread; returns or raises its outcome."""
        done = AsyncResult()

        def errand() -> None:
            try:
                self._in_loop(done.set, function(*args, **kwargs))
            except BaseException as error:
                self._in_loop(done.set_exception, error)

        self._errands.put(errand)
        result: T = done.get()
        return result

    def read(self, size: int = -1, /) -> bytes:
        """Greenlet: see `RequestContext.source`."""
        try:
            data: bytes = self.send(self._source.read, size)
            return data
        except gevent.Timeout:
            # The answer needs the thread, which might read for ever.
            if self._sock is not None:
                with suppress(OSError):
                    # TLS's own shutdown would drop the encryption and send the answer in clear text.
                    # With this one, the answer over TLS is lost.
                    socket.socket.shutdown(self._sock, socket.SHUT_RD)
            raise
