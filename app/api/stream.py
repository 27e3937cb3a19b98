"""A streamed answer on its way through WSGI.

The server iterates the stream in the request's greenlet. Its first item is empty and makes the
server send status line and headers. Then the greenlet parks, and each due chunk goes from the pacer
by the outbox to the socket: no greenlet wakes for a token. Where the socket cannot be taken over (TLS,
HTTP/1.0, another server) the greenlet wakes and yields each chunk instead. What is written, and
when, is the same in both ways.

A client that does not read fills its socket buffer. Its stream then leaves the direct way: events
wait, unrendered, and its own greenlet writes them in slices until it has caught up. Nobody else waits,
and no more than one slice of bytes is held.
"""

from __future__ import annotations

from collections.abc import Iterator

from gevent.event import Event as Bell

from app.api.writer import ResponseWriter
from app.engine.client import SequenceGroup
from app.engine.outputs import Event, Failed, Tokens
from app.http.connection import Connection
from app.http.write_batcher import WriteBatcher

LAST_CHUNK = b"0\r\n\r\n"
SLICE_TOKENS = 256
"""About as many tokens are rendered at once for a client that lags behind."""


def _nowhere(data: bytes) -> int:
    return 0


class EventStream:
    """Writes the events of `choices` sequences with `answer`.

    `direct` allows writing past the server, in HTTP/1.1 chunks. Iterate once; `close` always.
    """

    __slots__ = (
        "_answer",
        "_bell",
        "_choices",
        "_connection",
        "_direct",
        "_ends",
        "_gone",
        "_outbox",
        "_pending",
        "_send_now",
        "_takes_over",
        "_unfinished",
        "_unsent",
        "_write_timeout_s",
        "bytes_sent",
        "group",
    )

    def __init__(
        self,
        answer: ResponseWriter,
        choices: int,
        connection: Connection | None,
        direct: bool,
        outbox: WriteBatcher,
        write_timeout_s: float,
    ) -> None:
        self._answer = answer
        self._choices = self._unfinished = choices
        self._connection = connection
        self._outbox = outbox
        self._takes_over = direct and connection is not None
        self._ends = connection is not None and connection.ended is not None
        self._send_now = connection.send_now if connection is not None else _nowhere
        self._write_timeout_s = write_timeout_s
        self._direct = False
        self._gone = False
        self._pending: list[Event] = []
        self._unsent = b""
        self._bell = Bell()
        self.group: SequenceGroup | None = None
        self.bytes_sent = 0

    @property
    def gone(self) -> bool:
        """The client left before the end."""
        return self._gone

    def emit(self, event: Event) -> None:
        """Take an event of the service: to the socket now, or to the list of those to write."""
        if not self._unfinished:  # one choice failed: nothing more is told of the others
            return
        before = self._unfinished
        if type(event) is Tokens:
            if event.finish is not None:
                self._unfinished -= 1
        elif type(event) is Failed:
            self._unfinished = 0
        if not self._direct:
            self._pending.append(event)
            self._bell.set()
            return
        try:
            data = self._answer.chunk(event)
            if not self._unfinished:
                data += self._answer.closing()
        except Exception:  # it could not be rendered: the end is still to come, as a failure
            self._unfinished = before
            raise
        if data:
            # What comes before the outbox is emptied leaves in the same write.
            if not self._unsent:
                self._outbox.put(self._send)
            self._unsent += self._framed(data)

    def __iter__(self) -> Iterator[bytes]:
        if not self._choices:
            yield self._answer.closing()
        if self._unfinished:
            yield b""
            if self._connection is not None:
                self._connection.watch(self.leave)
        if self._takes_over and self._unfinished:
            self._write_direct()
        else:
            yield from self._written()

    def close(self) -> None:
        """The server is done with us. What is unfinished now is finished for nobody."""
        self._direct = False
        if self._connection is not None:
            self._connection.unwatch()
        if self.group is not None:
            self.group.abort()

    def leave(self) -> None:
        """The client is gone: end its sequences and wake the greenlet."""
        self._gone = True
        self._direct = False
        if self.group is not None:
            self.group.abort()
        self._bell.set()

    def _send(self) -> None:
        """Hub: to the socket, as much as it takes; the greenlet sees to the rest."""
        if not self._direct:
            return
        data = self._unsent
        try:
            sent = self._send_now(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.leave()
            return
        self.bytes_sent += sent
        if sent < len(data):
            self._unsent = data[sent:]
            self._direct = False
            self._bell.set()
            return
        self._unsent = b""
        if not self._unfinished:
            if self._connection is not None:
                self._connection.unwatch()
            self._bell.set()

    def _framed(self, data: bytes) -> bytes:
        """One chunk of HTTP/1.1 chunked coding (RFC 9112 section 7.1); after all, the end of the body."""
        chunk = b"%x\r\n%b\r\n" % (len(data), data)
        return chunk + LAST_CHUNK if self._ends and not self._unfinished and not self._pending else chunk

    def _write_direct(self) -> None:
        """Greenlet: catch up, hand over to the pacer, sleep until the end or until the client lags."""
        connection = self._connection
        assert connection is not None
        while not self._gone:
            self._bell.clear()
            data, self._unsent = self._unsent, b""
            if not data and self._pending and (rendered := self._slice()):
                data = self._framed(rendered)
            if data:
                try:
                    self.bytes_sent += len(data)
                    connection.send_all(data, self._write_timeout_s)
                except OSError:
                    connection.shut()
                    self.leave()
            elif self._pending:
                continue
            elif self._unfinished:
                self._direct = True
                self._bell.wait()
                self._direct = False
            else:
                if connection.ended is not None:
                    connection.ended()
                return

    def _written(self) -> Iterator[bytes]:
        """Greenlet: wait for events and give them to the server, until the end."""
        while not self._gone:
            self._bell.clear()
            if self._pending:
                yield self._slice()
            elif self._unfinished:
                self._bell.wait()
            else:
                return

    def _slice(self) -> bytes:
        """The next events that wait, rendered; with the last one of all, the end of the stream."""
        taken = tokens = 0
        while taken < len(self._pending) and tokens < SLICE_TOKENS:
            event = self._pending[taken]
            tokens += len(event.ids) if type(event) is Tokens else 0
            taken += 1
        events, self._pending = self._pending[:taken], self._pending[taken:]
        chunks = [self._answer.chunk(event) for event in events]
        if not self._pending and not self._unfinished:
            chunks.append(self._answer.closing())
        return b"".join(chunks)
