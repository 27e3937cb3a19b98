"""All connections of one worker, from accepting to closing."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any

import gevent

from app.base.clock.clock import Watcher
from app.serving.api.errors import respond_to_error
from app.serving.flask.application import Understudy
from app.serving.gunicorn.fair_turns import FairTurns, Share
from app.serving.gunicorn.fast.heads import RequestHeads
from app.serving.gunicorn.logs import ServerLogger, log_exchange
from app.serving.http.connection import READ, Connection, GeventSocket
from app.serving.http.context import RequestContext
from app.serving.http.response import Response, StreamingBody
from app.serving.http.stream import SendBuffer, WriteBatcher

RECEIVE = 1 << 16
MOST_ANSWERS = 8
"""Most complete answers per batch: the first has then waited half a millisecond."""
ServeGeneral = Callable[..., None]
"""Called with a `FastConnection` and bytes."""


class HubConnection(SendBuffer):
    """A client's socket that the hub reads, so that no greenlet waits for the next request.

    `busy`: a request is being answered. `is_new`: no request has come yet. `since_s`: start of the wait for a
    request, or for the rest of one (monotonic seconds).
    """

    __slots__ = ("_reader", "address", "busy", "client", "is_new", "path", "share", "since_s")

    def __init__(
        self,
        path: FastPath,
        client: GeventSocket,
        address: tuple[str, int],
        batcher: WriteBatcher,
        share: Share,
    ) -> None:
        super().__init__(Connection(client), batcher, path.write_timeout_s)
        self.path, self.client, self.address, self.share = path, client, address, share
        path.open[self] = None
        self.busy, self.is_new, self.since_s = False, True, time.monotonic()
        self._reader: Watcher = gevent.get_hub().loop.io(self.connection.fileno(), READ)

    def _receive(self) -> bytes:
        """Returns the bytes that have arrived. The client's end or reset closes the connection."""
        received = self.path.received
        try:
            data = received[: self.client._sock.recv_into(received)].tobytes()
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        if not data:
            self.close()
        return data

    @property
    def has_unread(self) -> bool:
        """True if bytes have arrived that are not read yet."""
        try:
            return bool(self.client._sock.recv(1, socket.MSG_PEEK))
        except OSError:  # BlockingIOError, too
            return False

    def _forget(self) -> None:
        """Ends reading, and the worker's care for this connection."""
        self.is_open = False
        self.path.open.pop(self, None)
        self._reader.stop()
        self._reader.close()

    def client_gone(self) -> None:
        self.close()

    def look(self, now_s: float) -> None:
        """Enforces time limits. Called every fifth of a second."""
        raise NotImplementedError

    def leave(self) -> None:
        """Admits no further request; running answers go on."""

    def close(self) -> None:
        """Ends the connection; a running answer is discarded."""
        raise NotImplementedError


class GreenletConnection:
    """A connection that one greenlet serves to its end; the greenlet enforces the time limits."""

    has_unread = False

    def __init__(self, client: Any) -> None:
        self._client = client
        self.busy, self.is_new, self.since_s = False, True, time.monotonic()

    def look(self, now_s: float) -> None: ...

    def leave(self) -> None: ...

    def close(self) -> None:
        """Ends the greenlet's wait for the next request."""
        with suppress(OSError):
            # The native socket: gevent's would raise in the reading greenlet, and log an error.
            self._client._sock.shutdown(socket.SHUT_RD)


class Connections:
    """The connections of one worker."""

    def __init__(self) -> None:
        self.open: dict[HubConnection | GreenletConnection, None] = {}

    def look(self, now_s: float) -> None:
        """Enforces the time limits of idle connections and incomplete requests."""
        for connection in list(self.open):
            connection.look(now_s)

    def close_idle(self, young_s: float) -> None:
        """Closes idle connections, and lets busy ones end with their answer.

        A connection younger than `young_s` may still send its first request. A request that has arrived
        unread, because the loop is late, is answered.
        """
        since_s = time.monotonic() - young_s
        for connection in list(self.open):
            if connection.is_new and connection.since_s > since_s:
                continue
            if connection.busy or connection.has_unread:
                connection.leave()
            else:
                connection.close()

    def is_expecting(self, young_s: float) -> bool:
        """True while a request is unread, or may come on a connection younger than `young_s`."""
        since_s = time.monotonic() - young_s
        return any(
            (one.is_new and one.since_s > since_s) or (not one.busy and one.has_unread) for one in self.open
        )

    def count_busy(self) -> int:
        return sum(one.busy for one in self.open)

    def close_all(self) -> None:
        for connection in list(self.open):
            connection.close()


class FastPath:
    """The fast path of one worker.

    An idle connection is closed after `idle_s`. A client that takes no bytes is cut off after
    `write_timeout_s`. `serve_general` starts a greenlet for the next request of a connection; the request
    starts with the given bytes.
    """

    respond_to_error = staticmethod(respond_to_error)

    def __init__(
        self,
        app: Understudy,
        log: ServerLogger,
        turns: FairTurns,
        connections: Connections,
        idle_s: float,
        serve_general: ServeGeneral,
        write_timeout_s: float = inf,
        read_timeout_s: float = inf,
    ) -> None:
        self.open = connections.open
        self.idle_s = idle_s
        self.heads = RequestHeads(app.routes)
        self.middleware = app.middleware
        self.turns = turns
        self.serve_general = serve_general
        self.batcher = WriteBatcher()
        self.answers = WriteBatcher(MOST_ANSWERS)
        self.write_timeout_s = write_timeout_s
        self.read_timeout_s = read_timeout_s
        self.rpc = app.rpc
        """gRPC methods; None if the server has none."""
        self.received = memoryview(bytearray(RECEIVE))
        """Receive buffer of all connections. A new buffer per `recv` would fragment the C library's heap."""
        self.is_open = True
        """False when every answer has to close its connection."""
        self.new_id = app.new_request_id
        self.logs_access = log.access_log_enabled
        self._log = log

    def log_access(self, context: RequestContext, response: Response) -> None:
        """Writes the access line of an answer that has been sent."""
        body, sent = response.body, 0
        if isinstance(body, StreamingBody):
            sent = body.bytes_sent
        elif isinstance(body, bytes):
            sent = len(body)
        log_exchange(self._log, context, response, sent, time.monotonic() - context.arrival_s)
