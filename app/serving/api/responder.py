"""Turns engine requests into a response: a stream of outputs, or a whole answer at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from gevent.event import Event as Bell

from app.engine.core.client import EngineClient
from app.engine.core.outputs import EngineOutput, Failed, Handle, Tokens
from app.engine.core.request import EngineRequest
from app.serving.api.stream import EventStream, TakeOver
from app.serving.api.writer import ResponseWriter
from app.serving.faults.damage import damage
from app.serving.faults.fault import Fault
from app.serving.http.connection import Connection
from app.serving.http.context import RequestContext
from app.serving.http.errors import ApiError
from app.serving.http.response import (
    CLIENT_GONE,
    EVENT_STREAM,
    PendingResponse,
    Response,
    json_response,
)
from app.serving.http.stream import StreamTransport, WriteBatcher


class ServerLoad:
    """Counts requests being answered now, for GET /load, when tracking is on."""

    def __init__(self, tracked: bool) -> None:
        self.count = 0
        self.tracked = tracked

    def begin(self) -> None:
        self.count += self.tracked

    def end(self) -> None:
        self.count -= self.tracked


@dataclass(frozen=True, slots=True)
class Responder:
    """Submits requests to the engine and brings the outputs to the client.

    `headers` are added to every answer; a client that takes no bytes for `write_timeout_s` is dropped.
    """

    engine: EngineClient
    load: ServerLoad
    headers: Mapping[str, str]
    batcher: WriteBatcher
    write_timeout_s: float
    keep_alive_s: float
    """Seconds between comments in idle streams of chats and completions; see `EventStream`."""

    def respond(
        self,
        requests: Sequence[EngineRequest],
        writer: ResponseWriter,
        stream: bool,
        context: RequestContext,
    ) -> Response:
        """Returns the response, after waiting unless it is a stream.

        Raises errors of `EngineClient.submit`.
        """
        fault, connection = context.kept(Fault), context.connection
        if stream:
            intact = fault is None or fault.damage is None
            direct = intact and connection is not None and connection.plain
            take_over = self.transport if direct and context.http_version == "HTTP/1.1" else None
            response = self._stream(requests, writer, connection, take_over, may_join=intact)
        else:
            response = self._whole(requests, writer, connection)
        return response if fault is None else damage(response, fault, context)

    def respond_soon(
        self,
        requests: Sequence[EngineRequest],
        writer: ResponseWriter,
        stream: bool,
        context: RequestContext,
    ) -> Response | PendingResponse:
        """Responds like `respond`, but without waiting and without faults."""
        if stream:
            return self._stream(requests, writer, context.connection, None)
        collector = ResponseCollector(writer, len(requests))
        collector.submit(self.engine, requests)
        if not collector.unfinished:
            return json_response(collector.body(), 200, self.headers)

        def over(future: Future[None]) -> None:
            self.load.end()
            if collector.gone:
                return
            try:
                pending.resolve(json_response(collector.body(), 200, self.headers))
            except Exception as error:
                pending.resolve(error)

        pending = PendingResponse(collector.leave)
        self.load.begin()
        collector.on_done(over)
        return pending

    def broken(self, error: ApiError, writer: ResponseWriter) -> Response:
        chunks = [writer.chunk(Failed(0, error)), writer.closing()]
        return Response(chunks, 200, self.headers, EVENT_STREAM)

    def transport(self, connection: Connection, finished: Callable[[], None]) -> StreamTransport:
        """Returns a stream's way to its socket. Without `connection.ended` the server ends the body."""
        ends_body = connection.ended is not None
        return StreamTransport(connection, self.batcher, self.write_timeout_s, finished, ends_body)

    def _stream(
        self,
        requests: Sequence[EngineRequest],
        writer: ResponseWriter,
        connection: Connection | None,
        take_over: TakeOver | None,
        may_join: bool = True,
    ) -> Response:
        """`may_join`: a stream that is already complete may leave in one piece."""
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

    def _whole(
        self, requests: Sequence[EngineRequest], writer: ResponseWriter, connection: Connection | None
    ) -> Response:
        collector = ResponseCollector(writer, len(requests))
        collector.submit(self.engine, requests)
        if collector.unfinished:
            self.load.begin()
            try:
                collector.wait(connection)
            finally:
                self.load.end()
        if collector.gone:
            return json_response(b"", CLIENT_GONE)
        return json_response(collector.body(), 200, self.headers)


class ResponseCollector:
    """Collects the outputs of one request's choices in `writer`; the handle's future marks their end."""

    def __init__(self, writer: ResponseWriter, choices: int) -> None:
        self._writer = writer
        self._error: Exception | None = None
        self._handle: Handle | None = None
        self.unfinished = choices
        """Number of unfinished choices; 0 once one has failed."""
        self.gone = False
        """The client has left."""

    def submit(self, engine: EngineClient, requests: Sequence[EngineRequest]) -> None:
        handle = engine.submit(requests, self.emit)
        if self.unfinished:
            self._handle = handle
        elif self._error is not None:
            handle.abort()

    def emit(self, output: EngineOutput) -> None:
        """Takes an output. The first failure aborts the other choices."""
        if not self.unfinished:
            return
        if type(output) is Failed:
            self._error, self.unfinished = output.error, 0
            if self._handle is not None:
                self._handle.abort()
            return
        self._writer.take(output)
        if type(output) is Tokens and output.finish is not None:
            self.unfinished -= 1

    def body(self) -> bytes:
        """Returns the answer, or raises what a choice failed with; pauses where it is long."""
        if self._error is not None:
            raise self._error
        return self._writer.body()

    def leave(self) -> None:
        """Aborts the request of a client that has left."""
        self.gone = True
        if self._handle is not None:
            self._handle.abort()

    def on_done(self, callback: Callable[[Future[None]], None]) -> None:
        """Drops the handle, which refers to `callback`, and calls it, when all choices are over."""

        def over(future: Future[None]) -> None:
            self._handle = None
            callback(future)

        assert self._handle is not None
        self._handle.future.add_done_callback(over)

    def wait(self, connection: Connection | None) -> None:
        """Sleeps until all choices are over; a client that leaves ends them."""
        bell = Bell()
        self.on_done(lambda future: bell.set())
        if connection is not None:
            connection.watch(self.leave)
        try:
            bell.wait()
        finally:
            if connection is not None:
                connection.unwatch()
            if self._handle is not None:  # the waiting greenlet was killed
                self._handle.abort()
