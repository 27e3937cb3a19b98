"""A chunked body on its way to a socket, written from the hub: no greenlet wakes for a piece of it.

Pieces that come in one turn of the timer wheel leave together (`WriteBatcher`). A client that does not read
fills its socket buffer. Its stream then lags: its source keeps what comes, unrendered, and is asked for a
slice whenever the socket has room, until it has caught up. Nobody else waits, and no more than one slice of
bytes is held.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

import gevent

from app.http.connection import Connection, Watcher


class WriteBatcher:
    """Writes of many streams or answers, gathered while they are rendered, then sent one after another.

    Sending is the kernel's work and rendering is ours. Done in turns, each pushes the other's code and data
    out of the processor's caches, and a client that empties its sockets quickly falls asleep between two
    chunks, so that every send has to wake it. In two passes a chunk costs a seventh less, a short answer a
    fifth to a quarter.

    It calls each `send` handed to it, in order, soon after the turn in which it was handed over.

    It does so at once when `most` are waiting: the first has then waited long enough. It belongs to the hub
    of the thread that first uses it.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._waiting: list[Callable[[], None]] = []
        self._run_soon: Any = None

    def put(self, send: Callable[[], None]) -> None:
        """Have `send()` called before the hub looks at sockets and timers again."""
        if not self._waiting:
            if self._run_soon is None:
                self._run_soon = gevent.get_hub().loop.run_callback
            self._run_soon(self._flush)
        self._waiting.append(send)
        if len(self._waiting) == self._most:
            self._flush()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for send in waiting:
            try:
                send()
            except Exception:  # one that breaks must not keep the others from theirs
                log.exception("a write failed")


log = logging.getLogger(__name__)

WRITE = 2
LAST_CHUNK = b"0\r\n\r\n"


class StreamSource(Protocol):
    """Where the pieces of a body come from."""

    def next_slice(self) -> tuple[bytes, bool, bool]:
        """The next bytes of those that wait, whether more of them wait, and whether these end the body."""

    def leave(self) -> None:
        """The client has gone, or takes no more bytes."""


class StreamTransport:
    """Writes one body in HTTP/1.1 chunks (RFC 9112 section 7.1) behind `head`, which leaves with its
    beginning.

    `finished` is called when all has been sent, `abandoned` when the client has gone before; with `ends_body`
    that includes the last chunk. A client that does not take a slice within `write_timeout_s` is cut off.
    """

    __slots__ = (
        "_abandoned",
        "_batcher",
        "_connection",
        "_ends_body",
        "_finished",
        "_last",
        "_queued",
        "_send_now",
        "_source",
        "_timer",
        "_unsent",
        "_watcher",
        "_write_timeout_s",
        "is_open",
        "lags",
    )

    def __init__(
        self,
        connection: Connection,
        batcher: WriteBatcher,
        write_timeout_s: float,
        finished: Callable[[], None],
        ends_body: bool,
        head: bytes = b"",
        abandoned: Callable[[], None] | None = None,
    ) -> None:
        self._connection = connection
        self._send_now = connection.send_now
        self._batcher = batcher
        self._write_timeout_s = write_timeout_s
        self._finished = finished
        self._ends_body = ends_body
        self._abandoned = abandoned
        self._unsent = head
        self._source: StreamSource | None = None
        self._queued = self._last = False
        self._watcher: Watcher | None = None
        self._timer: Watcher | None = None
        self.lags = False
        """Pieces have to wait until they are asked for."""
        self.is_open = True

    def start(self, source: StreamSource) -> None:
        """Take pieces of `source` from now on."""
        self._source = source

    def write(self, data: bytes, last: bool = False) -> None:
        """Send a piece soon, with what else comes in this turn. `last` ends the body."""
        self._frame(data, last)
        if not self._queued:
            self._queued = True
            self._batcher.put(self.flush)

    def send_soon(self, chunk: bytes) -> None:
        """As `write`, of a chunk that has its frame already."""
        self._unsent += chunk
        if not self._queued:
            self._queued = True
            self._batcher.put(self.flush)

    def break_off(self) -> None:
        """End the connection, on purpose."""
        self._connection.shut()
        self.abandon()

    def _frame(self, data: bytes, last: bool) -> None:
        if data:
            self._unsent += b"%x\r\n%b\r\n" % (len(data), data)
        if last:
            self._last = True
            if self._ends_body:
                self._unsent += LAST_CHUNK

    def flush(self) -> None:
        """Hub: to the socket, as much as it takes."""
        self._queued = False
        if not self.is_open or self.lags:
            return
        unsent = self._unsent
        if unsent:
            try:
                sent = self._send_now(unsent)
            except BlockingIOError:
                sent = 0
            except OSError:
                self.abandon()
                return
            if sent < len(unsent):
                self._unsent = unsent[sent:]
                self.lag()
                return
            self._unsent = b""
        if self._last:
            self._finish()

    def lag(self) -> None:
        """Send on whenever the socket has room, and ask the source for slices."""
        self.lags = True
        loop = gevent.get_hub().loop
        self._watcher = loop.io(self._connection.fileno(), WRITE)
        self._watcher.start(self._writable)
        self._limit_time()

    def _limit_time(self) -> None:
        if self._timer is not None:
            self._timer.close()
        self._timer = gevent.get_hub().loop.timer(self._write_timeout_s)
        self._timer.start(self._time_out)

    def _writable(self) -> None:
        """Hub: the socket has room. The stream lags until its source has nothing left."""
        try:
            if not self._unsent and not self._last and not self._take_slice():
                self._catch_up()
                return
            self._unsent = self._unsent[self._send_now(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self.abandon()
            return
        except Exception:  # it could not be rendered: nothing can be said any more but by closing
            log.exception("an answer broke off")
            self._connection.shut()
            self.abandon()
            return
        if self._last and not self._unsent:
            self._finish()

    def _take_slice(self) -> bool:
        """Whether something waited."""
        assert self._source is not None
        data, more, last = self._source.next_slice()
        self._frame(data, last)
        self._limit_time()
        return bool(data) or more or last

    def _catch_up(self) -> None:
        """All that waited has been sent."""
        self.lags = False
        for watcher in (self._watcher, self._timer):
            if watcher is not None:
                watcher.close()
        self._watcher = self._timer = None

    def _time_out(self) -> None:
        self._connection.shut()
        self.abandon()

    def abandon(self) -> None:
        """The client has gone."""
        if self.is_open:
            source = self._source
            self.close()
            if source is not None:
                source.leave()
            if self._abandoned is not None:
                self._abandoned()

    def _finish(self) -> None:
        self.close()
        self._finished()

    def close(self) -> None:
        """Send no more, and let go of the source, which knows this object."""
        self.is_open = False
        self._source = None
        self._catch_up()
