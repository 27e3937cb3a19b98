"""Moments at which the parts of an answer were handed to the connection.

`stamped` is the entry point: it returns a body that sends the same bytes as another one, and notes
the moment of each write in a `SendLog`.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import cast

from app.core.api.responder import EventStream
from app.core.server.http.response import StreamingBody
from app.core.server.http.stream_transport import StreamSource, StreamTransport

MAX_SENDS = 10_000
"""Most moments of one answer; the last one is replaced by later ones."""
MOMENT_BYTES = 8
"""Memory of a moment, in bytes."""
LOG_BYTES = 160
"""Memory of a log without moments, in bytes."""
GROWTH = 32
"""Number of moments after which their memory is reported."""


class SendLog:
    """The moments of one answer, in seconds of `now`.

    `grow` is called with the bytes of memory that further moments take.
    """

    __slots__ = ("_grow", "_now", "moments")

    def __init__(self, now: Callable[[], float], grow: Callable[[int], None]) -> None:
        self._now = now
        self._grow = grow
        self.moments = array("d")

    def stamp(self) -> None:
        """Notes a write."""
        moments = self.moments
        if len(moments) == MAX_SENDS:
            moments[-1] = self._now()
            return
        moments.append(self._now())
        if len(moments) % GROWTH == 0:
            self._grow(GROWTH * MOMENT_BYTES)


def stamped(body: Iterable[bytes], log: SendLog) -> Iterable[bytes]:
    """Returns a body that notes its writes.

    Bodies of routes without tokens are returned unchanged.
    """
    if isinstance(body, EventStream):
        return StampedStream(body, log)
    if isinstance(body, StreamingBody):
        return StampedBody(body, log)
    return body


def _stamped_pieces(pieces: StreamingBody, log: SendLog) -> Iterator[bytes]:
    for piece in pieces:
        if piece:
            log.stamp()
        yield piece


class StampedTransport:
    """The methods of a transport that a stream uses; writes are noted.

    The stream refers to this object, so a reference back would be a cycle, which only the garbage
    collector frees: after a million objects, 250 MB (measured).
    """

    __slots__ = ("_log", "_transport")

    def __init__(self, transport: StreamTransport, log: SendLog) -> None:
        self._transport = transport
        self._log = log

    @property
    def is_open(self) -> bool:
        """See `StreamTransport`."""
        return self._transport.is_open

    @property
    def lags(self) -> bool:
        """See `StreamTransport`."""
        return self._transport.lags

    def start(self, source: StreamSource) -> None:
        """Sets the stamped stream as the source of slices in place of the original one."""
        self._transport.start(StampedStream(cast(EventStream, source), self._log))

    def lag(self) -> None:
        """See `StreamTransport`."""
        self._transport.lag()

    def put(self, data: bytes) -> None:
        """See `StreamTransport`."""
        self._log.stamp()
        self._transport.put(data)

    def write(self, data: bytes, last: bool = False) -> None:
        """See `StreamTransport`."""
        if data:
            self._log.stamp()
        self._transport.write(data, last)


class StampedBody(StreamingBody):
    """A body that is iterated. The flags of the original one are copied when it is closed."""

    def __init__(self, stream: StreamingBody, log: SendLog) -> None:
        super().__init__()
        self._stream = stream
        self._log = log
        self.endless = stream.endless
        self.was_damaged = False

    @property
    def is_cut_off(self) -> bool:
        """True if a fault has ended the stream early."""
        return self._stream.is_cut_off

    def __iter__(self) -> Iterator[bytes]:
        for piece in _stamped_pieces(self._stream, self._log):
            self.bytes_sent += len(piece)
            yield piece

    def close(self) -> None:
        """Closes the stream."""
        self._stream.close()
        self.gone = self._stream.gone
        self.was_damaged = self._stream.was_damaged


class StampedStream(EventStream):
    """A stream of events, which the hub sends without a greenlet."""

    __slots__ = ("_log", "_stream")

    def __init__(self, stream: EventStream, log: SendLog) -> None:
        # The state is that of `stream`, so the base class has none to set.
        self._stream = stream
        self._log = log

    @property
    def bytes_sent(self) -> int:
        """Bytes of the stream so far."""
        return self._stream.bytes_sent

    @bytes_sent.setter
    def bytes_sent(self, sent_bytes: int) -> None:
        self._stream.bytes_sent = sent_bytes

    @property
    def gone(self) -> bool:
        """True if the client disconnected before the end."""
        return self._stream.gone

    @gone.setter
    def gone(self, has_left: bool) -> None:
        self._stream.gone = has_left

    def __iter__(self) -> Iterator[bytes]:
        return _stamped_pieces(self._stream, self._log)

    def attach(self, transport: StreamTransport) -> None:
        """Lets `transport` write the stream."""
        noting = StampedTransport(transport, self._log)
        self._stream.attach(cast(StreamTransport, noting))

    def next_slice(self) -> tuple[bytes, bool, bool]:
        """Returns the next bytes for a client that lags."""
        data, has_more, is_last = self._stream.next_slice()
        if data:
            self._log.stamp()
        return data, has_more, is_last

    def leave(self) -> None:
        """Aborts the generation, as the client has left."""
        self._stream.leave()

    def close(self) -> None:
        """Closes the stream."""
        self._stream.close()
