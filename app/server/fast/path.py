"""The connections of one worker that no greenlet waits for, and what their answers have in common."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from typing import Protocol

from app.api.errors import respond_to_error
from app.http.context import RequestContext
from app.http.response import Response, StreamingBody
from app.http.stream import WriteBatcher
from app.server.fair_turns import FairTurns
from app.server.fast.heads import RequestHeads
from app.server.logs import ServerLogger, log_exchange
from app.web.application import Understudy

RECEIVE = 1 << 16
MOST_ANSWERS = 8
"""So many whole answers are sent together, half a millisecond after the first of them was made."""
ServeGeneral = Callable[..., None]
"""Given a `FastConnection` and bytes."""


class HubConnection(Protocol):
    """A connection of HTTP/1.1 or HTTP/2."""

    is_new: bool
    """No request has come yet."""
    since_s: float
    """Since when the connection waits for a request, or for the rest of one."""

    @property
    def busy(self) -> bool:
        """Something is being answered."""

    @property
    def has_unread(self) -> bool:
        """Bytes have arrived that nobody has read."""

    def look(self, now_s: float) -> None:
        """Ends what has taken too long. Called every fifth of a second."""

    def leave(self) -> None:
        """The worker gives way: what runs goes on, nothing new begins."""

    def close(self) -> None:
        """Closes the connection; what is being answered is answered for nobody."""


class FastPath:
    """The fast path of one worker.

    An idle connection is closed after `idle_s`. A client that takes no bytes is cut off after
    `write_timeout_s`. `serve_general` has a greenlet serve the next request of a connection, which begins
    with the bytes that it is given.
    """

    respond_to_error = staticmethod(respond_to_error)

    def __init__(
        self,
        app: Understudy,
        log: ServerLogger,
        turns: FairTurns,
        idle_s: float,
        serve_general: ServeGeneral,
        write_timeout_s: float = inf,
        read_timeout_s: float = inf,
    ) -> None:
        self.open: dict[HubConnection, None] = {}
        """All connections."""
        self.heads = RequestHeads(app.routes)
        self.middleware = app.middleware
        self.turns = turns
        self._idle_s = idle_s
        self.serve_general = serve_general
        self.batcher = WriteBatcher()
        self.answers = WriteBatcher(MOST_ANSWERS)
        self.write_timeout_s = write_timeout_s
        self.read_timeout_s = read_timeout_s
        self.rpc = app.rpc
        """Where the server speaks gRPC, too."""
        self.received = memoryview(bytearray(RECEIVE))
        """What has just arrived, on any connection. To have `recv` make room each time, and shrink it to what
        has come, leaves the C library's heap full of holes."""
        self.is_open = True
        """False as soon as every answer has to close its connection."""
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

    def sweep(self, now_s: float) -> None:
        """Closes what has been idle for too long; hands what is incomplete to the general way."""
        for connection in list(self.open):
            if not connection.busy and now_s - connection.since_s > self._idle_s:
                connection.close()
            else:
                connection.look(now_s)

    def close_idle(self, now_s: float, young_s: float) -> None:
        """There will be no next request; who connected less than `young_s` ago may still send a first one.

        A request that has arrived, and that a late loop has not read yet, is answered.
        """
        for connection in list(self.open):
            is_young = connection.is_new and now_s - connection.since_s < young_s
            if not connection.busy and not is_young and not connection.has_unread:
                connection.close()
            elif not is_young:
                connection.leave()

    def is_expecting(self, now_s: float, young_s: float) -> bool:
        """True while a request may be on its way: unread, or of who connected less than `young_s` ago."""
        return any(
            (one.is_new and now_s - one.since_s < young_s) or (not one.busy and one.has_unread)
            for one in self.open
        )

    def count_busy(self) -> int:
        """Connections on which an answer is being made or written."""
        return sum(one.busy for one in self.open)

    def close_all(self) -> None:
        for connection in list(self.open):
            connection.close()
