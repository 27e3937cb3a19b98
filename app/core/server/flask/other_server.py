"""Serves the application under other WSGI servers than ours: start with `OtherServer`.

These are gunicorn's workers, uWSGI, waitress, mod_wsgi and Flask's server. They differ in how they
expose a client's socket, and in how they end an answer that breaks off. Most servers end such an
answer as if complete, or log a traceback. `BreakableBody` sends each server its specific signal.

A server with many threads gets an event loop in a separate native thread. The application belongs
to that loop, because its engine and timer wheel have no locks. A thread of gunicorn's `gthread`
worker, uWSGI, waitress or mod_wsgi passes its request to the loop, which serves all requests in
greenlets. The thread does the work that would block the loop: reading the body, and sending each
piece of the answer. A slow client therefore delays no other client, and at most one piece of an
answer is rendered ahead. Only the thread calls the server's functions: uWSGI identifies a request
by its thread.
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

from app.core.base.clock.pause import SWITCH_S
from app.core.server.http.client_connection import (
    BrokenOffError,
    ClientConnection,
    reset_when_closed,
)
from app.core.server.http.context import CONTEXT, context_of

P = ParamSpec("P")
T = TypeVar("T")
RunInLoop = Callable[..., object]
"""Any thread: schedules a call of a function, with its arguments, in the loop."""
DAY_S = 86_400.0
# Keys in the environ that only one server sets.
GUNICORN = "gunicorn.socket"
WERKZEUG = "werkzeug.socket"
WAITRESS = "waitress.client_disconnected"
UWSGI = "uwsgi.version"
MOD_WSGI = "mod_wsgi.version"
SEVERAL_PROCESSES = (
    "several processes serve, and each is a separate server, with its own KV cache, queue and "
    "metrics: start one process, with threads or greenlets"
)
log = logging.getLogger(__name__)


class OtherServer:
    """Serves `app`, which belongs to one loop, under a server without hooks for this application.

    `begin` is called before each request, `end` after the last one. For a server with threads, the
    loop starts with the first request, after every fork, and ends with the process.
    """

    def __init__(self, app: Flask, begin: Callable[[], None], end: Callable[[], None]) -> None:
        self._app = app
        self._begin = begin
        self._end = end
        self._start_lock = Lock()
        self._run: RunInLoop | None = None
        """None until the loop has started."""
        self._has_warned = False

    def serve(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Serves a WSGI request; adds its context to `environ`."""
        if WERKZEUG in environ:  # Werkzeug's server provides an input without an end
            environ["wsgi.input"] = get_input_stream(environ)
        self._warn_once(environ)
        context = context_of(environ)
        environ[CONTEXT] = context
        sock, end = socket_and_end(environ)
        if sock is not None and context.connection is None and context.scheme == "http":
            kind = WatchedConnection if WAITRESS in environ else ClientConnection
            resets = UWSGI in environ or context.http_version == "HTTP/1.0"
            context.connection = kind(sock, resets)
        call: Callable[..., Any] = operator.call
        body: Iterable[bytes]
        if not environ.get("wsgi.multithread") or monkey.is_module_patched("threading"):
            self._begin()
            body = self._app.wsgi_app(environ, start_response)
        else:
            with self._start_lock:
                run = self._run or self._start_loop()
            request = ThreadRequest(run, environ["wsgi.input"], sock)
            context.source = request
            environ["wsgi.input"] = request
            run_in_context: Callable[..., Any] = copy_context().run
            call = partial(request.call, run_in_context)
            head = ResponseHead()
            body = call(self._app.wsgi_app, environ, head)
            start_response(*head.arguments)
        return body if isinstance(body, list) else BreakableBody(body, call, end, sock)

    def _warn_once(self, environ: WSGIEnvironment) -> None:
        # Workers of gunicorn are counted when they start; see `foreign_workers`.
        is_several = environ.get("wsgi.multiprocess") and GUNICORN not in environ
        if is_several and not self._has_warned:
            self._has_warned = True
            log.warning(SEVERAL_PROCESSES)

    def _start_loop(self) -> RunInLoop:
        sys.setswitchinterval(SWITCH_S)
        started: SimpleQueue[RunInLoop] = SimpleQueue()
        Thread(target=_run_loop, args=(started,), name="event loop", daemon=True).start()
        run_in_loop = started.get()
        self._run = run_in_loop
        Thread(target=self._end_with_process, name="end of event loop").start()
        ThreadRequest(run_in_loop).call(self._begin)
        return run_in_loop

    def _end_with_process(self) -> None:
        # The interpreter waits for this thread. In `atexit`, no threads could be started (3.12).
        main_thread().join()
        assert self._run is not None
        ThreadRequest(self._run).call(self._end)


