"""gunicorn's gevent worker, with an end that comes in time and a fair turn for every connection.

What it changes, and why (figures in docs/benchmarks.md):

* the stock worker waits for idle keep-alive connections until it is killed, so exit hooks never run;
* the stock worker serves one busy connection on and on, while others starve;
* the stock worker sends head and body of an answer in two system calls;
* a full collection of a loaded process takes tens of milliseconds, and every stream stumbles over it.
"""

from __future__ import annotations

import errno
import gc
import resource
import socket
import sys
import time
from contextlib import suppress
from datetime import timedelta
from functools import partial
from math import inf
from typing import Any

import gevent
from gevent.event import Event
from gevent.pool import Pool
from gevent.server import StreamServer
from gunicorn.arbiter import Arbiter
from gunicorn.http import wsgi
from gunicorn.workers.ggevent import GeventWorker

from app.http.wsgi import CONTEXT, context_of
from app.server import stages
from app.server.certificates import CertificateError, ServerCertificate
from app.server.joined_response import JoinedResponse

TICK_S = 1.0
"""How often the arbiter hears that we live."""
CUT_S = 0.5
"""Before the arbiter's own patience ends, what still runs is cut, so that exit hooks run."""
COLLECT_AFTER = (1_000_000, 10, 10)
"""Thresholds of the garbage collector, out of the way of 10,000 streams; requests leave no cycles behind.

What may come together all the same is collected while nothing runs; what exists after start, never.
"""
YOUNG = 1
"""Generation up to which an idle worker collects."""
FIRST_REQUEST_S = 0.3
"""How long a draining worker waits for the first request of a connection, which may be on its way."""
HANDSHAKE_S = 10.0
"""How long a client may take to agree on TLS."""


