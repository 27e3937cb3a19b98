"""gunicorn's gevent worker, with a fast path, an end that comes in time and a fair turn for every connection.

What it changes, and why (figures in docs/benchmarks.md):

* plain requests for generation are answered from the hub (`app.server.fast`); all others by gunicorn's parser
and
  Flask, in a greenlet that lasts as long as the answer;
* the stock worker waits for idle keep-alive connections until it is killed, so exit hooks never run;
* the stock worker serves one busy connection on and on, while others starve;
* the stock worker sends head and body of an answer in two system calls;
* the stock worker reads a body that nobody wanted to its end, however long it is;
* a full collection of a loaded process takes tens of milliseconds, and every stream stumbles over it.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import resource
import ssl
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
from gunicorn import http, util
from gunicorn.arbiter import Arbiter
from gunicorn.http import wsgi
from gunicorn.workers.ggevent import GeventWorker

from app.clock.pause import pause_with
from app.http.context import CONTEXT, context_of
from app.http.response import ClosingBody, StreamingBody
from app.server import handover
from app.server.certificates import CertificateError, ServerCertificate
from app.server.client_socket import (
    ClientServer,
    FairSocket,
    JoinedResponse,
    check_head,
    discard_body,
    has_much_unread,
    linger,
)
from app.server.connections import Connections, GreenletConnection
from app.server.fair_turns import FairTurns, Share
from app.server.fast.connection import FastConnection
from app.server.fast.path import FastPath

TICK_S = 1.0
"""How often the arbiter hears that we live."""
SWEEP_S = 0.2
"""How often idle connections are looked at."""
CUT_S = 1.0
"""So long before the arbiter's own patience ends, what still runs is cut, so that exit hooks run; half of the
patience where that is less."""
PARTING_S = 0.2
"""How long connections have to end by themselves when the end has come; and then, to be killed."""
COLLECT_AFTER = (1_000_000, 10, 10)
"""Thresholds of the garbage collector, out of the way of 10,000 streams; requests leave no cycles behind.

What may come together all the same is collected while nothing runs; what exists after start, never.
"""
YOUNG = 1
"""Generation up to which an idle worker collects."""
M_MMAP_THRESHOLD, MAPPED_BYTES = -3, 1 << 17
"""Blocks of memory from this size on are given back when they are free: `mallopt` of glibc.

