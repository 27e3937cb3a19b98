"""gunicorn's gevent worker, with a fast path, a timely end and a fair turn for every connection.

Differences from the stock worker, with their reasons (figures in docs/benchmarks.md):

* requests of known routes are answered without Flask (`fast_connection.py`), all others by
  gunicorn's parser and Flask (`general.py`);
* the stock worker waits for idle keep-alive connections until killed, and its exit hooks never run;
* the stock worker serves one busy connection without end, while other connections starve;
* the stock worker sends the head and body of an answer in two system calls;
* the stock worker reads an unneeded body to its end, at any length;
* a full garbage collection of a loaded process takes tens of milliseconds, and delays every stream.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import gevent
import gevent.socket
from gevent.event import Event
from gevent.pool import Pool
from gunicorn.arbiter import Arbiter
from gunicorn.workers.ggevent import GeventWorker

from app.core.base.clock.pause import hand_to_hub
from app.core.server.gunicorn import ranks
from app.core.server.gunicorn.allocator import Allocator
from app.core.server.gunicorn.errors import CertificateError
from app.core.server.gunicorn.fair_turns import FairTurns
from app.core.server.gunicorn.fast_connection import FastConnection
from app.core.server.gunicorn.hub_connection import UNLIMITED_S, FastPath, OpenConnections
from app.core.server.gunicorn.listener import ClientServer
from app.core.server.http.client_connection import CLOSE_WAIT, ESTABLISHED, tcp_state

if TYPE_CHECKING:
    from app.core.server.gunicorn.certificates import ServerCertificate
    from app.core.server.gunicorn.general import GeneralPath

HEARTBEAT_S = 1.0
"""Seconds between two heartbeats for the arbiter."""
LIMIT_CHECK_S = 0.2
"""Seconds between two checks of the time limits of connections."""
JOIN_TIMEOUT_S = 0.2
"""Seconds for greenlets to end by themselves after the deadline, and again to be killed."""
END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
"""Signals that end an arbiter, which passes them on to its workers."""
ARBITER_SIGNALS = (signal.SIGHUP, signal.SIGUSR2, signal.SIGTTIN, signal.SIGTTOU)
"""Signals that only an arbiter handles."""
GC_THRESHOLDS = (4_000_000, 10, 10)
"""Thresholds of the garbage collector, above the objects of all requests in 1 GiB of memory.

Requests leave no cycles. Collecting 1,000,000 objects takes 100 to 220 ms (measured).
"""
YOUNG_GENERATION = 1
"""Oldest generation that a worker collects between two requests."""
MAX_YOUNG_OBJECTS = 20_000
"""New objects, besides those of running requests, that a busy worker leaves uncollected.

Few requests leave cycles: those for unknown paths leave eight objects, in Werkzeug. Collecting this
many takes 4 to 14 ms (measured).
"""
MANY_YOUNG_OBJECTS = 100_000
"""New objects from which on they belong to large requests, and go with them."""
OBJECTS_PER_REQUEST = 100
"""Upper estimate of the objects of a running request that the garbage collector tracks."""
RESERVED_FILES = 256
"""File descriptors kept free of clients' connections.

