"""All connections of one worker, from accepting to closing, and the fast path.

The fast path answers plain requests for generation from the hub, without Flask and WSGI environ: a
`FastConnection` reads, recognises plain requests and writes their answers. Validating, building, rendering
and counting are the routes' and the middleware's code, shared with the general path. All other requests are
left to the general path before anything is counted: a greenlet gets the socket with the bytes read so far,
and returns it after the answer.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any

import gevent

from app.base.clock.clock import Watcher
from app.serving.api.errors import respond_to_error
from app.serving.flask.application import Understudy
from app.serving.gunicorn.client_socket import has_bare_line_feed
from app.serving.gunicorn.fair_turns import FairTurns, Share
from app.serving.gunicorn.heads import MOST_HEAD_BYTES, RequestHead, RequestHeads, response_head
from app.serving.gunicorn.logs import ServerLogger, log_exchange
from app.serving.http.connection import READ, Connection, GeventSocket
from app.serving.http.context import RequestContext, current_request
from app.serving.http.response import CLIENT_GONE, PendingResponse, Response, StreamingBody, json_response
from app.serving.http.stream import LAST_CHUNK, SendBuffer, StreamTransport, WriteBatcher

log = logging.getLogger(__name__)
WAYS = {"POST": "fast", "GET": "probe"}
"""Label of `understudy_requests_total` for requests answered here."""
HTTP2 = b"PRI "
"""First bytes of an HTTP/2 connection; no request of HTTP/1.1 begins with them."""
BODY_PATIENCE_S = 0.25
"""Seconds until an incomplete body is left to the general path."""
RECEIVE = 1 << 16
MOST_ANSWERS = 8
"""Most complete answers per batch: the first has then waited half a millisecond."""
ServeGeneral = Callable[["FastConnection", bytes], None]
Upgrade = Callable[["FastPath", GeventSocket, tuple[str, int], bytes], object]


class HubConnection(SendBuffer):
    """A client's socket that the hub reads, so that no greenlet waits for the next request.

    `busy`: a request is being answered. `is_new`: no request has come yet. `since_s`: start of the wait for a
    request, or for the rest of one (monotonic seconds).
    """

    __slots__ = ("_reader", "address", "busy", "client", "is_new", "path", "share", "since_s")

    def __init__(
        self,
        path: FastPath,
        client: GeventSocket,
        address: tuple[str, int],
        batcher: WriteBatcher,
        share: Share,
    ) -> None:
        super().__init__(Connection(client), batcher, path.write_timeout_s)
        self.path, self.client, self.address, self.share = path, client, address, share
        path.open[self] = None
        self.busy, self.is_new, self.since_s = False, True, time.monotonic()
        self._reader: Watcher = gevent.get_hub().loop.io(self.connection.fileno(), READ)

    def _receive(self) -> bytes:
        """Returns the bytes that have arrived. The client's end or reset closes the connection."""
        received = self.path.received
        try:
            data = received[: self.client._sock.recv_into(received)].tobytes()
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        if not data:
            self.close()
        return data

    @property
    def has_unread(self) -> bool:
        """True if bytes have arrived that are not read yet."""
        try:
            return bool(self.client._sock.recv(1, socket.MSG_PEEK))
        except OSError:  # BlockingIOError, too
            return False

    def _forget(self) -> None:
        """Ends reading, and the worker's care for this connection."""
        self.is_open = False
        self.path.open.pop(self, None)
        self._reader.stop()
        self._reader.close()

    def client_gone(self) -> None:
        self.close()

    def look(self, now_s: float) -> None:
        """Enforces time limits. Called every fifth of a second."""
        raise NotImplementedError

    def leave(self) -> None:
        """Admits no further request; running answers go on."""

    def close(self) -> None:
        """Ends the connection; a running answer is discarded."""
        raise NotImplementedError


class GreenletConnection:
    """A connection that one greenlet serves to its end; the greenlet enforces the time limits."""

    has_unread = False

    def __init__(self, client: Any, address: Any, bound: Any) -> None:
        self.client, self.address, self.bound, self.share = client, address, bound, Share()
        self.busy, self.is_new, self.since_s = False, True, time.monotonic()

    def look(self, now_s: float) -> None: ...

    def leave(self) -> None: ...

    def close(self) -> None:
        """Ends the greenlet's wait for the next request."""
        with suppress(OSError):
            # The native socket: gevent's would raise in the reading greenlet, and log an error.
            self.client._sock.shutdown(socket.SHUT_RD)


