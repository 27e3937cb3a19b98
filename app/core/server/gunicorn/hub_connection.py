"""A client's socket that the hub reads, and the state that all connections of one worker share."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from ssl import SSLWantReadError, SSLWantWriteError
from typing import TYPE_CHECKING, Any

import gevent.socket

from app.core.base.clock.clock import Watcher
from app.core.server.flask.application import Understudy
from app.core.server.gunicorn.fair_turns import ConnectionCost, FairTurns
from app.core.server.gunicorn.handler_greenlets import HandlerGreenlets
from app.core.server.gunicorn.heads import RequestHeads
from app.core.server.gunicorn.logs import ServerLogger
from app.core.server.http.client_connection import READ
from app.core.server.http.stream_transport import StreamTransport, WriteBatcher

if TYPE_CHECKING:
    from app.core.server.http.rpc import Upgrade

log = logging.getLogger(__name__)
RECEIVE_BYTES = 1 << 16
"""Most bytes per read."""
UNLIMITED_S = 1e9
"""Stands for no limit, in seconds."""
MAX_ANSWERS_PER_BATCH = 8
"""Most complete answers per batch: the first has then waited half a millisecond."""
Address = tuple[str, int]
ServeGeneral = Callable[[Any, bytes], object]
"""Takes a `FastConnection` of `fast_connection.py`, and the bytes read so far."""


class HubConnection(StreamTransport):
    """A client's socket that the hub reads, so that no greenlet waits for the next request.

    Attributes:
        busy: A request is being answered.
        is_new: No request has arrived yet.
        since_s: Start of the wait for a request, or for the remainder of one (monotonic seconds).
            While the general path answers: arrival of the request.
    """

    __slots__ = (
        "_part_since_s",
        "_read_into",
        "_reader",
        "address",
        "busy",
        "client",
        "cost",
        "is_new",
        "path",
        "since_s",
    )

    def __init__(
        self, path: FastPath, client: gevent.socket.socket, address: Address, cost: ConnectionCost
    ) -> None:
        super().__init__(client, path.batcher, path.client_timeout_s)
        self.path = path
        self.client = client
        self.address = address
        self.cost = cost
        path.connections[self] = None
        self.busy = False
        self.is_new = True
        self.since_s = time.monotonic()
        self._part_since_s = 0.0
        """Equal to `since_s` from the check on that finds a part of a request."""
        self._read_into: Callable[[memoryview], int] = self._raw.recv_into
        tls = getattr(client, "_sslobj", None)
        if tls is not None:
            self._read_into = partial(_read_tls, tls)
        self._reader: Watcher = gevent.get_hub().loop.io(self._raw.fileno(), READ)

    def _receive(self) -> bytes:
        """Returns received bytes, or none; calls `end_of_requests` if the client sends no more."""
        received = self.path.received
        try:
            data = received[: self._read_into(received)].tobytes()
        except (BlockingIOError, SSLWantReadError, SSLWantWriteError):
            return b""
        except OSError as error:
            log.debug("the connection to %s has ended: %s", self.address, error)
            data = b""
        if not data:
            self.end_of_requests()
        return data

    def end_of_requests(self) -> None:
        """Closes the connection, whose client sends no more."""
        self.close()

    @property
    def has_unread(self) -> bool:
        """True if bytes have arrived that are not read yet."""
        try:
            return bool(self._raw.recv(1, socket.MSG_PEEK))
        except OSError:  # BlockingIOError, too
            return False

    def _unregister(self) -> None:
        self.is_open = False
        self.path.connections.pop(self, None)
        self._reader.stop()
        self._reader.close()

    def run_in_turn(self, work: Callable[[], None]) -> None:
        """Runs work for a client that lags as long work, so that health checks run first."""
        self.path.turns.run_long(work)

    def enforce_limits(self, now_s: float) -> None:
        """Enforces time limits. Called every fifth of a second."""
        raise NotImplementedError

    def is_overdue(self, now_s: float) -> bool:
        """Returns whether a client that waits for no answer has been silent or slow for too long.

        The time of an incomplete request begins with the check that finds its first bytes, so that
        reading takes no time of day.
        """
        path = self.path
        limit_s = path.idle_s
        if self.is_receiving:
            limit_s = min(limit_s, path.client_timeout_s)
            if self._part_since_s != self.since_s:
                self._part_since_s = now_s
                self.since_s = now_s
        return now_s - self.since_s > limit_s

    @property
    def answering_since_s(self) -> float:
        """Start of the answer of a busy connection (monotonic seconds)."""
        return self.since_s

    @property
    def is_receiving(self) -> bool:
        """True if a part of a request has arrived."""
        raise NotImplementedError

    def announce_end(self) -> None:
        """Asks the client to send no further request here; serves one that is on its way."""

    def refuse_requests(self) -> None:
        """Admits no further request; running answers continue."""
        self.announce_end()


OpenConnections = dict[HubConnection, None]


@dataclass(eq=False)
class FastPath:
    """State that the connections of one worker share.

    Attributes:
        app: The application; without it, gunicorn and Flask serve all requests.
        connections: The open connections of the worker.
        idle_s: Time after which an idle connection is closed.
        serve_general: Starts a greenlet that serves the next request of a connection by gunicorn's
            parser and Flask; the request starts with the given bytes.
        client_timeout_s: Time after which a client is disconnected that takes no bytes, or that has
            not sent its complete request.
        is_open: False when the answer to the last request of a connection has to close it.
        pipelines_until_s: End of the time for pipelined requests when `is_open` is False (monotonic
            seconds).
        upgrade: Continues a connection as HTTP/2, with the bytes read so far; None if the server
            has no gRPC.
    """

    app: Understudy | None
    log: ServerLogger
    turns: FairTurns
    connections: OpenConnections
    idle_s: float
    serve_general: ServeGeneral
    client_timeout_s: float = UNLIMITED_S
    is_open: bool = True
    pipelines_until_s: float = UNLIMITED_S
    upgrade: Upgrade | None = None

    def __post_init__(self) -> None:
        app = self.app
        self.heads = RequestHeads(() if app is None else app.take_direct_routes())
        if app is not None:
            self.middleware = app.middleware
            self.new_id = app.new_request_id
        self.handlers = HandlerGreenlets()
        """Runs the handlers of requests that are not plain."""
        self.batcher = WriteBatcher()
        """Sends streams."""
        self.answers = WriteBatcher(MAX_ANSWERS_PER_BATCH)
        """Sends complete answers."""
        self.received = memoryview(bytearray(RECEIVE_BYTES))
        """Receive buffer of all connections.

        A new buffer per `recv` would fragment the C library's heap.
        """
        self.logs_access = self.log.access_log_enabled

    def closes_after(self, has_more: bool) -> bool:
        """Returns whether an answer closes its connection when `is_open` is False.

        `has_more`: further bytes have arrived, which may be a pipelined request.
        """
        return not has_more or time.monotonic() >= self.pipelines_until_s


def _read_tls(tls: Any, buffer: memoryview) -> int:
    size: int = tls.read(len(buffer), buffer)
    return size
