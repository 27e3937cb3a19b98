"""The feed of the console: frames for all open pages, encoded once."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping

import gevent
from gevent.queue import Queue

from app.core.server.http.client_connection import ClientConnection
from app.core.server.http.errors import unavailable
from app.core.server.http.response import StreamingBody
from app.extensions.console.frames import encode_event
from app.extensions.console.observer import Observer

log = logging.getLogger(__name__)
FRAME_INTERVAL_S = 0.25
READ_TIMEOUT_S = 30.0
"""Time without reading after which a browser is cut off."""
MAX_SKIPPED_FRAMES = 3
"""Most frames in a row that are not sent while nothing changes."""
MAX_CONSOLES = 8
"""Most browsers."""
MAX_WAITING_EVENTS = 16
"""Most events that wait for one browser: four seconds."""


class ClientQueue(StreamingBody):
    """The events for one browser: an endless body, read by the greenlet of its request.

    Frames hold only changes, so a browser that lost one gets a whole picture.
    """

    __slots__ = ("_connection", "_on_leave", "_queue", "_read_s", "needs_picture")

    def __init__(
        self, on_leave: "Callable[[ClientQueue], None]", connection: ClientConnection | None
    ) -> None:
        super().__init__()
        self._on_leave = on_leave
        self._connection = connection
        self._queue: Queue[bytes] = Queue(MAX_WAITING_EVENTS)
        self._read_s = time.monotonic()
        self.needs_picture = True
        """The client needs a picture before the next frame."""

    def put(self, data: bytes) -> None:
        """Queues an event, or drops the whole queue if it is full.

        Cuts off a browser that does not read.
        """
        self.needs_picture = self._queue.full()
        if not self.needs_picture:
            self._queue.put_nowait(data)
            return
        self._queue.queue.clear()
        if time.monotonic() - self._read_s > READ_TIMEOUT_S:
            if self._connection is not None:
                self._connection.shut()
            self.leave()

    def __iter__(self) -> Iterator[bytes]:
        yield b""  # sends status line and headers
        if self._connection is not None:
            self._connection.watch(self.leave)
        for data in self._queue:
            self._read_s = time.monotonic()
            self.bytes_sent += len(data)
            yield data

    def leave(self) -> None:
        """Ends the stream, once."""
        if not self.gone:
            self.gone = True
            self._on_leave(self)
            self._queue.queue.clear()
            self._queue.put_nowait(StopIteration)

    def close(self) -> None:
        """Ends the stream when the server closes it."""
        self.leave()
        if self._connection is not None:
            self._connection.unwatch()


class Feed:
    """Frames for all open pages; runs the observer while any page is open."""

    def __init__(
        self,
        observer: Observer,
        server: Callable[[], Mapping[str, object]],
        interval_s: float = FRAME_INTERVAL_S,
    ) -> None:
        """`server` returns the server's part of a picture."""
        self._observer = observer
        self._server = server
        self._interval_s = interval_s
        self._clients: list[ClientQueue] = []
        self._sent = b""
        """The last frame, without its time."""
        self._skipped = 0
        self._greenlet: gevent.Greenlet | None = None

    def __len__(self) -> int:
        return len(self._clients)

    def open(self, connection: ClientConnection | None = None) -> ClientQueue:
        """Returns the queue of one more browser.

        Raises:
            ApiError: Status 503 if there are `MAX_CONSOLES` already.
        """
        if len(self._clients) >= MAX_CONSOLES:
            raise unavailable(f"There are already {MAX_CONSOLES} consoles; close one of them.")
        client = ClientQueue(self._remove, connection)
        self._clients.append(client)
        if not self._observer.is_open:
            self._observer.start()
        if self._greenlet is None:
            self._greenlet = gevent.spawn(self._run)
        return client

    def close(self) -> None:
        """Ends the streams of all browsers."""
        for client in list(self._clients):
            client.leave()

    def _remove(self, client: ClientQueue) -> None:
        if client in self._clients:
            self._clients.remove(client)
            if not self._clients:
                self._observer.stop()

    def _run(self) -> None:
        while self._clients:
            try:
                self._send()
            except Exception:
                log.exception("a console frame could not be encoded")
                self.close()
            gevent.sleep(self._interval_s)
        self._greenlet = None

    def _send(self) -> None:
        frame = encode_event("frame", self._observer.frame())
        changes = frame.partition(b",")[2]
        needs_picture = any(client.needs_picture for client in self._clients)
        if changes == self._sent and self._skipped < MAX_SKIPPED_FRAMES and not needs_picture:
            self._skipped += 1
            return
        self._sent = changes
        self._skipped = 0
        picture = b""
        for client in list(self._clients):  # empty if all browsers left during a pause
            if not client.needs_picture:
                client.put(frame)
                continue
            if not picture:
                picture = encode_event("picture", self._observer.picture(self._server()))
            client.put(picture)
