"""From engine requests to a response: streamed as outputs come, or whole when the last one has come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gevent.event import Event as Bell

from app.api.stream import EventStream, TakeOver
from app.api.writer import ResponseWriter
from app.clock.pause import pause
from app.engine.client import EngineClient, Handle
from app.engine.outputs import EngineOutput, Failed, Tokens
from app.engine.request import EngineRequest
from app.faults.damage import damage
from app.faults.injector import fault_of
from app.http.connection import Connection
from app.http.context import RequestContext
from app.http.errors import ApiError
from app.http.response import CLIENT_GONE, PendingResponse, Response, json_response
from app.http.sse import MEDIA_TYPE
from app.http.stream import StreamTransport
from app.http.write_batcher import WriteBatcher


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
        gathered = Gathering(len(requests))
        handle = self.engine.submit(requests, gathered.emit)
        if not gathered.unfinished:
            return json_response(writer.body(gathered.outputs), 200, self.headers)
        return self._pending(gathered, handle, writer)

    def broken(self, error: ApiError, writer: ResponseWriter) -> Response:
        """A stream that ends with `error` before its first token."""
        chunks = [writer.chunk(Failed(0, error)), writer.closing()]
        return Response(chunks, 200, self.headers, MEDIA_TYPE)

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
        stream = EventStream(writer, len(requests), connection, take_over, entries)
        stream.handle = self.engine.submit(requests, stream.emit)
        if may_join and (data := stream.complete()) is not None:
            return Response(data, 200, self.headers, MEDIA_TYPE, streamed=True)
        response = Response(stream, 200, self.headers, MEDIA_TYPE)
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
        gathered = Gathering(len(requests))
        handle = self.engine.submit(requests, gathered.emit)
        if gathered.unfinished:
            self.load.begin()
            try:
                gathered.wait(handle, connection)
            finally:
                self.load.end()
        if gathered.gone:
            return json_response(b"", CLIENT_GONE)
        return json_response(_paused(writer.pieces(gathered.outputs)), 200, self.headers)

    def _pending(self, gathered: Gathering, handle: Handle, writer: ResponseWriter) -> PendingResponse:
        """The response that comes with the last output."""

        def over() -> None:
            self.load.end()
            try:
                pending.resolve(json_response(writer.body(gathered.outputs), 200, self.headers))
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
    """Collects the outputs of `choices` sequences until the last one is over, then calls `on_end`, if set.

    It lets go of `on_end` then: who is called may know this object.
    """

    def __init__(self, choices: int) -> None:
        self.outputs: list[EngineOutput] = []
        self.unfinished = choices
        self.gone = False
        self.on_end: Callable[[], None] | None = None

    def emit(self, output: EngineOutput) -> None:
        if not self.unfinished:  # one choice failed: the others do not matter any more
            return
        self.outputs.append(output)
        if type(output) is Failed:
            self.unfinished = 0
        elif type(output) is Tokens and output.finish is not None:
            self.unfinished -= 1
        if not self.unfinished and self.on_end is not None:
            on_end, self.on_end = self.on_end, None
            on_end()

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


def _paused(pieces: Iterator[bytes]) -> bytes:
    """All of a body, whose pieces take their time; others have their turn in between."""
    parts = [next(pieces)]
    for piece in pieces:
        pause()
        parts.append(piece)
    return b"".join(parts)
