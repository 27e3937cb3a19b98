"""State shared by all fast-path connections of one worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf

from app.serving.api.errors import respond_to_error
from app.serving.flask.application import Understudy
from app.serving.gunicorn.connections import Connections
from app.serving.gunicorn.fair_turns import FairTurns
from app.serving.gunicorn.fast.heads import RequestHeads
from app.serving.gunicorn.logs import ServerLogger, log_exchange
from app.serving.http.context import RequestContext
from app.serving.http.response import Response, StreamingBody
from app.serving.http.stream import WriteBatcher

RECEIVE = 1 << 16
MOST_ANSWERS = 8
"""Most complete answers per batch: the first has then waited half a millisecond."""
ServeGeneral = Callable[..., None]
"""Called with a `FastConnection` and bytes."""


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
