"""Frames for all open pages: encoded once, sent to each; a browser that does not read loses frames.

Frames hold only changes, so a browser that lost one gets a whole picture again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping

import gevent
from gevent.queue import Queue

from app.console.frames import event_of
from app.console.observer import Observer
from app.serving.http.connection import Connection
from app.serving.http.errors import unavailable
from app.serving.http.response import StreamingBody

EVERY_S = 0.25
MOST_CONSOLES = 8
MOST_WAITING = 16
"""Most events that wait for one browser: four seconds."""
PATIENCE_S = 30.0
"""Seconds without reading after which a browser is cut off."""
log = logging.getLogger(__name__)


class Feed:
    """Runs the observer while any client queue is open, and fills the queues."""

    def __init__(
        self, observer: Observer, server: Callable[[], Mapping[str, object]], every_s: float = EVERY_S
    ) -> None:
        """`server` returns the server's part of a picture."""
        self._observer, self._server, self._every_s = observer, server, every_s
        self._boxes: list[ClientQueue] = []
        self._greenlet: gevent.Greenlet | None = None

    def __len__(self) -> int:
        return len(self._boxes)

    def open(self, connection: Connection | None = None) -> ClientQueue:
        """Returns the queue of one more browser. Raises ApiError with status 503 above `MOST_CONSOLES`."""
        if len(self._boxes) >= MOST_CONSOLES:
            raise unavailable(f"There are {MOST_CONSOLES} consoles already; close one of them.")
        box = ClientQueue(self._leave, connection)
        self._boxes.append(box)
        if not self._observer.is_open:
            self._observer.begin()
        if self._greenlet is None:
            self._greenlet = gevent.spawn(self._run)
        return box

    def close(self) -> None:
        for box in list(self._boxes):
            box.leave()

    def _leave(self, box: ClientQueue) -> None:
        if box in self._boxes:
            self._boxes.remove(box)
            if not self._boxes:
                self._observer.end()

    def _run(self) -> None:
        while self._boxes:
            try:
                self._send()
            except Exception:
                log.exception("a frame of the console could not be made")
                self.close()
            gevent.sleep(self._every_s)
        self._greenlet = None

    def _send(self) -> None:
        frame = self._observer.frame()
        if not self._boxes:  # all browsers left during a pause
            return
        data = event_of("frame", frame)
        picture: bytes | None = None
        for box in list(self._boxes):
            if box.lost and picture is None:
                picture = event_of("picture", self._observer.picture(self._server()))
            box.put(picture if box.lost and picture is not None else data)


class ClientQueue(StreamingBody):
    """The events for one browser: an endless body, read by the greenlet of its request."""

    __slots__ = ("_connection", "_leave", "_queue", "_taken_s", "lost")

    def __init__(self, leave: Callable[[ClientQueue], None], connection: Connection | None) -> None:
        super().__init__()
        self._leave, self._connection = leave, connection
        self._queue: Queue[bytes] = Queue(MOST_WAITING)
        self._taken_s = time.monotonic()
        self.lost = True
        """The client needs a picture before another frame."""

    def put(self, data: bytes) -> None:
        """Queues an event; without room the whole queue is dropped. Cuts off a browser that does not read."""
        self.lost = self._queue.full()
        if not self.lost:
            self._queue.put_nowait(data)
            return
        self._queue.queue.clear()
        if time.monotonic() - self._taken_s > PATIENCE_S:
            if self._connection is not None:
                self._connection.shut()
            self.leave()

    def __iter__(self) -> Iterator[bytes]:
        yield b""  # status line and headers leave now
        if self._connection is not None:
            self._connection.watch(self.leave)
        for data in self._queue:
            self._taken_s = time.monotonic()
            self.bytes_sent += len(data)
            yield data

    def leave(self) -> None:
        """Ends the stream, after or before the browser disconnects."""
        if not self.gone:
            self.gone = True
            self._leave(self)
            self._queue.queue.clear()
            self._queue.put_nowait(StopIteration)

    def close(self) -> None:
        self.leave()
        if self._connection is not None:
            self._connection.unwatch()
