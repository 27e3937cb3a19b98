"""A small HTTP server beside the main one, with the main server's limits for clients.

`SideServer` serves a WSGI application on a further port. Start reading at its `_serve`.
"""

from __future__ import annotations

import io
import logging
import math
import resource
import time
from collections import OrderedDict
from contextlib import suppress
from http import HTTPStatus
from socket import IPPROTO_TCP, SHUT_RD, SHUT_RDWR, TCP_NODELAY
from types import TracebackType
from typing import TYPE_CHECKING, Any

import gevent
import gevent.socket
from gevent.pywsgi import WSGIHandler, WSGIServer
from msgspec import Struct

from app.core.base.clock.pause import pause_if_possible
from app.core.server.http.accepting import PatientServer

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

    from config.settings import ServerSettings

MAX_CONNECTIONS = 256
"""Most open connections. Each takes a greenlet and a buffer, of some 30 KB in all."""
FILES_PER_CONNECTION = 8
"""Allowed open files for each connection: libraries and outgoing requests need files, too."""
MAX_REQUEST_BYTES = 1 << 16
"""Most bytes of a request with its head."""
BUFFER_BYTES = 1 << 13
"""Bytes per read. gevent parses chunks byte by byte, which takes some 4 ms for a buffer."""
LIMIT_CHECK_S = 0.2
"""Seconds between two checks of the time limits of connections."""
ERROR_S = 1.0
"""Seconds for the error that a client gets whose body is late."""
log = logging.getLogger(__name__)


class ClientLimits(Struct, frozen=True):
    """How long a client may take, in seconds."""

    idle_s: float = 75.0
    """For the first byte of a request, from the connection or the previous response on."""
    client_timeout_s: float = 60.0
    """For the head from its first byte on, for the body, and for reading the response."""

    @classmethod
    def from_settings(cls, server: ServerSettings) -> ClientLimits:
        """Returns the limits of the main server."""
        timeout_s = server.client_timeout
        return cls(math.ceil(server.keep_alive_timeout) or timeout_s, timeout_s)