glibc begins there, too, but with every such block that is freed its limit rises, up to 32 MiB. What
tokenizers on several threads needed for a prompt of 2 MB then stayed: some 40 MiB (measured).
"""
OWN_FILES = 256
"""Open files that are not connections of clients: late libraries, datasets, ZMQ, what is asked of others."""
FIRST_REQUEST_S = 0.3
"""How long a draining worker waits for the first request of a connection, which may be on its way."""
GENERAL_S = 0.001
"""About what a request takes that goes by Flask, in seconds of processor time."""
HANDSHAKE_S = 10.0
"""How long a client may take to agree on TLS."""
GONE = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF)


class Worker(GeventWorker):  # type: ignore[misc]
    """One rank. Set as `worker_class` in gunicorn.conf.py; the application also runs without it."""

    alive: bool
    worker_connections: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.certificate: ServerCertificate | None = None
        self.fast_path = True
        """Plain requests are answered without Flask."""
        self.write_timeout_s = inf
        """How long a client may take no bytes of an answer."""
        self.head_timeout_s = inf
        """How long the head of a request may take where connections are not kept."""
        self._fast: FastPath | None = None
        self._turns: FairTurns
        self._greenlets = Pool(self.worker_connections)
        self._stopping = Event()
        self._connections = Connections()

    def init_process(self) -> None:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        if most != resource.RLIM_INFINITY and self.worker_connections > (
            room := most - min(OWN_FILES, most // 2)
        ):
            self.log.warning("%d open files allow %d connections at a time", most, room)
            self.worker_connections = room
        super().init_process()

    def load_wsgi(self) -> None:
        """Load the application; what it cannot be served with ends the arbiter, too, instead of a new try."""
        try:
            super().load_wsgi()
        except SystemExit as reason:
            self.log.error("%s", reason.code)
            sys.exit(Arbiter.WORKER_BOOT_ERROR)
        if getattr(self.wsgi, "rpc", None) is not None:
            import app.server.http2.connection  # noqa: F401  # or the first client would hold up all others

    def run(self) -> None:
        """Serve until SIGTERM, then let running requests end, within `graceful_timeout`."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*COLLECT_AFTER)
        _give_memory_back()
        # gunicorn asks a dozen times a request, and its own way to answer is a search.
        self.cfg.__dict__.update({name: setting.get() for name, setting in self.cfg.settings.items()})
        if self.certificate is None and self.cfg.is_ssl:  # under an arbiter that is not ours
            self.certificate = ServerCertificate(self.cfg)
        self._turns = FairTurns()
        pause_with(self._turns.pause)
        with_middleware = hasattr(self.wsgi, "middleware")
        if self.fast_path and self.certificate is None and self.cfg.keepalive and with_middleware:
            path = self._fast = FastPath(
                *(self.wsgi, self.log, self._turns, self._connections, self.cfg.keepalive),
                *(self._serve_general, self.write_timeout_s, self.head_timeout_s),
            )
            path.heads.keep_to(self.cfg.limit_request_field_size, self.cfg.limit_request_fields)
            self.wsgi.caches.append(lambda: {"request heads": path.heads})
        servers = [self._listen(listener) for listener in self.sockets]
        # Looked at, too, because a signal that comes before a young worker listens to signals is lost.
        while self.alive and not handover.is_ending(self):
            self.notify()
            _forget_names()
            if self.certificate is not None:
                with suppress(CertificateError):  # the arbiter, which looks, too, tells of it
                    self.certificate.refresh()
            if not self._runs:
                gc.collect(YOUNG)
            self._sweep_until(time.monotonic() + TICK_S)
        self.alive = False
        if self._fast is not None:
            self._fast.is_open = False
        self._drain(servers)

    def _sweep_until(self, end_s: float) -> None:
        while not self._stopping.is_set() and (now_s := time.monotonic()) < end_s:
            self._connections.look(now_s)
            self._stopping.wait(min(SWEEP_S, end_s - now_s))

    def _listen(self, listener: Any) -> ClientServer:
        listener.setblocking(1)
        # Its address is asked for here: a worker that is replaced closes it before it has answered everybody.
        server = ClientServer(listener, partial(self._accept, listener.getsockname()), self._is_full)
        server.start()
        return server

    def _is_full(self) -> bool:
        return len(self._connections.open) >= self.worker_connections

    def _accept(self, bound: Any, client: Any, addr: Any) -> None:
        """Hub: a new connection. Where there is a fast path it waits without a greenlet."""
        if self._fast is not None and isinstance(addr, tuple):
            FastConnection(self._fast, client, addr, bound)
        else:
            self._greenlets.spawn(self.handle, bound, client, addr)

    @property
    def _runs(self) -> bool:
        return self._connections.count_busy() > 0

    def _drain(self, servers: list[ClientServer]) -> None:
        """Wait until nothing runs; new work goes to the successor or, if there is none, is refused.

        Who connected to us before there was a successor is served; probes of a server that ends see 503.
        With a successor, what runs may take its time, until the whole server ends.
        """
        deadline = inf
        if handover.is_replaced(self) and not handover.is_ending(self):
            for server in servers:
                server.close()
        else:
            deadline = self._cut_at()
            if hasattr(self.wsgi, "drain"):
                self.wsgi.drain()
        while self._is_awaited() and time.monotonic() < deadline:
            self.notify()
            self._connections.close_idle(time.monotonic(), FIRST_REQUEST_S)
            if deadline == inf and handover.is_ending(self):
                deadline = self._cut_at()
            gevent.sleep(0.05)
        self._connections.close_idle(time.monotonic(), FIRST_REQUEST_S)
        for server in servers:
            server.close()
        if self._runs:
            running = self._connections.count_busy()
            self.log.warning("Worker %s cuts %d requests: the graceful timeout is over", self.pid, running)
        self._greenlets.join(timeout=PARTING_S)
        self._greenlets.kill(timeout=PARTING_S)
        self._connections.close_all()

    def _cut_at(self) -> float:
        """When a graceful end that begins now is over (monotonic seconds)."""
        patience_s: float = self.cfg.graceful_timeout
        return time.monotonic() + patience_s - min(CUT_S, patience_s / 2)

    def _is_awaited(self) -> bool:
        """True while a request runs, or may be on its way through a new connection."""
        return self._runs or self._connections.is_expecting(time.monotonic(), FIRST_REQUEST_S)

    def handle_exit(self, sig: int, frame: Any) -> None:
        super().handle_exit(sig, frame)
        self._stopping.set()

    def handle(self, bound: Any, client: Any, addr: Any) -> None:
        """Greenlet: all requests of one connection, which is TLS or none of the fast path's.

        `bound` is the address that it came to.
        """
        if self.certificate is not None:
            try:
                client = self.certificate.wrap(client)
            except OSError:  # the client has gone already
                client.close()
                return
        served = GreenletConnection(client)
        self._connections.open[served] = None
        try:
            if self.certificate is None or self._agree(client, addr):
                self._serve(bound, client, addr, b"", Share(), served)
        finally:
            del self._connections.open[served]
            util.close(client)

    def _serve_general(self, connection: FastConnection, data: bytes) -> None:
        """Hub: have a greenlet answer one request of a connection of the fast path.

        It has arrived now, however many others are answered before it.
        """
        self._greenlets.spawn(self._answer_one, connection, data, time.monotonic())

    def _answer_one(self, connection: FastConnection, data: bytes, arrived_s: float) -> None:
        client = connection.client
        rest = None
        try:
            connection.share.cost_s = max(connection.share.cost_s, GENERAL_S)
            self._turns.wait(connection.share)
            rest = self._serve(
                connection.bound, client, connection.address, data, connection.share, arrived_s=arrived_s
            )
        finally:
            if rest is None or not self.alive:
                connection.close()
            else:
                connection.take_back(rest)

    def _serve(
        self,
        bound: Any,
        client: Any,
        addr: Any,
        data: bytes,
        share: Share,
        served: GreenletConnection | None = None,
        arrived_s: float | None = None,
    ) -> bytes | None:
        """Requests of one connection, beginning with `data`, until it is to be closed: then None.

        Without `served` a single one, which came at `arrived_s`; what was read beyond it is returned.
        """
        req = None
        try:
            source = FairSocket(client, data, self._turns, share)
            parser = http.get_parser(self.cfg, source, addr)
            while True:
                req = None
                with gevent.Timeout(self.cfg.keepalive or self.head_timeout_s, False):
                    req = next(parser)
                if not req:
                    return None
                check_head(req)
                if served is not None:
                    served.begin()
                try:
                    self.handle_request(bound, req, client, addr, arrived_s)
                finally:
                    if served is not None:
                        served.end()
                self._turns.wait(share)  # a client with its next request ready would never let go of the loop
                if not discard_body(parser):
                    linger(client)
                    return None
                if served is None:
                    rest: bytes = parser.unreader.take_buffered() + source.take_rest()
                    return rest
        except (http.errors.NoMoreData, StopIteration) as error:
            self.log.debug("Closing connection. %s", error)
            if req is not None and has_much_unread(req):
                linger(client)
        except ssl.SSLError as error:
            if error.args[0] != ssl.SSL_ERROR_EOF:
                self.handle_error(req, client, addr, error)
        except OSError as error:
            if error.errno not in GONE:
                self.log.exception("Socket error processing request.")
        except BaseException as error:
            self.handle_error(req, client, addr, error)
            linger(client)
        return None

    def _agree(self, client: Any, addr: Any) -> bool:
        """The TLS handshake; False when it comes to nothing."""
        try:
            with gevent.Timeout(HANDSHAKE_S, TimeoutError("it takes too long")):
                client.do_handshake()
        except OSError as error:
            self.log.debug("TLS handshake with %s: %s", addr, error)
            return False
        return True

    def handle_request(
        self, listener_name: Any, req: Any, sock: Any, addr: Any, arrived_s: float | None = None
    ) -> None:
        """One request, that came just now or `arrived_s`; StopIteration when the connection is to be closed
        after it.
        """
        arrived = time.monotonic() if arrived_s is None else arrived_s
        try:
            response, environ = wsgi.create(
                req, sock, addr, listener_name, self.cfg, response_class=JoinedResponse
            )
            response.write_timeout_s = None if self.write_timeout_s == inf else self.write_timeout_s
            environ["wsgi.multithread"] = True
            environ[CONTEXT] = context_of(environ, arrived, response.ended)
            if not self.alive or not self.cfg.keepalive:
                response.force_close()
            self._respond(req, response, environ, arrived)
        except gevent.GreenletExit:
            raise StopIteration from None
        if not self.alive or response.should_close():
            raise StopIteration

    def _respond(self, req: Any, response: JoinedResponse, environ: dict[str, Any], arrived: float) -> None:
        body = self.wsgi(environ, response.start_response)
        if has_much_unread(req):
            response.force_close()
        try:
            for item in body:
                response.write(item)
            response.close()
        except Exception as error:
            if not response.headers_sent or isinstance(error, OSError):
                raise
            # Half an answer is out: nothing can be said any more but by closing.
            self.log.exception("an answer broke off")
            raise StopIteration from None
        finally:
            if self.log.access_log_enabled:
                stream = body.response.body if isinstance(body, ClosingBody) else None
                if isinstance(stream, StreamingBody):  # whose bytes may have left past the server
                    response.sent = stream.bytes_sent
                self.log.access(response, req, environ, timedelta(seconds=time.monotonic() - arrived))
            if hasattr(body, "close"):
                body.close()


def _give_memory_back() -> None:
    """See `MAPPED_BYTES`; another C library may have other ways."""
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)


def _forget_names() -> None:
    """Empty the interpreter's cache of attributes, up to 4,096 names that are looked up anew.

    gevent looks for a watcher's `stop` by a new text each time. Those that the cache keeps lie wherever there
    was room: one of them in each MiB of what a long body once took keeps the whole MiB (20 of 27, measured).
    """
    if sys.version_info >= (3, 13):
        sys._clear_internal_caches()
    else:
        sys._clear_type_cache()
