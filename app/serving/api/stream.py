"""A streamed answer: takes outputs of the engine and writes server-sent events, each when due.

*Attached* to a `StreamTransport`, each due chunk goes from the timer wheel to the socket, and no greenlet
wakes. *Iterated*, where the socket cannot be taken over (TLS, HTTP/1.0, another server), the request's
greenlet wakes and yields each chunk. Both ways write the same bytes at the same times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import gevent
from gevent.event import Event as Bell

from app.base.clock.clock import Watcher
from app.base.clock.pause import pause_if_possible
from app.engine.core.outputs import EngineOutput, Failed, Handle, Started, TakeToken, Tokens
from app.serving.api.writer import ResponseWriter
from app.serving.http.connection import Connection
from app.serving.http.response import StreamingBody
from app.serving.http.stream import StreamTransport
from app.serving.protocol.common import encode


class IdleTimer(Watcher, Protocol):
    """A repeating timer of gevent's loop."""

    def again(self, callback: Callable[..., None]) -> None:
        """Restarts the timer."""


SLICE_TOKENS = 256
"""Entries (tokens, each with its alternatives) rendered at once for a client that lags behind."""


COMMENT = b": keep-alive\n\n"
"""Comment that clients of event streams skip, and proxies count as traffic."""

TakeOver = Callable[[Connection, Callable[[], None]], StreamTransport]
"""Makes the writer of a stream to a connection, and calls back at the end."""