class Connections:
    def __init__(self) -> None:
        self.open: dict[HubConnection | GreenletConnection, None] = {}

    def close_idle(self, young_s: float) -> None:
        """Closes idle connections, and lets busy ones end with their answer.

        A connection younger than `young_s` may still send its first request. A request that has arrived
        unread, because the loop is late, is answered.
        """
        since_s = time.monotonic() - young_s
        for connection in list(self.open):
            if connection.is_new and connection.since_s > since_s:
                continue
            if connection.busy or connection.has_unread:
                connection.leave()
            else:
                connection.close()

    def is_expecting(self, young_s: float) -> bool:
        """True while a request is unread, or may come on a connection younger than `young_s`."""
        since_s = time.monotonic() - young_s
        return any(
            (one.is_new and one.since_s > since_s) or (not one.busy and one.has_unread) for one in self.open
        )

    def count_busy(self) -> int:
        return sum(one.busy for one in self.open)


class FastPath:
    """The fast path of one worker.

    An idle connection is closed after `idle_s`. A client that takes no bytes is cut off after
    `write_timeout_s`. `serve_general` starts a greenlet for the next request of a connection; the request
    starts with the given bytes.
    """

    def __init__(
        self,
        app: Understudy,
        log: ServerLogger,
        turns: FairTurns,
        connections: Connections,
        idle_s: float,
        serve_general: ServeGeneral,
        write_timeout_s: float = inf,
        read_timeout_s: float = inf,
    ) -> None:
        self.open = connections.open
        self.idle_s = idle_s
        self.heads = RequestHeads(app.routes)
        self.middleware = app.middleware
        self.turns = turns
        self.serve_general = serve_general
        self.batcher = WriteBatcher()
        self.answers = WriteBatcher(MOST_ANSWERS)
        self.write_timeout_s = write_timeout_s
        self.read_timeout_s = read_timeout_s
        self.rpc = app.rpc
        """gRPC methods; None if the server has none."""
        self.upgrade: Upgrade | None = None
        """Continues a connection as HTTP/2, with the bytes read so far; None if the server has no gRPC."""
        self.received = memoryview(bytearray(RECEIVE))
        """Receive buffer of all connections. A new buffer per `recv` would fragment the C library's heap."""
        self.is_open = True
        """False when every answer has to close its connection."""
        self.new_id = app.new_request_id
        self.logs_access = log.access_log_enabled
        self._log = log

    def log_access(self, context: RequestContext, response: Response) -> None:
        body, sent = response.body, 0
        if isinstance(body, StreamingBody):
            sent = body.bytes_sent
        elif isinstance(body, bytes):
            sent = len(body)
        log_exchange(self._log, context, response, sent, time.monotonic() - context.arrival_s)


