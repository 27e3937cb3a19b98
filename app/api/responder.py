"""From engine requests to a response: streamed as outputs come, or whole when the last one has come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gevent.event import Event as Bell

from app.api.pieces import body_of
from app.api.stream import EventStream, TakeOver
from app.api.writer import ResponseWriter
from app.engine.client import EngineClient, Handle
from app.engine.outputs import EngineOutput, Failed, Tokens
from app.engine.request import EngineRequest
from app.faults.damage import damage
from app.faults.injector import fault_of
from app.http.connection import Connection
from app.http.context import RequestContext
from app.http.errors import ApiError
from app.http.response import CLIENT_GONE, EVENT_STREAM, JSON, PendingResponse, Response, json_response
from app.http.stream import StreamTransport, WriteBatcher


class ServerLoad:
    """Requests being answered now, as GET /load tells when tracking is on."""

    def __init__(self, tracked: bool) -> None:
        self.count = 0
        self.tracked = tracked

    def begin(self) -> None:
        self.count += self.tracked

    def end(self) -> None:
        self.count -= self.tracked


@dataclass(frozen=True, slots=True)
class Responder:
    """Has requests generated and brings the outputs to the client.

    `headers` are added to every answer; a client that takes no bytes for `write_timeout_s` is dropped.
    """

    engine: EngineClient
    load: ServerLoad
    headers: Mapping[str, str]
    batcher: WriteBatcher
    write_timeout_s: float
    keep_alive_s: float
    """Chats and completions: see `EventStream`."""

    def respond(
        self,
        requests: Sequence[EngineRequest],
        writer: ResponseWriter,
        stream: bool,
        context: RequestContext,
    ) -> Response:
        """The response, waited for if it is not a stream. Raises what `EngineClient.submit` does."""
        fault = fault_of(context)
        if stream:
            direct = context.http_version == "HTTP/1.1" and (fault is None or fault.damage is None)
            connection = context.connection
            takes_over = direct and connection is not None and connection.plain
            response = self._stream(
                requests,
                writer,
                connection,
                self._take_over if takes_over else None,
                may_join=fault is None or fault.damage is None,
            )
        else:
            response = self._whole(requests, writer, context.connection)
        return damage(response, fault, context)

    def respond_soon(
        self,
        requests: Sequence[EngineRequest],
        writer: ResponseWriter,
        stream: bool,
        context: RequestContext,
    ) -> Response | PendingResponse:
        """As `respond`, but nothing is waited for, and no fault is looked for."""
        if stream:
            return self._stream(requests, writer, context.connection, None)
        gathered = Gathering(writer, len(requests))
        handle = self.engine.submit(requests, gathered.emit)
        if not gathered.unfinished:
            return json_response(gathered.body(), 200, self.headers)
        return self._pending(gathered, handle)

    def broken(self, error: ApiError, writer: ResponseWriter) -> Response:
        """A stream that ends with `error` before its first token."""
        chunks = [writer.chunk(Failed(0, error)), writer.closing()]
        return Response(chunks, 200, self.headers, EVENT_STREAM)

    def transport(
        self, connection: Connection, finished: Callable[[], None], head: bytes = b"", ends_body: bool = True
    ) -> StreamTransport:
        """What writes a stream to `connection` from the hub."""
        return StreamTransport(connection, self.batcher, self.write_timeout_s, finished, ends_body, head)

    def _stream(
        self,
        requests: Sequence[EngineRequest],
        writer: ResponseWriter,
        connection: Connection | None,
        take_over: TakeOver | None,
        may_join: bool = True,
    ) -> Response:
        """`may_join`: what is all there already may leave in one piece."""
        entries = 1 + (requests[0].logprobs or 0) if requests else 1
        keep_alive_s = self.keep_alive_s if writer.keeps_alive else 0.0
        stream = EventStream(writer, len(requests), connection, take_over, entries, keep_alive_s)
        stream.handle = self.engine.submit(requests, stream.emit)
        if may_join and (data := stream.complete()) is not None:
            return Response(data, 200, self.headers, EVENT_STREAM, streamed=True)
        response = Response(stream, 200, self.headers, EVENT_STREAM)
        if self.load.tracked:
            self.load.begin()
            response.on_close(self.load.end)
        return response

    def _take_over(self, connection: Connection, finished: Callable[[], None]) -> StreamTransport:
        """A server that cannot be told that the body has ended ends it itself."""
        return self.transport(connection, finished, ends_body=connection.ended is not None)

    def _whole(
        self, requests: Sequence[EngineRequest], writer: ResponseWriter, connection: Connection | None
    ) -> Response:
        gathered = Gathering(writer, len(requests))
        handle = self.engine.submit(requests, gathered.emit)
        if gathered.unfinished:
            self.load.begin()
            try:
                gathered.wait(handle, connection)
            finally:
                self.load.end()
        if gathered.gone:
            return json_response(b"", CLIENT_GONE)
        return Response(body_of(gathered.pieces()), 200, self.headers, JSON)

    def _pending(self, gathered: Gathering, handle: Handle) -> PendingResponse:
        """The response that comes with the last output."""

        def over() -> None:
            self.load.end()
            try:
                pending.resolve(json_response(gathered.body(), 200, self.headers))
            except Exception as error:
                pending.resolve(error)

        def abort() -> None:
            gathered.on_end = None
            self.load.end()
            handle.abort()

        pending = PendingResponse(abort)
        self.load.begin()
        gathered.on_end = over
        return pending


class Gathering:
    """Has `writer` take the outputs of `choices` sequences until the last one is over; then calls `on_end`.

    It lets go of `on_end` then: who is called may know this object.
    """

    def __init__(self, writer: ResponseWriter, choices: int) -> None:
        self._writer = writer
        self._error: Exception | None = None
        self.unfinished = choices
        self.gone = False
        self.on_end: Callable[[], None] | None = None

    def emit(self, output: EngineOutput) -> None:
        if not self.unfinished:  # one choice failed: the others do not matter any more
            return
        if type(output) is Failed:
            self._error, self.unfinished = output.error, 0
        else:
            self._writer.take(output)
            if type(output) is Tokens and output.finish is not None:
                self.unfinished -= 1
        if not self.unfinished and self.on_end is not None:
            on_end, self.on_end = self.on_end, None
            on_end()

    def body(self) -> bytes:
        """The whole answer. Raises what made a choice fail."""
        if self._error is not None:
            raise self._error
        return self._writer.body()

    def pieces(self) -> Iterator[bytes]:
        """The same in pieces."""
        if self._error is not None:
            raise self._error
        return self._writer.pieces()

    def wait(self, handle: Handle, connection: Connection | None) -> None:
        """Sleep until all is gathered, or the client has gone; then nothing of the request goes on."""
        bell = Bell()
        self.on_end = bell.set

        def leave() -> None:
            self.gone = True
            bell.set()

        if connection is not None:
            connection.watch(leave)
        try:
            bell.wait()
        finally:
            if connection is not None:
                connection.unwatch()
            handle.abort()
