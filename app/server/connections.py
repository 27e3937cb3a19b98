"""All connections of one worker, from accepting to closing: who is busy, who may go."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from typing import Any, Protocol


class ClientConnection(Protocol):
    """One client, whether the hub or a greenlet waits for its requests."""

    is_new: bool
    """No request has come yet."""
    since_s: float
    """Since when the connection waits for a request, or for the rest of one."""

    @property
    def busy(self) -> bool:
        """Something is being answered."""

    @property
    def has_unread(self) -> bool:
        """Bytes have arrived that are not read yet."""

    def look(self, now_s: float) -> None:
        """Ends what has taken too long. Called every fifth of a second."""

    def leave(self) -> None:
        """The worker gives way: what runs goes on, nothing new begins."""

    def close(self) -> None:
        """Ends the connection; a running answer is discarded."""


class Connections:
    """The connections of one worker."""

    def __init__(self) -> None:
        self.open: dict[ClientConnection, None] = {}

    def look(self, now_s: float) -> None:
        """Ends what has been idle, or incomplete, for too long."""
        for connection in list(self.open):
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


class GreenletConnection:
    """A connection that one greenlet serves from beginning to end, within its own time limits."""

    has_unread = False

    def __init__(self, client: Any) -> None:
        self._client = client
        self.busy, self.is_new, self.since_s = False, True, time.monotonic()

    def begin(self) -> None:
        """A request is to be answered."""
        self.busy, self.is_new = True, False

    def end(self) -> None:
        """The request has been answered."""
        self.busy, self.since_s = False, time.monotonic()

    def look(self, now_s: float) -> None:
        """The greenlet sees to it."""

    def leave(self) -> None:
        """The greenlet ends with its request."""

    def close(self) -> None:
        """Ends the wait of the greenlet for a next request."""
        with suppress(OSError):
            # The bare socket's: gevent's own would raise in the greenlet that reads, and log an error.
            self._client._sock.shutdown(socket.SHUT_RD)
