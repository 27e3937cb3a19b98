"""An answer whose bytes go wrong on purpose.

A stream that is to be damaged is written by its own greenlet, chunk by chunk, so that exactly as many
chunks are out as were asked for when it breaks, over TLS and HTTP/1.0, too.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NoReturn

from app.api.stream import EventStream
from app.faults.fault import Damage, Fault
from app.http.response import Reply
from config.fault_rules import (
    DisconnectRule,
    EmptyRule,
    MalformedChunkRule,
    MissingDoneRule,
    TruncatedJsonRule,
    TruncateRule,
)

FAULT = "understudy.fault"
"""Key of the WSGI environ: the `Fault` of the request, if it has one."""
BLANK = b"\n\n"
NO_JSON = b"}{"
LAST_EVENTS = (
    b"data: [DONE]",
    b"event: message_stop",
    b"event: response.completed",
    b"event: response.incomplete",
)
"""What says that a stream is complete, in each API family."""


def delays_of(environ: Mapping[str, Any]) -> tuple[tuple[int, float], ...]:
    """The delays of a request's fault, as a `Generation` wants them."""
    fault: Fault | None = environ.get(FAULT)
    return () if fault is None else fault.delays


def is_damaged(environ: Mapping[str, Any]) -> bool:
    """True when the bytes of the answer are to go wrong, so that it cannot leave the direct way."""
    fault: Fault | None = environ.get(FAULT)
    return fault is not None and fault.damage is not None


def spoilt(reply: Reply, environ: Mapping[str, Any]) -> Reply:
    """`reply` with what the request's fault does to it."""
    fault: Fault | None = environ.get(FAULT)
    if fault is None:
        return reply
    reply.headers.update(fault.headers)
    if fault.damage is not None:
        if isinstance(reply.response, EventStream):
            reply.response = FaultyStream(reply.response, fault.damage, environ)
        elif reply.status_code == 200:
            _spoil_whole(reply, fault.damage, environ)
    return reply


class FaultyStream:
    """A stream with `damage`. Iterate once; `close` always. `has_struck` tells whether it came to that."""

    def __init__(self, stream: EventStream, damage: Damage, environ: Mapping[str, Any]) -> None:
        self._stream = stream
        self._environ = environ
        self._damage = damage
        self.has_struck = False

    @property
    def gone(self) -> bool:
        """The client left before the end."""
        return self._stream.gone

    @property
    def is_cut_off(self) -> bool:
        """The end is missing, and it has come to that."""
        return self.has_struck and not isinstance(self._damage, MalformedChunkRule)

    def __iter__(self) -> Iterator[bytes]:
        if self._ends_after(0):
            yield from self._end()
            return
        number = 0
        for data in self._stream:
            if not data:
                yield data  # sends the status line
            for chunk in data.split(BLANK)[:-1]:
                number += 1
                yield self._altered(number, chunk)
                if self._ends_after(number):
                    yield from self._end()
                    return

    def close(self) -> None:
        self._stream.close()

    def _altered(self, number: int, chunk: bytes) -> bytes:
        """What leaves instead of the chunk of this number, counted from 1."""
        damage, told = self._damage, chunk + BLANK
        if isinstance(damage, MalformedChunkRule) and number == damage.chunk:
            told = chunk.replace(b"data: ", b"data: " + NO_JSON, 1) + BLANK
        elif isinstance(damage, TruncatedJsonRule) and number == damage.chunk:
            told = chunk[: len(chunk) // 2]
        elif isinstance(damage, MissingDoneRule) and chunk.startswith(LAST_EVENTS):
            told = b""
        else:
            return told
        self.has_struck = True
        return told

    def _ends_after(self, number: int) -> bool:
        damage = self._damage
        if isinstance(damage, DisconnectRule | TruncateRule):
            return number == damage.after
        if isinstance(damage, TruncatedJsonRule):
            return number == damage.chunk
        return isinstance(damage, EmptyRule)

    def _end(self) -> Iterator[bytes]:
        """End as if that were all, or break the connection. An empty item sends a status line, if need be."""
        self.has_struck = True
        if isinstance(self._damage, DisconnectRule):
            _break(self._environ)
        yield b""


def _spoil_whole(reply: Reply, damage: Damage, environ: Mapping[str, Any]) -> None:
    """Only a break shows in the length that was told; everything else looks like a whole answer."""
    body: bytes = reply.get_data()
    if isinstance(damage, DisconnectRule):
        reply.response = _breaking(body[: len(body) // 2] if damage.after else b"", environ)
    elif isinstance(damage, TruncateRule | TruncatedJsonRule):
        reply.set_data(body[: len(body) // 2])
    elif isinstance(damage, MalformedChunkRule):
        reply.set_data(NO_JSON + body)
    elif isinstance(damage, EmptyRule):
        reply.set_data(b"")


def _breaking(first: bytes, environ: Mapping[str, Any]) -> Iterator[bytes]:
    """A part of an answer, and then no more; without a part, not even a status line."""
    if first:
        yield first
    _break(environ)


def _break(environ: Mapping[str, Any]) -> NoReturn:
    """End the connection of a request at once, without a farewell of TLS.

    Raises what a server takes for a client that has gone.
    """
    sock = environ.get("gunicorn.socket")
    if sock is not None:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
    raise ConnectionResetError(errno.ECONNRESET, "broken off on purpose")
