"""The events of a response that is generated in the background, for all who want to follow it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gevent.event import Event as Bell

from app.http.connection import Connection


class EventLog:
    """All events so far, rendered; an event's place is its sequence number."""

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.over = False
        self._bells: set[Bell] = set()

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(map(len, self.events))

    def add(self, events: Iterable[bytes]) -> None:
        """Tell more."""
        self.events += events
        self._ring()

    def end(self) -> None:
        """There will be no more."""
        self.over = True
        self._ring()

    def join(self, bell: Bell) -> None:
        """Ring `bell` at every change, until `leave`."""
        self._bells.add(bell)

    def leave(self, bell: Bell) -> None:
        """Ring it no more."""
        self._bells.discard(bell)

    def _ring(self) -> None:
        for bell in self._bells:
            bell.set()


class Follower:
    """The body of a response that tells the events of `log`, from number `start` on, as they come.

    Iterate once; `close` always. It ends when the log does, or when the client behind `connection` has gone.
    """

    def __init__(self, log: EventLog, start: int, connection: Connection | None) -> None:
        self._log = log
        self._next = start
        self._connection = connection
        self._bell = Bell()
        self._gone = False

    def __iter__(self) -> Iterator[bytes]:
        self._log.join(self._bell)
        yield b""  # the status line leaves at once
        if self._connection is not None:
            self._connection.watch(self._leave)
        while not self._gone:
            self._bell.clear()
            events = self._log.events[self._next :]
            if events:
                self._next += len(events)
                yield b"".join(events)
            elif self._log.over:
                return
            else:
                self._bell.wait()

    def close(self) -> None:
        """The server is done with us."""
        self._log.leave(self._bell)
        if self._connection is not None:
            self._connection.unwatch()

    def _leave(self) -> None:
        self._gone = True
        self._bell.set()
