"""Damage to the bytes of an answer: streams that end early, broken connections, invalid JSON.

The request's own greenlet writes a damaged stream chunk by chunk. The configured number of chunks
is sent before a break, over TLS and HTTP/1.0, too.
"""

from collections.abc import Iterator, Sequence

from app.core.server.http.client_connection import ClientConnection
from app.core.server.http.context import RequestContext
from app.core.server.http.fault import Fault
from app.core.server.http.response import Response, StreamingBody
from app.core.server.http.rpc import PREFIX_BYTES, RpcResponse, framed
from app.extensions.faults.fault import Damage
from app.extensions.faults.fault_rules import (
    DisconnectRule,
    EmptyRule,
    MalformedChunkRule,
    MissingDoneRule,
    TruncatedJsonRule,
    TruncateRule,
)
from app.shared.break_off import break_off

EVENT_END = b"\n\n"
INVALID_JSON = b"}{"
LAST_EVENTS = (
    b"data: [DONE]",
    b"event: message_stop",
    b"event: response.completed",
    b"event: response.incomplete",
)
"""Events that end a complete stream, in each API family."""
NO_MESSAGE = b"\xff\xff\xff"
"""Bytes that start no field of a gRPC message."""
END_OF_CHOICE = b"\x12"
"""First byte of a gRPC message that ends a choice."""


def damage(response: Response, fault: Fault, context: RequestContext) -> Response:
    """Applies the headers and the damage of a fault to `response`."""
    response.headers.update(fault.headers)
    if fault.damage is not None:
        if isinstance(response.body, StreamingBody):
            stream_type = DamagedStream
            if isinstance(response, RpcResponse):
                stream_type = DamagedMessages
            response.body = stream_type(response.body, fault.damage, context.connection)
        elif response.status == 200 and isinstance(response.body, bytes):
            _damage_whole(response, response.body, fault.damage, context.connection)
    return response


class DamagedStream(StreamingBody):
    """A damaged stream, to be iterated once and always closed."""

    def __init__(
        self, stream: StreamingBody, damage: Damage, connection: ClientConnection | None
    ) -> None:
        super().__init__()
        self._stream = stream
        self._connection = connection
        self._damage = damage
        self.was_damaged = False
        """True after the stream has reached its damaged place."""

    @property
    def is_cut_off(self) -> bool:
        """True if the stream was damaged and its end is missing."""
        return self.was_damaged and not isinstance(self._damage, MalformedChunkRule)

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces():
            self.bytes_sent += len(piece)
            yield piece

    def _pieces(self) -> Iterator[bytes]:
        if ends_after(self._damage, 0):
            yield from self._end()
            return
        number = 0
        for data in self._stream:
            if not data:
                yield data  # sends the status line
            for chunk in self._chunks(data):
                number += 1
                yield self._altered(number, chunk)
                if ends_after(self._damage, number):
                    yield from self._end()
                    return

    def close(self) -> None:
        """Closes the stream. A client whose stream was cut off does not count as gone."""
        self._stream.close()
        self.gone = self._stream.gone and not self.is_cut_off

    def _chunks(self, data: bytes) -> Sequence[bytes]:
        return data.split(EVENT_END)[:-1]

    def _altered(self, number: int, chunk: bytes) -> bytes:
        """Returns the bytes for chunk `number`, counted from 1, with any damage."""
        damage = self._damage
        if isinstance(damage, MalformedChunkRule) and number == damage.chunk:
            self.was_damaged = True
            return chunk.replace(b"data: ", b"data: " + INVALID_JSON, 1) + EVENT_END
        if isinstance(damage, TruncatedJsonRule) and number == damage.chunk:
            self.was_damaged = True
            return chunk[: len(chunk) // 2]
        if isinstance(damage, MissingDoneRule) and chunk.startswith(LAST_EVENTS):
            self.was_damaged = True
            return b""
        return chunk + EVENT_END

    def _end(self) -> Iterator[bytes]:
        """Ends the stream early, or breaks the connection.

        An empty item sends the status line if needed.
        """
        self.was_damaged = True
        if isinstance(self._damage, DisconnectRule):
            break_off(self._connection)
        yield b""


class DamagedMessages(DamagedStream):
    """A damaged stream of gRPC messages."""

    def _chunks(self, data: bytes) -> Sequence[bytes]:
        chunks = []
        while data:
            end = PREFIX_BYTES + int.from_bytes(data[1:PREFIX_BYTES], "big")
            chunks.append(data[PREFIX_BYTES:end])
            data = data[end:]
        return chunks

    def _altered(self, number: int, chunk: bytes) -> bytes:
        """Returns a message with its prefix, perhaps damaged; nothing for an omitted end."""
        damage = self._damage
        if isinstance(damage, MissingDoneRule) and chunk.startswith(END_OF_CHOICE):
            self.was_damaged = True
            return b""
        if isinstance(damage, MalformedChunkRule | TruncatedJsonRule) and number == damage.chunk:
            self.was_damaged = True
            if isinstance(damage, TruncatedJsonRule):
                return framed(chunk[: len(chunk) // 2])
            return framed(NO_MESSAGE + chunk)
        return framed(chunk)


def ends_after(damage: Damage, number: int) -> bool:
    """Returns true if the stream is cut off after `number` chunks."""
    if isinstance(damage, DisconnectRule | TruncateRule):
        return number == damage.after
    if isinstance(damage, TruncatedJsonRule):
        return number == damage.chunk
    return isinstance(damage, EmptyRule)


def _damage_whole(
    response: Response, body: bytes, damage: Damage, connection: ClientConnection | None
) -> None:
    """Damages a body that is not a stream. Only a disconnect contradicts Content-Length."""
    if isinstance(damage, DisconnectRule):
        if damage.streams_only:
            return
        start = body[: len(body) // 2] if damage.after else b""
        response.body = _breaking(start, connection)
    elif isinstance(damage, TruncateRule | TruncatedJsonRule):
        response.replace_body(body[: len(body) // 2])
    elif isinstance(damage, MalformedChunkRule):
        response.replace_body(INVALID_JSON + body)
    elif isinstance(damage, EmptyRule):
        response.replace_body(b"")


def _breaking(start: bytes, connection: ClientConnection | None) -> Iterator[bytes]:
    """Yields the start of an answer, if any, and breaks the connection.

    Without a start the client gets no status line.
    """
    if start:
        yield start
    break_off(connection)
