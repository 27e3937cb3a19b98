"""Requests that come by another server than our own worker: gunicorn's, uWSGI, waitress, mod_wsgi, Flask's.

Such servers differ in what they show of a client's socket, and in how they end an answer that breaks off.
Most of them end it as if it were whole, or log a traceback: here each is told in the way that it understands.

An event loop in a native thread of its own, for servers of which many threads each bring a request.

The application belongs to one loop: neither its engine nor its timer wheel has locks. A thread of gunicorn's
`gthread` worker, of uWSGI, waitress or mod_wsgi therefore hands its request over. It is served in greenlets
of the loop, beside all others, while its thread waits, and does what would block the loop: it reads the body,
and sends each piece of the answer before it asks for the next one. So no slow client holds up another, and of
an answer to one that does not read no more than a piece is made ahead. The thread alone calls what the server
gave it: uWSGI knows a request by its thread.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from importlib import import_module
from queue import SimpleQueue
from threading import Lock, Thread, main_thread
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

import gevent
from gevent import monkey
from gevent.event import AsyncResult
from werkzeug.wsgi import get_input_stream

from app.clock.pause import SWITCH_S, share_loop
from app.http.connection import BrokenOffError, Connection, reset_when_closed
from app.http.context import CONTEXT, Readable, RequestContext, context_of, ends_with_connection

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment


P = ParamSpec("P")
T = TypeVar("T")
A_DAY_S = 86_400.0


class Loop(Protocol):
    """What is needed of a loop of gevent's."""

    def run_callback_threadsafe(self, function: Callable[..., object], /, *args: object) -> object:
        """Any thread: have `function` called in the loop."""


class Application(Protocol):
    """What belongs to one loop."""

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse, /) -> Iterable[bytes]:
        """WSGI, with our `RequestContext` in the environ."""

    def begin(self) -> None:
        """Requests are about to come."""

    def end(self) -> None:
        """The last request has been served."""


def brings_thread(environ: WSGIEnvironment) -> bool:
    """Whether a request may come in any of several native threads."""
    return bool(environ.get("wsgi.multithread")) and not monkey.is_module_patched("threading")


class LoopThread:
    """Serves `app` to any number of threads.

    The loop and `app` begin with the first request, so behind every fork, and end with the process.
    """

    def __init__(self, app: Application) -> None:
        self._app = app
        self._starting = Lock()
        self._loop: Loop | None = None

    def serve(
        self,
        environ: WSGIEnvironment,
        start_response: StartResponse,
        context: RequestContext,
        sock: socket.socket | None,
    ) -> Iterable[bytes]:
        """Thread: one request, from the client at `sock`. The answer's body is to be closed, as always."""
        with self._starting:
            request = ThreadRequest(self._loop or self._started())
        context.source = environ["wsgi.input"] = RequestBody(environ["wsgi.input"], request, sock)
        variables = copy_context()
        head: list[Any] = []

        def begin(*given: Any) -> Any:
            head.extend(given)

        body = request.call(variables.run, self._app, environ, begin)
        start_response(*head)
        return body if isinstance(body, list) else AnswerPieces(body, request, variables)

    def _started(self) -> Loop:
        sys.setswitchinterval(SWITCH_S)
        made: SimpleQueue[Loop] = SimpleQueue()
        Thread(target=_run, args=(made,), name="event loop", daemon=True).start()
        self._loop = loop = made.get()
        Thread(target=self._end_with_process, args=(ThreadRequest(loop),), name="end of event loop").start()
        ThreadRequest(loop).call(self._app.begin)
        return loop

    def _end_with_process(self, request: ThreadRequest) -> None:
        """Native thread, for which the interpreter waits: some begin no further ones in `atexit` (3.12)."""
        main_thread().join()
        request.call(self._app.end)


def _run(made: SimpleQueue[Loop]) -> None:
    """Native thread: the loop, which goes on while anything is waited for."""
    share_loop()
    made.put(gevent.get_hub().loop)
    while True:
        gevent.sleep(A_DAY_S)


class ThreadRequest:
    """A thread in the loop, with one request: what it has done there, and what it does for it."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._errands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        """What the thread is to do while it waits; None: it need not wait any longer."""

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Thread: what `function` returns or raises when a greenlet of the loop calls it."""
        outcome: Future[T] = Future()
        work = partial(function, *args, **kwargs)
        self._loop.run_callback_threadsafe(gevent.spawn, self._attempt, outcome, work)
        while (errand := self._errands.get()) is not None:
            errand()
        return outcome.result()

    def _attempt(self, outcome: Future[T], work: Callable[[], T]) -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)
        finally:
            self._errands.put(None)

    def send(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Greenlet: what `function` returns or raises when the waiting thread calls it."""
        done = AsyncResult()
        tell = self._loop.run_callback_threadsafe

        def errand() -> None:
            try:
                tell(done.set, function(*args, **kwargs))
            except BaseException as error:
                tell(done.set_exception, error)

        self._errands.put(errand)
        result: T = done.get()
        return result


class RequestBody:
    """A request's body, which the request's thread reads from `source`."""

    def __init__(self, source: Readable, request: ThreadRequest, sock: socket.socket | None) -> None:
        self._source = source
        self._request = request
        self._sock = sock
        self.reader = getattr(source, "reader", None)
        """gunicorn's, which tells what it holds already."""

    def read(self, size: int) -> bytes:
        """Greenlet: see `Readable`."""
        try:
            return self._request.send(self._source.read, size)
        except gevent.Timeout:
            # The thread, which would read to the end or for ever, is needed for the answer.
            if self._sock is not None:
                with suppress(OSError):
                    # Not TLS's own, which would have the answer leave in clear text; so there it is lost.
                    socket.socket.shutdown(self._sock, socket.SHUT_RD)
            raise


class AnswerPieces:
    """An answer's body, of which the request's thread takes one piece after another.

    `variables` are those of the request. Nothing that they lead to knows them, so that no garbage is cyclic.
    """

    def __init__(self, body: Iterable[bytes], request: ThreadRequest, variables: Context) -> None:
        self._body = body
        self._pieces = iter(body)
        self._request = request
        self._run = variables.run

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        piece = self._request.call(self._run, self._piece)
        if piece is None:
            raise StopIteration
        return piece

    def _piece(self) -> bytes | None:
        return next(self._pieces, None)

    def close(self) -> None:
        """The server is done with it."""
        if (close := getattr(self._body, "close", None)) is not None:
            self._request.call(self._run, close)


GUNICORN, UWSGI, WAITRESS, MOD_WSGI, WERKZEUG = (
    "gunicorn.socket",
    "uwsgi.version",
    "waitress.client_disconnected",
    "mod_wsgi.version",
    "werkzeug.socket",
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
        if WERKZEUG in environ:  # whose input has no end of its own
            environ["wsgi.input"] = get_input_stream(environ)
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
