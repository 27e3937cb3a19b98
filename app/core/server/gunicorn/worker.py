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

import ctypes
import gc
import os
import resource
import sys
import time
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any

import gevent.socket
from gevent.event import Event
from gevent.pool import Pool
from gunicorn.arbiter import Arbiter
from gunicorn.workers.ggevent import GeventWorker

from app.core.base.clock.pause import pause_with
from app.core.server.gunicorn import ranks
from app.core.server.gunicorn.drain import HANDOVER_S, ConnectionDrain
from app.core.server.gunicorn.errors import CertificateError
from app.core.server.gunicorn.fair_turns import FairTurns
from app.core.server.gunicorn.fast_connection import FastConnection
from app.core.server.gunicorn.hub_connection import UNLIMITED_S, FastPath, OpenConnections
from app.core.server.gunicorn.listener import ClientServer

if TYPE_CHECKING:
    from app.core.server.gunicorn.certificates import ServerCertificate
    from app.core.server.gunicorn.general import GeneralPath

HEARTBEAT_S = 1.0
"""Seconds between two heartbeats for the arbiter."""
LIMIT_CHECK_S = 0.2
"""Seconds between two checks of the time limits of connections."""
EXIT_HOOKS_S = 1.0
"""Time left for exit hooks when running requests are cut, in seconds.

At most half the graceful timeout.
"""
JOIN_TIMEOUT_S = 0.2
"""Seconds for greenlets to end by themselves after the deadline, and again to be killed."""
GC_THRESHOLDS = (1_000_000, 10, 10)
"""Thresholds of the garbage collector, above the objects of 10,000 streams.

Requests leave no cycles.
"""
YOUNG_GENERATION = 1
"""Oldest generation that an idle worker collects."""
M_MMAP_THRESHOLD = -3
"""Parameter of glibc's `mallopt`: size above which freed memory returns to the system."""
MMAP_THRESHOLD_BYTES = 1 << 17
"""Value of that parameter.

glibc would raise it with each such block: 40 MiB stayed allocated after a prompt of 2 MB
(measured).
"""
RESERVED_FILES = 256
"""File descriptors kept free of clients' connections.

They are for libraries, datasets, ZMQ and outgoing requests.
"""
DRAIN_CHECK_S = 0.05
"""Seconds between two checks of the connections of a stopping worker."""
NOTE_TIMEOUT_S = 0.5
"""Longest time until the arbiter notes the end of a server whose processes all got the signal."""
SETTLE_S = 0.5
"""Seconds that new connections wait in the backlog while a stopping worker ends its requests.

If all end, the listener closes, and clients are refused before they send: every proxy then tries
its next server. Otherwise the worker answers new connections with 503.
"""
HANDSHAKE_S = 0.05
"""Seconds for the client's part of handshakes that have begun when the listener closes."""


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
        self._path: FastPath
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
                "%d open files allow %d connections at a time", max_files, max_connections
            )
            self.worker_connections = max_connections
        super().init_process()

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
        pause_with(self._turns.pause)
        self._idle_s = self.cfg.keepalive or self.client_timeout_s
        self._path = self._create_path()
        servers = [self._listen(listener) for listener in self.sockets]
        self._serve_until_stopped()
        self.alive = False
        self._path.is_open = False
        self._drain(servers)
        if not has_hooks and hasattr(self.wsgi, "end"):
            self.wsgi.end()

    def _tune_process(self) -> None:
        """Sets up the garbage collector, the allocator and gunicorn's settings for serving."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        with suppress(AttributeError):  # a C library without mallopt
            ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
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
            if not any(connection.busy for connection in self._connections):
                gc.collect(YOUNG_GENERATION)
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
        self._greenlets.spawn(self._general.answer, connection, data, time.monotonic())

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
                FastConnection(self._path, client, address, bound)
            except OSError:  # the client has disconnected
                client.close()

        listener.setblocking(1)
        server = ClientServer(listener, accept, self._is_full)
        server.start()
        return server

    def _is_full(self) -> bool:
        return len(self._connections) >= self.worker_connections

    def _drain(self, servers: list[ClientServer]) -> None:
        """Ends the connections, and waits until no request runs."""
        self._path.pipelines_until_s = time.monotonic() + max(self.drain_s, HANDOVER_S)
        if self._has_successor():
            self._hand_over(servers)
        else:
            self._shut_down(servers)
        running = sum(connection.busy for connection in self._connections)
        if running:
            self.log.warning(
                "Worker %s cuts %d requests: the graceful timeout is over", self.pid, running
            )
        self._greenlets.join(timeout=JOIN_TIMEOUT_S)
        self._greenlets.kill(timeout=JOIN_TIMEOUT_S)
        self._path.handlers.kill()
        for connection in list(self._connections):
            connection.close()

    def _has_successor(self) -> bool:
        """Returns whether another worker accepts, or soon will accept, from the same listeners."""
        is_handed_over = ranks.has_stage(self, ranks.HANDED_OVER)
        if ranks.has_stage(self, ranks.ENDING) or is_handed_over:
            return is_handed_over
        if ranks.has_stage(self, ranks.REPLACED):
            return True
        if not ranks.has_stage(self, ranks.SERVING):  # a stock arbiter notes nothing
            return False
        # A service manager may signal all processes of a server at once, and the arbiter needs a
        # moment to note that the server ends. Without that note, only this worker was signaled: the
        # arbiter keeps the listeners open, and starts another worker.
        note_limit_s = time.monotonic() + NOTE_TIMEOUT_S
        while time.monotonic() < note_limit_s:
            if ranks.has_stage(self, ranks.ENDING):
                return ranks.has_stage(self, ranks.HANDED_OVER)
            gevent.sleep(DRAIN_CHECK_S)
        return True

    def _hand_over(self, servers: list[ClientServer]) -> None:
        """Leaves new connections to the successor, and serves those that exist to their end.

        Nothing is answered with 503. Running requests have no deadline until the whole server ends.
        """
        for server in servers:
            server.close()
        drain = ConnectionDrain(self._connections, HANDOVER_S)
        deadline_s = inf
        while drain.sweep() and time.monotonic() < deadline_s:
            self.notify()
            if deadline_s == inf and ranks.has_stage(self, ranks.ENDING):
                deadline_s = self._deadline_s()
                if not ranks.has_stage(self, ranks.HANDED_OVER):
                    drain.idle_s = self.drain_s
            gevent.sleep(DRAIN_CHECK_S)

    def _shut_down(self, servers: list[ClientServer]) -> None:
        """Ends without a successor: serves for `drain_s`, then refuses new requests.

        First, the server reports that it is not ready, but serves the requests of kept and new
        connections, so that proxies and load balancers have time to notice. This ends early when
        no client is connected. Then the listener closes as soon as no request runs. If requests
        still run after `SETTLE_S`, new requests get 503 until the last one has ended.
        """
        deadline_s = self._deadline_s()
        now_s = time.monotonic()
        drain_end_s = min(now_s + self.drain_s, deadline_s)
        drain = ConnectionDrain(self._connections, drain_end_s - now_s)
        if hasattr(self.wsgi, "withdraw"):
            self.wsgi.withdraw()
        while drain.sweep() and time.monotonic() < drain_end_s:
            self._wait_for_drain()
        for server in servers:
            server.stop_accepting()
        settled_s = min(time.monotonic() + SETTLE_S, deadline_s)
        while drain.sweep():
            limit_s = settled_s if drain.is_busy else deadline_s
            if time.monotonic() >= limit_s:
                break
            self._wait_for_drain()
        if self._connections:
            if hasattr(self.wsgi, "drain"):
                self.wsgi.drain()
            drain.idle_s = 0.0
            for server in servers:
                server.start_accepting()
            while drain.sweep() and time.monotonic() < deadline_s:
                self._wait_for_drain()
        self._close_listeners(servers, drain, deadline_s)

    def _close_listeners(
        self, servers: list[ClientServer], drain: ConnectionDrain, deadline_s: float
    ) -> None:
        """Closes the listeners when the requests of all established connections are answered.

        Under a stock arbiter, which notes nothing, the worker may end alone. The next worker then
        gets the backlog.
        """
        if ranks.has_stage(self, ranks.ENDING):
            for server in servers:
                server.refuse_handshakes()
            handshakes_end_s = time.monotonic() + HANDSHAKE_S
            while True:
                for server in servers:
                    server.accept_waiting()
                has_open = drain.sweep()
                now_s = time.monotonic()
                if now_s >= deadline_s or (now_s >= handshakes_end_s and not has_open):
                    break
                self._wait_for_drain()
        for server in servers:
            server.close()

    def _wait_for_drain(self) -> None:
        self.notify()
        gevent.sleep(DRAIN_CHECK_S)

    def _deadline_s(self) -> float:
        """Returns when running requests are cut, if the worker begins to stop now."""
        timeout_s: float = self.cfg.graceful_timeout
        return time.monotonic() + timeout_s - min(EXIT_HOOKS_S, timeout_s / 2)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Ends `run` soon."""
        super().handle_exit(sig, frame)
        self._stopping.set()


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