They are for libraries, datasets, ZMQ and outgoing requests.
"""


class Worker(GeventWorker):  # type: ignore[misc]
    """One rank. Set as `worker_class` in gunicorn.conf.py; the application also runs without it."""

    alive: bool
    worker_connections: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.certificate: ServerCertificate | None = None
        self.fast_path = True
        """Enables answers without gunicorn's parser and Flask."""
        self.client_timeout_s = UNLIMITED_S
        """Longest time for which a client may take no bytes of an answer, in seconds."""
        self.drain_s = 0.0
        """Time after SIGTERM for which new requests are served, in seconds."""
        self.shutdown_timeout_s: float | None = None
        """Time for running requests after SIGTERM, to end as vLLM; None to end gently."""
        self._path: FastPath
        self._allocator = Allocator()
        self._turns: FairTurns
        self._greenlets = Pool(self.worker_connections)
        self._stopping = Event()
        self._connections: OpenConnections = {}
        self._general: GeneralPath | None = None
        """Imported with the first request that needs it."""

    def init_process(self) -> None:
        """Raises the limit on open files, and limits the number of connections accordingly."""
        _, max_files = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max_files, max_files))
        max_connections = max_files - min(RESERVED_FILES, max_files // 2)
        if max_files != resource.RLIM_INFINITY and self.worker_connections > max_connections:
            self.log.warning(
                "the limit of %d open files allows %d simultaneous connections",
                max_files,
                max_connections,
            )
            self.worker_connections = max_connections
        super().init_process()

    def init_signals(self) -> None:
        """Installs the handlers of signals; ends the worker if one came since the fork.

        Until here the arbiter's handlers are installed, which queue the signal for a loop that
        this process does not run. A stock arbiter sends SIGTERM once, and would wait for the whole
        `graceful_timeout`. Loading gevent makes this half a second.

        Signals for the arbiter are ignored: a terminal, or a command such as `pkill`, may send them
        to all processes of a server, and gunicorn's workers would end with their streams.
        """
        arbiter = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
        # gunicorn first restores the default handlers, with which SIGUSR1 ends a process.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, self.SIGNALS)
        try:
            super().init_signals()
            for number in ARBITER_SIGNALS:
                signal.signal(number, signal.SIG_IGN)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        queue = getattr(arbiter, "SIG_QUEUE", None)
        while queue is not None and not queue.empty():
            if queue.get_nowait() in END_SIGNALS:
                sys.exit(0)  # the application is not loaded yet

    def load_wsgi(self) -> None:
        """Loads the application. Unusable settings end the arbiter, too, instead of a retry."""
        try:
            super().load_wsgi()
        except SystemExit as error:
            self.log.error("%s", error.code)
            sys.exit(Arbiter.WORKER_BOOT_ERROR)

    def run(self) -> None:
        """Serves until SIGTERM, then lets running requests end within `graceful_timeout`."""
        self._tune_process()
        if self.certificate is None and self.cfg.is_ssl:  # under a stock arbiter
            from app.core.server.gunicorn.certificates import ServerCertificate

            self.certificate = ServerCertificate(self.cfg)
        has_hooks = ranks.SETTINGS in os.environ
        if not has_hooks:
            self._begin_without_hooks()
        self._turns = FairTurns()
        hand_to_hub(self._turns)
        self._idle_s = self.cfg.keepalive or self.client_timeout_s
        self._path = self._create_path()
        servers = [self._listen(listener) for listener in self.sockets]
        self._serve_until_stopped()
        self.alive = False
        self._path.is_open = False
        self._end(servers)
        # The end of the interpreter restores the default handler, which would log a killed worker.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        if not has_hooks and hasattr(self.wsgi, "end"):
            self.wsgi.end()

    def _tune_process(self) -> None:
        """Sets up the garbage collector, the allocator and gunicorn's settings for serving."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        self._allocator.tune()
        # gunicorn reads its settings a dozen times per request, each by a slow search.
        self.cfg.__dict__.update(
            {name: setting.get() for name, setting in self.cfg.settings.items()}
        )

    def _serve_until_stopped(self) -> None:
        """Enforces time limits and sends heartbeats while the hub serves."""
        # The note is checked, too: a signal is lost before a new worker has installed its handlers.
        while self.alive and not ranks.has_stage(self, ranks.ENDING):
            self.notify()
            _clear_attribute_cache()
            if self.certificate is not None:
                with suppress(CertificateError):  # the arbiter logs this error
                    self.certificate.refresh()
            busy = sum(connection.busy for connection in self._connections)
            max_young_objects = MAX_YOUNG_OBJECTS + OBJECTS_PER_REQUEST * busy
            if not busy or max_young_objects < gc.get_count()[0] < MANY_YOUNG_OBJECTS:
                gc.collect(YOUNG_GENERATION)
            self._allocator.trim(is_busy=busy > 0)
            end_s = time.monotonic() + HEARTBEAT_S
            while not self._stopping.is_set():
                now_s = time.monotonic()
                if now_s >= end_s:
                    break
                for connection in list(self._connections):
                    connection.enforce_limits(now_s)
                self._stopping.wait(min(LIMIT_CHECK_S, end_s - now_s))

    def _begin_without_hooks(self) -> None:
        """Does what our gunicorn.conf.py does, under a configuration that does not include it."""
        if self.cfg.workers > 1 and self.age == 1:
            self.log.warning(
                "workers=%d: %s: %s", self.cfg.workers, ranks.ALL_SERVE, ranks.ONE_WORKER_PER_RANK
            )
        if hasattr(self.wsgi, "begin"):
            self.wsgi.begin()

    def _create_path(self) -> FastPath:
        app = None
        if self.fast_path and self.cfg.keepalive and hasattr(self.wsgi, "rpc"):
            app = self.wsgi
        path = FastPath(
            app=app,
            log=self.log,
            turns=self._turns,
            connections=self._connections,
            idle_s=self._idle_s,
            serve_general=self._spawn_answer,
            client_timeout_s=self.client_timeout_s,
        )
        if app is not None and app.rpc is not None and self.certificate is None:
            path.upgrade = app.rpc.upgrade
        path.heads.apply_limits(self.cfg.limit_request_field_size, self.cfg.limit_request_fields)
        return path

    def _spawn_answer(self, connection: FastConnection, data: bytes) -> None:
        if self._general is None:
            from app.core.server.gunicorn.general import GeneralPath

            self._general = GeneralPath(self, self._path)
        self._greenlets.spawn(self._general.answer, connection, data, connection.since_s)

    def _listen(self, listener: gevent.socket.socket) -> ClientServer:
        # Read now: a replaced worker closes the listener before its last answers.
        bound = listener.getsockname()

        def accept(client: gevent.socket.socket, addr: Any) -> None:
            """Hub: serves a new connection; idle connections need no greenlet."""
            # The client of a Unix socket has no address.
            address = addr if isinstance(addr, tuple) else ("", 0)
            try:
                if self.certificate is not None:
                    client = self.certificate.wrap(client)
                connection = FastConnection(self._path, client, address, bound=bound)
                if self.certificate is None:
                    connection.read()
            except OSError:  # the client has disconnected
                client.close()

        listener.setblocking(1)
        server = ClientServer(listener, accept, self._has_left, self._is_full)
        server.start()
        return server

    def _has_left(self, client: gevent.socket.socket) -> bool:
        """Returns whether the client of a new connection has disconnected.

        A client of HTTP/1.1 may close its side after a request, and still read the answer. One of
        TLS cannot complete its start. And while others wait for a turn, it may not join them: it
        could have opened and closed thousands of connections.
        """
        state = tcp_state(client._sock)
        must_stay = self.certificate is not None or not self._turns.has_time()
        return state != ESTABLISHED and (must_stay or state != CLOSE_WAIT)

    def _is_full(self) -> bool:
        return len(self._connections) >= self.worker_connections

    def _end(self, servers: list[ClientServer]) -> None:
        """Ends the connections, and waits until no request runs."""
        from app.core.server.gunicorn.ending import WorkerEnding  # needed once

        WorkerEnding(self, servers, self._connections, self._path).run()
        running = sum(connection.busy for connection in self._connections)
        if running:
            self.log.warning(
                "Worker %s is cutting off %d requests because the graceful timeout has expired",
                self.pid,
                running,
            )
        self._greenlets.join(timeout=JOIN_TIMEOUT_S)
        self._greenlets.kill(timeout=JOIN_TIMEOUT_S)
        self._path.handlers.kill()
        for connection in list(self._connections):
            connection.close()

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Ends `run` soon."""
        super().handle_exit(sig, frame)
        self._stopping.set()

    def handle_abort(self, sig: int, frame: Any) -> None:
        """Ends the process, which the arbiter considers hung.

        The request that runs at this moment would log an exception as its own, so the exception
        goes to `run`.
        """
        self.alive = False
        self.cfg.worker_abort(self)
        main_greenlet = gevent.get_hub().parent
        if gevent.getcurrent() is main_greenlet:
            sys.exit(1)
        main_greenlet.throw(SystemExit(1))


def _clear_attribute_cache() -> None:
    """Clears the interpreter's attribute cache of up to 4,096 names, to free memory.

    gevent looks up a watcher's `stop` by a new string each time, and the cache keeps these strings
    alive. One string within a MiB that held a long body keeps the whole MiB allocated (20 of 27,
    measured).
    """
    if sys.version_info >= (3, 13):
        sys._clear_internal_caches()
    else:
        sys._clear_type_cache()
