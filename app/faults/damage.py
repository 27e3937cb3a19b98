"""A response whose bytes go wrong on purpose.

A stream that is to be damaged is written by its own greenlet, chunk by chunk, so that exactly as many
chunks are out as were asked for when it breaks, over TLS and HTTP/1.0, too.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import NoReturn

from app.faults.fault import Damage, Fault
from app.http.connection import BrokenOffError, Connection
from app.http.context import RequestContext
from app.http.response import Response, StreamingBody
from config.fault_rules import (
    DisconnectRule,
    EmptyRule,
    MalformedChunkRule,
    MissingDoneRule,
    TruncatedJsonRule,
    TruncateRule,
)

BLANK = b"\n\n"
NO_JSON = b"}{"
LAST_EVENTS = (
    b"data: [DONE]",
    b"event: message_stop",
    b"event: response.completed",
    b"event: response.incomplete",
)
"""What says that a stream is complete, in each API family."""


def damage(response: Response, fault: Fault | None, context: RequestContext) -> Response:
    """`response` with what the request's fault does to it."""
    if fault is None:
        return response
    response.headers.update(fault.headers)
    if fault.damage is not None:
        if isinstance(response.body, StreamingBody):
            response.body = DamagedStream(response.body, fault.damage, context.connection)
        elif response.status == 200 and isinstance(response.body, bytes):
            _damage_whole(response, response.body, fault.damage, context.connection)
    return response


class DamagedStream(StreamingBody):
    """A stream with `damage`. Iterate once; `close` always. `was_damaged` tells whether it came to that."""

    def __init__(self, stream: StreamingBody, damage: Damage, connection: Connection | None) -> None:
        super().__init__()
        self._stream = stream
        self._connection = connection
        self._damage = damage
        self.was_damaged = False

    @property
    def is_cut_off(self) -> bool:
        """Whether the stream was damaged so that its end is missing."""
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
            for chunk in data.split(BLANK)[:-1]:
                number += 1
                yield self._altered(number, chunk)
                if ends_after(self._damage, number):
                    yield from self._end()
                    return

    def close(self) -> None:
        """Closes the stream; a client that was cut off has not left."""
        self._stream.close()
        self.gone = self._stream.gone and not self.is_cut_off

    def _altered(self, number: int, chunk: bytes) -> bytes:
        """Returns the bytes that replace chunk `number`, counted from 1."""
        damage, whole = self._damage, chunk + BLANK
        if isinstance(damage, MalformedChunkRule) and number == damage.chunk:
            whole = chunk.replace(b"data: ", b"data: " + NO_JSON, 1) + BLANK
        elif isinstance(damage, TruncatedJsonRule) and number == damage.chunk:
            whole = chunk[: len(chunk) // 2]
        elif isinstance(damage, MissingDoneRule) and chunk.startswith(LAST_EVENTS):
            whole = b""
        else:
            return whole
        self.was_damaged = True
        return whole

    def _end(self) -> Iterator[bytes]:
        """End as if that were all, or break the connection. An empty item sends a status line, if need be."""
        self.was_damaged = True
        if isinstance(self._damage, DisconnectRule):
            break_off(self._connection)
        yield b""


def ends_after(damage: Damage, number: int) -> bool:
    """Returns True if a stream is cut off behind this piece, counted from 1; 0: before the first."""
    if isinstance(damage, DisconnectRule | TruncateRule):
        return number == damage.after
    if isinstance(damage, TruncatedJsonRule):
        return number == damage.chunk
    return isinstance(damage, EmptyRule)


def _damage_whole(response: Response, body: bytes, damage: Damage, connection: Connection | None) -> None:
    """Only a break shows in the length that was told; everything else looks like a whole answer."""
    if isinstance(damage, DisconnectRule):
        response.body = _breaking(body[: len(body) // 2] if damage.after else b"", connection)
    elif isinstance(damage, TruncateRule | TruncatedJsonRule):
        response.replace_body(body[: len(body) // 2])
    elif isinstance(damage, MalformedChunkRule):
        response.replace_body(NO_JSON + body)
    elif isinstance(damage, EmptyRule):
        response.replace_body(b"")


def _breaking(first: bytes, connection: Connection | None) -> Iterator[bytes]:
    """A part of an answer, and then no more; without a part, not even a status line."""
    if first:
        yield first
    break_off(connection)


def break_off(connection: Connection | None) -> NoReturn:
    """End the connection of a request at once, without a farewell of TLS.

    Raises BrokenOffError, which gunicorn takes for a client that has gone.
    """
    if connection is not None:
        connection.shut()
    raise BrokenOffError(errno.ECONNRESET, "broken off on purpose")
