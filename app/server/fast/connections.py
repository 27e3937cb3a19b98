"""The connections of one worker that no greenlet waits for, whether they speak HTTP/1.1 or HTTP/2."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from app.server.fast.connection import FastConnection
from app.server.fast.path import FastPath

if TYPE_CHECKING:
    from app.server.http2.connection import Http2Connection

HubConnection: TypeAlias = "FastConnection | Http2Connection"
ServeGeneral = Callable[[FastConnection, bytes], None]


class FastConnections:
    """The connections of one worker. `serve_general` has a greenlet serve the next request of one.

    An idle connection is closed after `idle_s`.
    """

    def __init__(self, path: FastPath, idle_s: float, serve_general: ServeGeneral) -> None:
        self.path = path
        self._serve_general = serve_general
        self.open: dict[HubConnection, None] = {}
        """All of them."""
        self._idle_s = idle_s

    def add(self, connection: FastConnection) -> None:
        self.open[connection] = None

    def upgrade(self, connection: FastConnection, data: bytes) -> None:
        """The connection begins with `data`, and is HTTP/2."""
        from app.server.http2.connection import Http2Connection  # which few servers need

        connection.release()
        other = Http2Connection(self, connection.client, connection.address)
        self.open[other] = None
        other.begin(data)

    def serve_general(self, connection: FastConnection, data: bytes) -> None:
        """Have a greenlet serve the next request of `connection`, which begins with `data`."""
        self._serve_general(connection, data)

    def has(self, connection: HubConnection) -> bool:
        """It is not closed."""
        return connection in self.open

    def forget(self, connection: HubConnection) -> bool:
        """The connection is closed; False when it was already."""
        if connection not in self.open:
            return False
        del self.open[connection]
        return True

    def sweep(self, now_s: float) -> None:
        """Close what has been idle or stalled for too long; hand what is incomplete to the general way."""
        for connection in list(self.open):
            if connection.busy:
                since_s = connection.takes_no_bytes_since_s
                if since_s is not None and now_s - since_s > self.path.write_timeout_s:
                    connection.close()
                else:
                    connection.look(now_s)
            elif now_s - connection.since_s > self._idle_s:
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

    @property
    def is_busy(self) -> bool:
        """True while an answer is being made or written."""
        return any(one.busy for one in self.open)

    def count_busy(self) -> int:
        return sum(one.busy for one in self.open)

    def close_all(self) -> None:
        for connection in list(self.open):
            connection.close()