class FastConnection(HubConnection):
    """One client's socket, `busy` until the last byte of an answer is sent, also on the general path."""

    __slots__ = ("_buffer", "_closes", "_context", "_response", "bound", "has_head")

    def __init__(self, path: FastPath, client: GeventSocket, address: tuple[str, int], bound: object) -> None:
        super().__init__(path, client, address, path.answers, Share())
        self.bound = bound
        """The local address of the connection."""
        self._buffer = b""
        self._closes = False
        self._context: RequestContext | None = None
        self._response: Response | None = None
        self.has_head = False
        """True while a body is incomplete."""
        self._reader.start(self._readable)

    def _readable(self) -> None:
        if self.busy:  # the previous answer leaves first
            self._reader.stop()
        elif self.path.turns.has_time():
            if data := self._receive():
                self._read_on(data)
        else:
            self._reader.stop()
            self.path.turns.put(self.share, self._read_in_turn)

    def _read_in_turn(self) -> None:
        if not self.busy and self.is_open:
            self._reader.start(self._readable)
            if data := self._receive():
                self._read_on(data)

    def _read_on(self, data: bytes) -> None:
        """Adds `data` to the buffer, and answers the request at the start of the buffer, if complete."""
        data = self._buffer + data if self._buffer else data
        self._buffer, path = data, self.path
        if self.is_new and path.upgrade is not None and data.startswith(HTTP2):
            self._forget()
            path.upgrade(path, self.client, self.address, data)
            return
        end = data.find(b"\r\n\r\n") + 4
        if end < 4:
            if len(data) > MOST_HEAD_BYTES or has_bare_line_feed(data):
                self.leave_to_general()
            return
        head = path.heads.read(data[:end])
        if head is None or head.content_length > path.middleware.most_plain_bytes or not path.is_open:
            self.leave_to_general()
            return
        end_of_body = end + head.content_length
        if len(data) < end_of_body:
            if not self.has_head:
                self.has_head, self.since_s = True, time.monotonic()
        elif not self._answer(head, data[end:end_of_body], data[end_of_body:]):
            self.leave_to_general()

    def _answer(self, head: RequestHead, body: bytes, rest: bytes) -> bool:
        """Starts the answer; returns False, without side effects, when the request is not plain."""
        route, path = head.route, self.path
        plain = route.plain
        request = plain.recognise(body) if plain is not None else None
        if plain is None or request is None:
            return False
        context = RequestContext(
            head.method,
            route.path,
            route.path,
            head.headers,
            self.address[0],
            time.monotonic(),
            body=body,
            connection=self.connection,
            host=head.headers["host"],
            new_id=path.new_id,
            route=route,
            label=route.path,
            way=WAYS[head.method],
        )
        self._closes = head.closes
        self._buffer = rest
        self.busy, self.is_new, self.has_head = True, False, False
        self._context = context
        token = current_request.set(context)
        outcome: Response | PendingResponse | None
        try:
            outcome = path.middleware.begin(context)
            if outcome is None:
                outcome = plain.answer(context, request)
        except Exception as error:
            outcome = respond_to_error(error, context)
        if type(outcome) is Response:
            self._finish(outcome)
        elif isinstance(outcome, PendingResponse):
            self._wait_for(outcome, context)
        current_request.reset(token)
        return True

    def _wait_for(self, pending: PendingResponse, context: RequestContext) -> None:
        def come(outcome: Response | Exception) -> None:
            self.connection.unwatch()
            token = current_request.set(context)
            if isinstance(outcome, Exception):
                outcome = respond_to_error(outcome, context)
            self._reader.start(self._readable)
            self._finish(outcome)
            current_request.reset(token)

        def gone() -> None:
            pending.abort()
            token = current_request.set(context)
            self._response = json_response(b"", CLIENT_GONE)
            self.path.middleware.end(context, self._response)
            current_request.reset(token)
            self.close()

        self._reader.stop()
        self.connection.watch(gone)
        pending.then(come)

    def _finish(self, response: Response) -> None:
        assert self._context is not None
        try:
            self.path.middleware.end(self._context, response)
        except Exception:  # no byte has been sent: only closing ends the client's wait
            log.exception("an answer could not be finished")
            self.close()
            return
        self._response = response
        body = response.body
        if isinstance(body, bytes):
            head = response_head(response, self._closes)
            if response.streamed:
                self.put(b"%b%x\r\n%b\r\n%b" % (head, len(body), body, LAST_CHUNK))
            else:
                self.put(head + body)
            return
        assert isinstance(body, StreamingBody), "routes answer plain requests in no other way"
        self._reader.stop()
        transport = StreamTransport(
            self.connection,
            self.path.batcher,
            self.path.write_timeout_s,
            self._streamed,
            ends_body=True,
            head=response_head(response),
            abandoned=self.close,
        )
        self.connection.watch(transport.client_gone)
        body.attach(transport)
        transport.flush()

    def _streamed(self) -> None:
        self.connection.unwatch()
        self._reader.start(self._readable)
        self.all_sent()

    def lag(self) -> None:
        """Stops reading until the client has taken the answer."""
        self._reader.stop()
        super().lag()

    def all_sent(self) -> None:
        """Ends the answer, and waits for the next request."""
        self._end_answer()
        if self._closes or not self.path.is_open:
            self.close()
        else:
            self._await_request()

    def _end_answer(self) -> None:
        response, context = self._response, self._context
        self._response = self._context = None
        if response is not None and context is not None:
            if self.path.logs_access:
                self.path.log_access(context, response)
            if response.callbacks or type(response.body) is not bytes:
                response.close()

    def _await_request(self) -> None:
        self.busy, self.since_s = False, time.monotonic()
        if self._buffer:  # the next request has arrived; other connections run first
            self._reader.stop()
            self.path.turns.put(self.share, self._resume)
        elif not self._reader.active:
            self._reader.start(self._readable)

    def _resume(self) -> None:
        if not self.busy and self.is_open:
            self._reader.start(self._readable)
            self._read_on(b"")

    def leave_to_general(self) -> None:
        """Hands the buffer and the socket to a greenlet."""
        self._reader.stop()
        self.busy, self.is_new, self.has_head = True, False, False
        data, self._buffer = self._buffer, b""
        self.path.serve_general(self, data)

    def take_back(self, data: bytes) -> None:
        """Resumes after an answer of the general path, which read `data` beyond its request."""
        self._buffer = data
        self._await_request()

    def close(self) -> None:
        """Closes the socket; a running answer is discarded."""
        if self.is_open:
            self._forget()
            self.connection.unwatch()
            self.catch_up()
            self._end_answer()
            self.client.close()

    def look(self, now_s: float) -> None:
        """Closes an idle connection; leaves a request whose body is late to the general path."""
        if self.busy:
            return
        if now_s - self.since_s > self.path.idle_s:
            self.close()
        elif self.has_head and now_s - self.since_s > BODY_PATIENCE_S:
            self.leave_to_general()