class EventStream(StreamingBody):
    """Writes the outputs of `choices` sequences with `writer`.

    `take_over` makes the transport of an iterated stream, and calls its argument at the end; None where the
    server has to write each chunk itself. Iterate or attach once; `close` always.
    """

    __slots__ = (
        *("_bell", "_connection", "_idle_timer", "_keep_alive_s", "_pending", "_slice_tokens", "_take_over"),
        *("handle", "transport", "unfinished", "writer"),
    )

    def __init__(
        self,
        writer: ResponseWriter,
        choices: int,
        connection: Connection | None = None,
        take_over: TakeOver | None = None,
        entries_per_token: int = 1,
        keep_alive_s: float = 0.0,
    ) -> None:
        """Writes a comment after each `keep_alive_s` without a chunk; 0 is never."""
        self.bytes_sent = 0
        self.gone = False
        self.writer = writer
        self.unfinished = choices
        self._connection = connection
        self._take_over = take_over
        self._slice_tokens = max(1, SLICE_TOKENS // entries_per_token)
        self.transport: StreamTransport | None = None
        self._keep_alive_s = keep_alive_s
        self._idle_timer: IdleTimer | None = None
        self._pending: list[EngineOutput] = []
        self._bell: Bell | None = None
        self.handle: Handle | None = None

    def emit(self, output: EngineOutput) -> TakeToken | None:
        """Takes an output of the engine: writes it to the socket now, or queues it."""
        if not self.unfinished:  # nothing follows a failed choice
            return None
        before = self.unfinished
        if type(output) is Tokens:
            if output.finish is not None:
                self.unfinished -= 1
        elif type(output) is Failed:
            self.unfinished = 0
        transport = self.transport
        if transport is None or transport.lags:
            self._pending.append(output)
            if transport is None and self._bell is not None:
                self._bell.set()
        elif type(output) is Tokens and len(output.texts) > self._slice_tokens:
            self._pending.append(output)
            transport.lag()
        else:
            self._write(transport, output, before)
        if type(output) is not Started or self._keep_alive_s:
            return None
        return self._plain_taker(output.index)

    def _plain_taker(self, index: int) -> TakeToken | None:
        """Returns the receiver of a choice's plain tokens, whose events differ only in their texts."""
        around = self.writer.around_text(index)
        if around is None:
            return None
        before, behind = around
        constant_bytes, choice = len(before) + len(behind), self.writer.choices[index]

        def take(text: str, token_id: int, at_s: float) -> None:
            transport = self.transport
            if transport is None or transport.lags or not self.unfinished:
                self.emit(Tokens(index, [text], [token_id], at_s))
                return
            shown = encode(text)
            length = constant_bytes + len(shown)
            choice.tokens += 1
            self.bytes_sent += length
            transport.send_soon(b"%x\r\n%b%b%b\r\n" % (length, before, shown, behind))

        return take

    def _write(self, transport: StreamTransport, output: EngineOutput, before: int) -> None:
        """Writes to the socket; `before` is the number of unfinished choices before `output`."""
        try:
            data = self.writer.chunk(output)
            if not self.unfinished:
                data += self.writer.closing()
        except Exception:  # rendering failed: the end is still to come, as a failure
            self.unfinished = before
            raise
        if data or not self.unfinished:
            self.bytes_sent += len(data)
            transport.write(data, not self.unfinished)
            self._note_chunk(not self.unfinished)

    def _note_chunk(self, last: bool) -> None:
        timer = self._idle_timer
        if timer is None:
            return
        if last:
            self._idle_timer = None
            timer.close()
        else:
            timer.again(self._comment)

    def _comment(self) -> None:
        """Runs in the hub after an idle time. A client that lags has unread chunks anyway."""
        transport = self.transport
        if transport is not None and transport.is_open and not transport.lags:
            self.bytes_sent += len(COMMENT)
            transport.write(COMMENT)

    def complete(self) -> bytes | None:
        """Returns all events and the end, if the generation is over and fits one slice; else None."""
        if self.unfinished:
            return None
        size = sum([len(output.texts) if type(output) is Tokens else 1 for output in self._pending])
        if size > self._slice_tokens:
            return None
        return b"".join([*map(self.writer.chunk, self._pending), self.writer.closing()])

    def attach(self, transport: StreamTransport) -> None:
        """Lets `transport` write the stream: outputs so far now, later ones as they come."""
        self.transport = transport
        transport.start(self)
        if self._pending or not self.unfinished:
            data, more, last = self.next_slice()
            transport.write(data, last)
            if more:
                transport.lag()
        if self._keep_alive_s and self.unfinished:
            timer = self._idle_timer = gevent.get_hub().loop.timer(self._keep_alive_s, self._keep_alive_s)
            timer.start(self._comment)

    def next_slice(self) -> tuple[bytes, bool, bool]:
        """Returns waiting outputs, rendered, and two flags: more outputs wait, and the stream ends here."""
        room, chunks, taken = self._slice_tokens, list[bytes](), 0
        for output in self._pending:
            if room <= 0:
                break
            size = len(output.texts) if type(output) is Tokens else 1
            if type(output) is Tokens and size > room:
                output, self._pending[taken] = output.split(room)
            else:
                taken += 1
            chunks.append(self.writer.chunk(output))
            room -= size
        del self._pending[:taken]
        more = bool(self._pending)
        last = not more and not self.unfinished
        if last:
            chunks.append(self.writer.closing())
        data = b"".join(chunks)
        self.bytes_sent += len(data)
        self._note_chunk(last)
        return data, more, last

    def __iter__(self) -> Iterator[bytes]:
        connection = self._connection
        if self.unfinished:
            yield b""  # status line and headers leave now
            if connection is not None:
                connection.watch(self.leave)
        if connection is not None and self._take_over is not None and self.unfinished:
            self._bell = bell = Bell()
            transport = self._take_over(connection, bell.set)
            self.attach(transport)
            try:
                while transport.is_open and not self.gone:  # until all has been written
                    bell.wait()
                    bell.clear()
            finally:
                transport.close()
            if not self.gone and connection.ended is not None:
                connection.ended()
            return
        self._bell = bell = Bell()
        while not self.gone:
            bell.clear()
            if self._pending or not self.unfinished:
                data, more, last = self.next_slice()
                yield data
                if last:
                    return
                if more:
                    pause_if_possible()
            elif not bell.wait(self._keep_alive_s or None):
                self.bytes_sent += len(COMMENT)
                yield COMMENT

    def leave(self) -> None:
        """Ends the sequences of a client that has left, and wakes the greenlet."""
        self.gone = True
        self._note_chunk(last=True)
        if self.handle is not None:
            self.handle.abort()
        if self._bell is not None:
            self._bell.set()

    def close(self) -> None:
        """Ends the stream when the server is done. Unfinished output means that a write failed."""
        if self.unfinished or self._pending:
            self.gone = True
        self._note_chunk(last=True)
        if self._connection is not None:
            self._connection.unwatch()
        if self.handle is not None:
            self.handle.abort()
