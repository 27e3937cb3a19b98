"""All connections of one worker, from accepting to closing."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from typing import Any, Protocol


class ClientConnection(Protocol):
    """One client's connection; the hub or a greenlet waits for its requests."""

    is_new: bool
    """True before the first request."""
    since_s: float
    """Start of the wait for a request, or for the rest of one (monotonic seconds)."""

    @property
    def busy(self) -> bool:
        """True while a request is being answered."""

    @property
    def has_unread(self) -> bool:
        """True if bytes have arrived that are not read yet."""

    def look(self, now_s: float) -> None:
        """Enforces time limits. Called every fifth of a second."""

    def leave(self) -> None:
        """Admits no further request; running answers go on."""

    def close(self) -> None:
        """Ends the connection; a running answer is discarded."""


class Connections:
    """The connections of one worker."""

    def __init__(self) -> None:
        self.open: dict[ClientConnection, None] = {}

    def look(self, now_s: float) -> None:
        """Enforces the time limits of idle connections and incomplete requests."""
        for connection in list(self.open):
            connection.look(now_s)

    def close_idle(self, now_s: float, young_s: float) -> None:
        """Closes idle connections, and lets busy ones end with their answer.

        A connection younger than `young_s` may still send its first request. A request that has arrived
        unread, because the loop is late, is answered.
        """
        for connection in list(self.open):
            is_young = connection.is_new and now_s - connection.since_s < young_s
            if not connection.busy and not is_young and not connection.has_unread:
                connection.close()
            elif not is_young:
                connection.leave()

    def is_expecting(self, now_s: float, young_s: float) -> bool:
        """True while a request is unread, or may come on a connection younger than `young_s`."""
        return any(
            (one.is_new and now_s - one.since_s < young_s) or (not one.busy and one.has_unread)
            for one in self.open
        )

    def count_busy(self) -> int:
        return sum(one.busy for one in self.open)

    def close_all(self) -> None:
        for connection in list(self.open):
            connection.close()


class GreenletConnection:
    """A connection that one greenlet serves to its end; the greenlet enforces the time limits."""

    has_unread = False

    def __init__(self, client: Any) -> None:
        self._client = client
        self.busy, self.is_new, self.since_s = False, True, time.monotonic()

    def begin(self) -> None:
        """Marks the start of a request."""
        self.busy, self.is_new = True, False

    def end(self) -> None:
        """Marks the end of the answer."""
        self.busy, self.since_s = False, time.monotonic()

    def look(self, now_s: float) -> None:
        """Does nothing: the greenlet enforces the limits."""

    def leave(self) -> None:
        """Does nothing: the greenlet ends with its request."""

    def close(self) -> None:
        """Ends the greenlet's wait for the next request."""
        with suppress(OSError):
            # The native socket: gevent's would raise in the reading greenlet, and log an error.
            self._client._sock.shutdown(socket.SHUT_RD)