class Worker(GeventWorker):  # type: ignore[misc]
    """One rank. Set as `worker_class` in gunicorn.conf.py; the application also runs without it."""

    alive: bool

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.certificate: ServerCertificate | None = None
        self.write_timeout_s = inf
        """How long a client may take no bytes of an answer over TLS."""
        self._stopping = Event()
        self._busy: set[Any] = set()
        self._idle_at: dict[Any, float] = {}
        """Open connections: from when on each may be told that there is no next request."""

    def init_process(self) -> None:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        super().init_process()

    def load_wsgi(self) -> None:
        """Load the application; what it cannot be served with ends the arbiter, too, instead of a new try."""
        try:
            super().load_wsgi()
        except SystemExit as reason:
            self.log.error("%s", reason.code)
            sys.exit(Arbiter.WORKER_BOOT_ERROR)

    def run(self) -> None:
        """Serve until SIGTERM, then let running requests end, within `graceful_timeout`."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*COLLECT_AFTER)
        # gunicorn asks a dozen times a request, and its own way to answer is a search.
        self.cfg.__dict__.update({name: setting.get() for name, setting in self.cfg.settings.items()})
        if self.certificate is None and self.cfg.is_ssl:  # under an arbiter that is not ours
            self.certificate = ServerCertificate(self.cfg)
        servers = [self._serve(listener) for listener in self.sockets]
        # Looked at, too, because a signal that comes before a young worker listens to signals is lost.
        while self.alive and not stages.is_ending(self):
            self.notify()
            if self.certificate is not None:
                with suppress(CertificateError):  # the arbiter, which looks, too, tells of it
                    self.certificate.refresh()
            if not self._busy:
                gc.collect(YOUNG)
            self._stopping.wait(TICK_S)
        self.alive = False
        self._drain(servers)

    def _serve(self, listener: Any) -> StreamServer:
        listener.setblocking(1)
        server = StreamServer(
            listener, handle=partial(self.handle, listener), spawn=Pool(self.worker_connections)
        )
        server.start()
        return server

    def _drain(self, servers: list[StreamServer]) -> None:
        """Wait until nothing runs; new work goes to the successor or, if there is none, is refused.

        Who connected to us before there was a successor is served; probes of a server that ends see 503.
        With a successor, what runs may take its time, until the whole server ends.
        """
        deadline = inf
        if stages.is_replaced(self) and not stages.is_ending(self):
            for server in servers:
                server.close()
        else:
            deadline = self._cut_at()
            if hasattr(self.wsgi, "drain"):
                self.wsgi.drain()
        while self._is_awaited() and time.monotonic() < deadline:
            self.notify()
            self._release_idle()
            if deadline == inf and stages.is_ending(self):
                deadline = self._cut_at()
            gevent.sleep(0.05)
        self._release_idle()
        for server in servers:
            server.close()
        if self._busy:
            self.log.warning(
                "Worker %s cuts %d requests: the graceful timeout is over", self.pid, len(self._busy)
            )
        for server in servers:
            server.stop(timeout=CUT_S / 2)

    def _cut_at(self) -> float:
        """When a graceful end that begins now is over (monotonic seconds)."""
        patience_s: float = self.cfg.graceful_timeout
        return time.monotonic() + max(0.0, patience_s - CUT_S)

    def _is_awaited(self) -> bool:
        """True while a request runs, or may be on its way through a new connection."""
        return bool(self._busy) or any(moment > time.monotonic() for moment in self._idle_at.values())

    def _release_idle(self) -> None:
        """Tell connections that wait for a next request that there will be none."""
        now = time.monotonic()
        idle = [sock for sock, moment in self._idle_at.items() if moment <= now and sock not in self._busy]
        for sock in idle:
            with suppress(OSError):
                # The bare socket's: gevent's own would raise in the greenlet that reads, and log an error.
                sock._sock.shutdown(socket.SHUT_RD)

    def handle_exit(self, sig: int, frame: Any) -> None:
        super().handle_exit(sig, frame)
        self._stopping.set()

    def _try_h2c_upgrade(self, *args: Any) -> bool:
        return False  # HTTP/1.1 only, as vLLM

    def handle(self, listener: Any, client: Any, addr: Any) -> None:
        if self.certificate is not None:
            try:
                client = self.certificate.wrap(client)
            except OSError:  # the client has gone already
                return
        self._idle_at[client] = time.monotonic() + FIRST_REQUEST_S
        try:
            if self.certificate is None or self._agree(client, addr):
                super().handle(listener, client, addr)
        finally:
            self._idle_at.pop(client, None)

    def _agree(self, client: Any, addr: Any) -> bool:
        """The TLS handshake; False, and the connection closed, when it comes to nothing."""
        try:
            with gevent.Timeout(HANDSHAKE_S, TimeoutError("it takes too long")):
                client.do_handshake()
        except OSError as error:
            self.log.debug("TLS handshake with %s: %s", addr, error)
            client.close()
            return False
        return True

    def handle_request(self, listener_name: Any, req: Any, sock: Any, addr: Any) -> None:
        """One request; StopIteration when the connection is to be closed after it."""
        arrived = time.monotonic()
        self._busy.add(sock)
        try:
            response, environ = wsgi.create(
                req, sock, addr, listener_name, self.cfg, response_class=JoinedResponse
            )
            environ["wsgi.multithread"] = True
            environ[CONTEXT] = context_of(environ, arrived, response.ended)
            if not self.alive:
                response.force_close()
            self._respond(req, response, environ, arrived)
        except gevent.GreenletExit:
            raise StopIteration from None
        finally:
            self._busy.discard(sock)
            self._idle_at[sock] = arrived
        if not self.alive or response.should_close():
            raise StopIteration
        # A client that always has its next request ready would never let go of the loop.
        gevent.sleep(0)

    def _respond(self, req: Any, response: JoinedResponse, environ: dict[str, Any], arrived: float) -> None:
        body = self.wsgi(environ, response.start_response)
        try:
            for item in body:
                self._write(response, item)
            response.close()
        except Exception as error:
            if not response.headers_sent or isinstance(error, OSError):
                raise
            # Half an answer is out: nothing can be said any more but by closing.
            self.log.exception("an answer broke off")
            raise StopIteration from None
        finally:
            if self.log.access_log_enabled:
                self.log.access(response, req, environ, timedelta(seconds=time.monotonic() - arrived))
            if hasattr(body, "close"):
                body.close()

    def _write(self, response: JoinedResponse, item: bytes) -> None:
        """Streams over TLS pass here token by token (others are timed by `EventStream`)."""
        if self.certificate is None or self.write_timeout_s == inf:
            response.write(item)
            return
        with gevent.Timeout(self.write_timeout_s, OSError(errno.EPIPE, "the client takes no bytes")):
            response.write(item)