class SideServer(PatientServer, WSGIServer):  # type: ignore[misc]
    """Serves `application` at `listener`, a socket or an address.

    When all connections are in use, a new client takes the place of the one whose last complete
    request is longest ago: clients that send half a request keep no one out.
    """

    def __init__(
        self,
        listener: object,
        application: WSGIApplication,
        limits: ClientLimits,
        **tls: Any,
    ) -> None:
        """`tls` has the paths of a certificate, if the server has one."""
        self.limits = limits
        max_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._max_connections = MAX_CONNECTIONS
        if max_files != resource.RLIM_INFINITY:
            self._max_connections = min(MAX_CONNECTIONS, max_files // FILES_PER_CONNECTION)
        self._connections: OrderedDict[object, _Connection] = OrderedDict()
        """The connections by their greenlets."""
        self._watch: gevent.Greenlet[..., None] | None = None
        super().__init__(listener, application, log=None, error_log=None, **tls)

    def start(self) -> None:
        """Begins to listen. Raises `OSError`."""
        super().start()
        self._watch = gevent.spawn(self._enforce_limits)

    def close(self) -> None:
        """Closes the port and all connections. May be called twice."""
        super().close()
        if self._watch is not None:
            self._watch.kill(block=False)
        for connection in self._connections.values():
            connection.close()

    def do_handle(self, client: gevent.socket.socket, address: object) -> None:
        """Hub: serves a new connection in a greenlet."""
        if len(self._connections) >= self._max_connections:
            _, oldest = self._connections.popitem(last=False)
            oldest.close()
        with suppress(OSError):  # else a body waits 40 ms for the client to confirm the head
            client.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        greenlet = gevent.Greenlet(self._serve, client, address)
        connection = _Connection(client, self.limits, greenlet)
        self._connections[greenlet] = connection

        def end(_: object) -> None:
            self._connections.pop(greenlet, None)
            client.close()

        greenlet.rawlink(end)  # also if it is killed before it has begun
        greenlet.start()

    def _serve(self, client: gevent.socket.socket, address: object) -> None:
        try:
            self._handle(client, address)
        except Exception as error:
            log.debug("the connection to %s has ended: %r", address, error)

    def handle(self, client: gevent.socket.socket, address: object) -> None:
        """Serves the requests of a connection, after its TLS handshake."""
        connection = self._connections.get(gevent.getcurrent())
        if connection is not None:  # else it has just been closed
            connection.client = client
            _ClientHandler(connection, address, self).handle()

    def note_request(self) -> None:
        """Called in a connection's greenlet when a request is complete."""
        greenlet = gevent.getcurrent()
        if greenlet in self._connections:
            self._connections.move_to_end(greenlet)

    def _enforce_limits(self) -> None:
        while True:
            gevent.sleep(LIMIT_CHECK_S)
            now_s = time.monotonic()
            for connection in list(self._connections.values()):
                if now_s > connection.deadline_s:
                    connection.expire(now_s)


class _Connection:
    """A client's connection with the deadline of its current step.

    Ends a step by shutting the socket down, which wakes the greenlet: an exception there would
    meet handlers of gevent's that read on.
    """

    def __init__(
        self,
        client: gevent.socket.socket,
        limits: ClientLimits,
        greenlet: gevent.Greenlet[..., None],
    ) -> None:
        self.client: gevent.socket.socket | None = None
        """None before the TLS handshake has ended."""
        self.is_late = False
        """True if the body of a request, or the reading of its response, took too long."""
        self.unread_bytes = 0
        """Bytes that the current request may still have."""
        self._limits = limits
        self._greenlet = greenlet
        self._has_head = False
        self.await_head()

    def await_head(self) -> None:
        """Begins the wait for the head of the next request."""
        self._has_head = False
        self._has_part = False
        self.unread_bytes = MAX_REQUEST_BYTES
        self.deadline_s = time.monotonic() + self._limits.idle_s

    def note_bytes(self) -> None:
        """Begins the time for the remainder of a head with its first bytes."""
        if not self._has_head and not self._has_part:
            self._has_part = True
            head_deadline_s = time.monotonic() + self._limits.client_timeout_s
            self.deadline_s = min(self.deadline_s, head_deadline_s)

    def await_end(self) -> None:
        """Begins the time for the body of a request and its response."""
        self._has_head = True
        self.deadline_s = time.monotonic() + self._limits.client_timeout_s

    def expire(self, now_s: float) -> None:
        """Ends a step that took too long."""
        if not self._has_head or self.is_late:
            self.close()
            return
        self.is_late = True
        self.deadline_s = now_s + ERROR_S
        self._shut_down(SHUT_RD)

    def close(self) -> None:
        """Ends the connection."""
        if self.client is None:
            self._greenlet.kill(block=False)
        else:
            self._shut_down(SHUT_RDWR)

    def _shut_down(self, direction: int) -> None:
        self.unread_bytes = 0
        assert self.client is not None
        with suppress(OSError):  # the client has disconnected
            gevent.socket.socket.shutdown(self.client, direction)


class _ClientReader(io.RawIOBase):
    """The bytes of a client. Other greenlets run after each read, and a request has a limit."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection

    def readable(self) -> bool:
        """Returns True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Reads into `buffer`, and returns the number of bytes, 0 at the end.

        Raises:
            OSError: the client has disconnected, or its request is too long or late.
        """
        connection = self._connection
        pause_if_possible()  # a client that sends faster than it is served would hold the loop
        if connection.unread_bytes <= 0:
            raise OSError("the request is too long or late")
        assert connection.client is not None
        size: int = connection.client.recv_into(buffer)
        connection.unread_bytes -= size
        connection.note_bytes()
        return size


class _ClientHandler(WSGIHandler):  # type: ignore[misc]
    """Serves the requests of one connection, and answers invalid ones without log lines."""

    def __init__(self, connection: _Connection, address: object, server: SideServer) -> None:
        reader = io.BufferedReader(_ClientReader(connection), BUFFER_BYTES)
        super().__init__(connection.client, address, server, reader)
        self._connection = connection

    def read_requestline(self) -> str:
        """Returns the first line of the next request."""
        self._connection.await_head()
        pause_if_possible()  # a client that always has a request ready would hold the loop
        line: str = super().read_requestline()
        return line

    def read_request(self, line: str) -> bool:
        """Reads the head of a request.

        Raises:
            ValueError: the head is invalid, late or too long.
        """
        if len(line.split()) != 3:
            raise ValueError("HTTP/0.9 is not supported")
        try:
            super().read_request(line)
        except Exception as error:  # gevent prints a traceback for others than ValueError
            raise ValueError(str(error)) from error
        self._connection.await_end()
        self.server.note_request()
        return True

    def handle_one_response(self) -> None:
        """Answers a request; refuses a body that will not be read to its end."""
        if (self.content_length or 0) <= MAX_REQUEST_BYTES:
            super().handle_one_response()
            return
        self.headers_sent = False
        self.result = None
        self._send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)

    def write(self, data: bytes) -> None:
        """Sends a part of a body; the response to HEAD has none."""
        if self.command == "HEAD":
            data = b""
        super().write(data)

    def run_application(self) -> None:
        """Runs the application. A request whose body is late gets status 408."""
        try:
            super().run_application()
        except OSError:
            if not self._connection.is_late:
                raise
            self._send_error(HTTPStatus.REQUEST_TIMEOUT)

    def handle_error(
        self, kind: type[BaseException], error: BaseException, traceback: TracebackType
    ) -> None:
        """Ends a request that the client has cut short, or that `application` failed to answer."""
        self.close_connection = True
        if isinstance(error, OSError):
            self._send_error(HTTPStatus.BAD_REQUEST)
        elif isinstance(error, Exception):
            log.error("a request failed", exc_info=(kind, error, traceback))
            self._send_error(HTTPStatus.INTERNAL_SERVER_ERROR)

    def _send_error(self, status: HTTPStatus) -> None:
        """Sends an error if the response has not begun, and closes the connection after it."""
        self.close_connection = True
        if not self.headers_sent:
            headers = [("Connection", "close"), ("Content-Length", "0")]
            with suppress(OSError):
                self.start_response(f"{status.value} {status.phrase}", headers)
                self.write(b"")