def _run_loop(started: "SimpleQueue[RunInLoop]") -> None:
    """Runs an event loop, and puts its function for calls from other threads into `started`."""
    started.put(gevent.get_hub().loop.run_callback_threadsafe)
    while True:
        gevent.sleep(DAY_S)


class ResponseHead:
    """A `start_response` that stores its arguments, for a call in another thread."""

    def __init__(self) -> None:
        self.arguments: tuple[Any, ...] = ()

    def __call__(self, *arguments: Any) -> None:
        """Stores status, headers and exception information."""
        self.arguments = arguments


def socket_and_end(
    environ: WSGIEnvironment,
) -> tuple[socket.socket | None, BaseException | None]:
    """Returns the client's socket, and the error that ends an answer without a traceback.

    Both depend on the server, and may be None. uWSGI's socket is a duplicate.
    """
    if UWSGI in environ:
        return socket.socket(fileno=os.dup(import_module("uwsgi").connection_fd())), StopIteration()
    if WAITRESS in environ:
        disconnected: BaseException = import_module("waitress.channel").ClientDisconnected()
        return environ[WAITRESS].__self__.socket, disconnected
    if MOD_WSGI in environ:
        return environ.get(GUNICORN), SystemExit("broken off on purpose")
    return environ.get(GUNICORN), None


class WatchedConnection(ClientConnection):
    """A client's socket under waitress, used only to notice when the client disconnects."""

    def shut(self) -> None:
        """Does nothing: `BreakableBody` ends the answer, after waitress has sent its held bytes."""


class BreakableBody:
    """An answer's body, which signals a break to the server.

    The server's thread iterates and closes it. `call` runs functions where the application belongs.
    A break raises `end`, if there is one. uWSGI, whose `end` looks like any other, sends no chunks:
    only a reset of `sock` shows the client the break.
    """

    def __init__(
        self,
        body: Iterable[bytes],
        call: Callable[..., Any],
        end: BaseException | None,
        sock: socket.socket | None,
    ) -> None:
        self._body = body
        self._pieces = iter(body)
        self._call = call
        self._end = end
        self._sock = sock if isinstance(end, StopIteration) else None

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
        """Closes the body, where it can be closed, and the duplicate of the socket."""
        try:
            if hasattr(self._body, "close"):
                self._call(self._body.close)
        finally:
            if self._sock is not None:
                self._sock.close()


class ThreadRequest:
    """A server's thread with one request: calls into the loop, and reads the body for it.

    It is also the request's body, which its thread reads from `source`, and the client's socket
    `sock`.
    """

    def __init__(
        self, run_in_loop: RunInLoop, source: Any = None, sock: socket.socket | None = None
    ) -> None:
        self._run_in_loop = run_in_loop
        self._source = source
        self._sock = sock
        self.reader = getattr(source, "reader", None)
        """gunicorn's reader, whose buffer shows the bytes read already."""
        self._thread_calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        """Calls for the waiting thread; None ends its wait."""

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Thread: runs `function` in a greenlet of the loop; returns or raises its outcome."""
        outcome: Future[T] = Future()

        def run() -> None:
            try:
                outcome.set_result(function(*args, **kwargs))
            except BaseException as error:
                outcome.set_exception(error)
            finally:
                self._thread_calls.put(None)

        self._run_in_loop(gevent.spawn, run)
        thread_call = self._thread_calls.get()
        while thread_call is not None:
            thread_call()
            thread_call = self._thread_calls.get()
        return outcome.result()

    def read(self, size: int = -1, /) -> bytes:
        """Greenlet: see `RequestContext.source`. The waiting thread reads."""
        result = AsyncResult()

        def read_in_thread() -> None:
            try:
                self._run_in_loop(result.set, self._source.read(size))
            except BaseException as error:
                self._run_in_loop(result.set_exception, error)

        self._thread_calls.put(read_in_thread)
        try:
            data: bytes = result.get()
            return data
        except gevent.Timeout:
            # The answer needs the thread, which might read for ever.
            if self._sock is not None:
                with suppress(OSError):
                    # TLS's own shutdown would drop the encryption and send the answer in clear
                    # text. With this one, the answer over TLS is lost.
                    socket.socket.shutdown(self._sock, socket.SHUT_RD)
            raise
