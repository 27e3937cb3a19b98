"""Turns engine requests into a response: a stream of server-sent events, or a whole answer.

Start with `Responder`. A stream *attached* to a `StreamTransport` sends each due chunk from the
timer wheel to the socket, and no greenlet wakes. *Iterated* (HTTP/1.0, damaged streams, another
server), the request's greenlet wakes and yields each chunk. Both ways write the same bytes at the
same times.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from http import HTTPStatus

import gevent
from gevent.event import Event as Bell
from msgspec import Struct

from app.core.api.choice_state import ChoiceState
from app.core.api.fault import FaultInjection
from app.core.api.writer import ResponseWriter
from app.core.base.callers import watched
from app.core.base.clock.clock import Watcher
from app.core.base.clock.pause import pause_if_possible
from app.core.base.metrics.recorder import STREAMED_CALL
from app.core.engine.client import EngineClient
from app.core.engine.outputs import (
    EngineOutput,
    Failed,
    Part,
    Started,
    TakeToken,
    TokenBacklog,
    Tokens,
)
from app.core.engine.request import EngineRequest, Reply
from app.core.engine.sequence import Handle
from app.core.protocol.common import encode
from app.core.server.http.client_connection import ClientConnection
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import ApiError
from app.core.server.http.response import (
    CLIENT_GONE,
    EVENT_STREAM,
    PendingResponse,
    Response,
    StreamingBody,
    json_response,
)
from app.core.server.http.stream_transport import StreamTransport

SLICE_TOKENS = 256
"""Entries (tokens, each with its alternatives) rendered at once for a client that lags behind."""
ENTRY_CHARS = 200
"""Characters of an id, which each event repeats, that count as one entry."""
COMMENT = b": keep-alive\n\n"
"""Comment that clients of event streams skip, and proxies count as traffic."""


class ServerLoad(Struct):
    """Counts requests being answered now, for GET /load, when tracking is on."""

    tracked: bool
    count: int = 0

    def begin(self) -> None:
        """Counts a request whose answer starts."""
        self.count += self.tracked

    def end(self) -> None:
        """Discounts a request whose answer is over."""
        self.count -= self.tracked


class Responder(Struct, frozen=True):
    """Submits requests to the engine and sends the outputs to the client, with `headers`."""

    engine: EngineClient
    load: ServerLoad
    headers: Mapping[str, str]
    keep_alive_s: float
    """Seconds between comments in idle streams of chats and completions; see `EventStream`."""
    faults: FaultInjection = FaultInjection()

    def respond(
        self,
        requests: Sequence[EngineRequest],
        writer: ResponseWriter,
        stream: bool,
        context: RequestContext,
    ) -> Response:
        """Returns a stream, or a whole answer after waiting.

        Raises:
            EngineError: as `EngineClient.submit` does.
        """
        fault = context.fault
        connection = context.connection
        if stream:
            is_intact = fault is None or fault.damage is None
            response = self._stream(requests, writer, connection, may_join=is_intact)
        else:
            body = self.collect(requests, writer, connection)
            status = CLIENT_GONE if body is None else 200
            response = json_response(body or b"", status, self.headers)
        if fault is None:
            return response
        return self.faults.damage(response, context)

    def respond_soon(
        self,
        requests: Sequence[EngineRequest],
        writer: ResponseWriter,
        stream: bool,
        context: RequestContext,
        replies: Sequence[Reply] | None = None,
    ) -> Response | PendingResponse:
        """Responds like `respond`, but without waiting and without faults.

        A whole answer consists of `replies` if the engine has decided them.
        """
        if stream:
            return self._stream(requests, writer, context.connection)
        collector = ResponseCollector(self.engine, requests, writer, replies)
        if not collector.unfinished:
            return json_response(collector.body(), 200, self.headers)

        def finish(future: Future[None]) -> None:
            self.load.end()
            if collector.has_left:
                return
            try:
                pending.resolve(json_response(collector.body(), 200, self.headers))
            except Exception as error:
                pending.resolve(error)

        pending = PendingResponse(collector.leave)
        self.load.begin()
        collector.on_done(finish)
        return pending

    def broken(
        self, error: ApiError, writer: ResponseWriter, arrival_s: float | None = None
    ) -> Response:
        """Returns a stream that consists of an error.

        An error of the engine follows the beginning of a reply to the request of `arrival_s`.
        """
        chunks = [writer.chunk(Failed(0, error)), writer.closing()]
        if arrival_s is not None and error.status == HTTPStatus.INTERNAL_SERVER_ERROR:
            chunks.insert(0, writer.chunk(Started(0, arrival_s)))
        return Response(chunks, 200, self.headers, EVENT_STREAM)

    def _stream(
        self,
        requests: Sequence[EngineRequest],
        writer: ResponseWriter,
        connection: ClientConnection | None,
        may_join: bool = True,
    ) -> Response:
        """Returns a stream of the requests' outputs.

        `may_join`: a stream that is already complete may be sent in one piece.
        """
        entries_per_token = 1
        if requests:
            entries_per_token += requests[0].sampling.logprobs or 0
            entries_per_token += len(requests[0].request_id) // ENTRY_CHARS
        stream = EventStream(
            writer,
            len(requests),
            connection,
            entries_per_token=entries_per_token,
            keep_alive_s=self.keep_alive_s if writer.keeps_alive else 0.0,
        )
        stream.handle = self.engine.submit(requests, stream.emit)
        data = None
        if may_join and not stream.unfinished:
            data = stream.complete()
        if data is not None:
            return Response(
                data, status=200, headers=self.headers, content_type=EVENT_STREAM, streamed=True
            )
        response = Response(stream, 200, self.headers, EVENT_STREAM)
        if self.load.tracked:
            self.load.begin()
            response.on_close(self.load.end)
        return response

    def collect(
        self,
        requests: Sequence[EngineRequest],
        writer: ResponseWriter,
        connection: ClientConnection | None,
    ) -> bytes | None:
        """Sleeps until all choices are over, and returns the answer.

        Returns None when the client has left meanwhile.

        Raises:
            ClientLeftError: The client leaves while a long answer is written.
        """
        collector = ResponseCollector(self.engine, requests, writer)
        if collector.unfinished:
            self.load.begin()
            try:
                collector.wait(connection)
            finally:
                self.load.end()
        return None if collector.has_left else collector.body()


class ResponseCollector:
    """Collects the outputs of one request's choices in `writer`.

    The handle's future marks their end.
    """

    def __init__(
        self,
        engine: EngineClient,
        requests: Sequence[EngineRequest],
        writer: ResponseWriter,
        replies: Sequence[Reply] | None = None,
    ) -> None:
        self._writer = writer
        self._error: Exception | None = None
        self._handle: Handle | None = None
        self.unfinished = len(requests)
        """Number of unfinished choices; 0 once one has failed."""
        self.has_left = False
        """The client has left."""
        if replies is None:
            handle = engine.submit(requests, self.emit, awaited=True)
        else:
            handle = engine.run(requests, replies, self.emit, awaited=True)
        if self.unfinished:
            self._handle = handle
        elif self._error is not None:
            handle.abort()

    def emit(self, output: EngineOutput) -> None:
        """Collects an output. The first failure aborts the other choices."""
        if not self.unfinished:
            return
        if type(output) is Failed:
            self._error = output.error
            self.unfinished = 0
            self._abort()
            return
        self._writer.collect(output)
        if type(output) is Tokens and output.finish is not None:
            self.unfinished -= 1

    def _abort(self) -> None:
        if self._handle is not None:
            self._handle.abort()

    def body(self) -> bytes:
        """Returns the whole answer.

        Raises:
            Exception: the error of a choice that has failed.
        """
        if self._error is not None:
            raise self._error
        return self._writer.body()

    def leave(self) -> None:
        """Aborts all choices, as the client has left."""
        self.has_left = True
        self._abort()

    def on_done(self, callback: Callable[[Future[None]], None]) -> None:
        """Calls `callback` when all choices are over, and drops the handle, which refers to it."""

        def finish(future: Future[None]) -> None:
            self._handle = None
            callback(future)

        assert self._handle is not None
        self._handle.future.add_done_callback(finish)

    def wait(self, connection: ClientConnection | None) -> None:
        """Sleeps until all choices are over, or the client has left."""
        bell = Bell()
        self.on_done(lambda _: bell.set())
        try:
            with watched(connection, self.leave):
                bell.wait()
        finally:
            self._abort()  # only where the waiting greenlet was killed


class EventStream(StreamingBody):
    """Writes the outputs of `choices` sequences with `writer`.

    Iterate or attach once; always `close`.
    """

    __slots__ = (
        "_backlog",
        "_bell",
        "_connection",
        "_idle_timer",
        "_keep_alive_s",
        "_pending",
        "_slice_tokens",
        "handle",
        "transport",
        "unfinished",
        "writer",
    )

    def __init__(
        self,
        writer: ResponseWriter,
        choices: int,
        connection: ClientConnection | None = None,
        entries_per_token: int = 1,
        keep_alive_s: float = 0.0,
    ) -> None:
        """Writes a comment after each `keep_alive_s` without a chunk; never for 0."""
        # Sets the attributes of the base class, too, to save a call for each stream.
        self.bytes_sent = 0
        self.gone = False
        self.writer = writer
        self.unfinished = choices
        """Number of unfinished choices; 0 once one has failed."""
        self._connection = connection
        self._keep_alive_s = keep_alive_s
        self._slice_tokens = max(1, SLICE_TOKENS // entries_per_token)
        self.transport: StreamTransport | None = None
        self._idle_timer: Watcher | None = None
        self._pending: list[EngineOutput] = []
        self._backlog: TokenBacklog | None = None
        """Merges the tokens that wait for a client; None until the client lags."""
        self._bell: Bell | None = None
        self.handle: Handle | None = None

    def emit(self, output: EngineOutput) -> TakeToken | None:
        """Writes an output of the engine to the socket now, or queues it.

        Returns a function for plain tokens where their events differ only in their text; it writes
        later tokens of the choice without the objects that this method needs.
        """
        if not self.unfinished:  # nothing follows a failed choice
            return None
        previously_unfinished = self.unfinished
        if type(output) is Tokens and output.finish is not None:
            self.unfinished -= 1
        elif type(output) is Failed:
            self.unfinished = 0
        transport = self.transport
        if transport is None:
            self._pending.append(output)
            if self._bell is not None:
                self._bell.set()
        elif transport.lags:
            self._hold(output)
        else:
            try:
                if type(output) is Tokens and len(output.texts) > self._slice_tokens:
                    self._pending.append(output)
                    self._send_slice(transport)
                else:  # as `_send_slice`, in half of the time
                    is_last = not self.unfinished
                    transport.write(self._joined([self.writer.chunk(output)], is_last), is_last)
            except Exception:  # rendering failed: the end is still to come, as a failure
                self._pending.clear()
                self.unfinished = previously_unfinished
                raise
        may_be_taken = (type(output) is Started and output.is_followed) or (
            type(output) is Tokens and output.part is not None and transport is not None
        )
        if self._keep_alive_s or not may_be_taken:
            return None
        return self._taker_after(output)

    def _hold(self, output: EngineOutput) -> None:
        """Holds an output back for a client that lags."""
        if type(output) is not Tokens:
            self._pending.append(output)
            return
        if self._backlog is None:
            self._backlog = TokenBacklog()
        self._backlog.hold(output, self._pending)

    def _taker_after(self, output: EngineOutput) -> TakeToken | None:
        writer = self.writer
        index = output.index
        part: Part | None = None
        text_frame: tuple[bytes, bytes] | None = None
        if type(output) is Started:
            text_frame = writer.around_text(index)
        elif type(output) is Tokens:
            part = output.part
            if part is not None and part.kind == "call":
                text_frame = writer.around_arguments(index, part)
        if text_frame is None or writer.joiner is not None:
            return None
        before, after = text_frame
        return PlainTokenWriter(
            stream=self,
            choice=writer.choices[index],
            index=index,
            part=part,
            length=len(before) + len(after),
            before=b"\r\n" + before,
            after=after + b"\r\n",
        ).write

    def _send_slice(self, transport: StreamTransport) -> None:
        data, has_more, is_last = self.next_slice()
        transport.write(data, is_last)
        if has_more:
            transport.lag()

    def _restart_idle_timer(self, is_last: bool) -> None:
        """Restarts the idle time after a chunk; stops it after the last one."""
        timer = self._idle_timer
        if timer is None:
            return
        if is_last:
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
        """Returns all events of a generation that is over; None if they do not fit one slice."""
        room = self._slice_tokens
        for output in self._pending:
            room -= len(output.texts) if type(output) is Tokens else 1
        if room < 0:
            return None
        return b"".join([*map(self.writer.chunk, self._pending), self.writer.closing()])

    def attach(self, transport: StreamTransport) -> None:
        """Lets `transport` write the stream: present outputs now, later ones as they come."""
        self.transport = transport
        transport.start(self)
        if self._pending or not self.unfinished:
            self._send_slice(transport)
        if self._keep_alive_s and self.unfinished:
            loop = gevent.get_hub().loop
            self._idle_timer = loop.timer(self._keep_alive_s, self._keep_alive_s)
            self._idle_timer.start(self._comment)

    def next_slice(self) -> tuple[bytes, bool, bool]:
        """Returns rendered outputs, and two flags: more outputs wait, and the stream ends here."""
        room = self._slice_tokens
        chunks: list[bytes] = []
        rendered = 0
        if self._backlog is not None:
            self._backlog.forget()
        for output in self._pending:
            if room <= 0:
                break
            size = len(output.texts) if type(output) is Tokens else 1
            if type(output) is Tokens and size > room:
                output, self._pending[rendered] = output.split(room)
            else:
                rendered += 1
            chunks.append(self.writer.chunk(output))
            room -= size
        del self._pending[:rendered]
        has_more = bool(self._pending)
        is_last = not has_more and not self.unfinished
        return self._joined(chunks, is_last), has_more, is_last

    def _joined(self, chunks: list[bytes], is_last: bool) -> bytes:
        """Returns the next bytes, with the end of the stream if `is_last`, and counts them."""
        if is_last:
            chunks.append(self.writer.closing())
        data = b"".join(chunks)
        self.bytes_sent += len(data)
        if self._idle_timer is not None and (data or is_last):
            self._restart_idle_timer(is_last)
        return data

    def __iter__(self) -> Iterator[bytes]:
        connection = self._connection
        if self.unfinished:
            yield b""  # sends the status line and headers now
            if connection is not None:
                connection.watch(self.leave)
        bell = Bell()
        self._bell = bell
        while not self.gone:
            bell.clear()
            if self._pending or not self.unfinished:
                data, has_more, is_last = self.next_slice()
                yield data
                if is_last:
                    return
                if has_more:
                    pause_if_possible()
            elif not bell.wait(self._keep_alive_s or None):
                self.bytes_sent += len(COMMENT)
                yield COMMENT

    def leave(self) -> None:
        """Aborts the generation, as the client has left."""
        self.gone = True
        self._restart_idle_timer(is_last=True)
        if self.handle is not None:
            self.handle.abort()
        if self._bell is not None:
            self._bell.set()

    def close(self) -> None:
        """Ends the stream when the server is done. Unfinished output means that a write failed."""
        if self.unfinished or self._pending:
            self.gone = True
        self._restart_idle_timer(is_last=True)
        if self._connection is not None and self.transport is None:
            self._connection.unwatch()
        if self.handle is not None:
            self.handle.abort()


class PlainTokenWriter(Struct):
    """Writes tokens of one choice of a stream whose events differ only in their text.

    An object, as a closure keeps each of its variables in an object elsewhere in memory: thousands
    of streams take turns, and none finds its own data in the processor's caches.
    """

    stream: EventStream
    choice: ChoiceState
    index: int
    part: Part | None
    length: int
    """Bytes of an event without its text."""
    before: bytes
    after: bytes
    """Bytes around the text, and the line ends of a chunk (RFC 9112 section 7.1)."""

    def write(self, text: str, token_id: int, at_s: float) -> None:
        """Writes a token to the socket now, or lets the stream hold it back."""
        stream = self.stream
        transport = stream.transport
        if transport is None or transport.lags or not stream.unfinished:
            stream.emit(Tokens(self.index, [text], [token_id], at_s, part=self.part))
            return
        self.choice.tokens += 1
        if self.part is not None:
            if stream.writer.parser_runs is not None:
                stream.writer.parser_runs[STREAMED_CALL] += 1
            if not text:  # markup
                return
        encoded_text = encode(text)
        length = self.length + len(encoded_text)
        stream.bytes_sent += length
        transport.put(b"%x%b%b%b" % (length, self.before, encoded_text, self.after))
