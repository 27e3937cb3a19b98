"""A client's connection in the hands of the hub: no greenlet waits for its next request.

It reads, recognises plain requests and writes their answers. Anything else it leaves to the general way: a
greenlet gets the socket with the bytes that were read, and brings it back after the answer.
"""

from __future__ import annotations

import logging
import time
from socket import MSG_PEEK

import gevent

from app.clock.clock import Watcher
from app.http.connection import READ, Connection, GeventSocket
from app.http.context import RequestContext, current_request
from app.http.response import CLIENT_GONE, PendingResponse, Response, StreamingBody, json_response
from app.http.stream import LAST_CHUNK, SendBuffer, StreamTransport
from app.server.client_socket import has_bare_line_feed
from app.server.fair_turns import Share
from app.server.fast.heads import MOST_HEAD_BYTES, RequestHead, response_head
from app.server.fast.path import FastPath

log = logging.getLogger(__name__)
WAYS = {"POST": "fast", "GET": "probe"}
"""How `understudy_requests_total` names what is answered here."""
HTTP2 = b"PRI "
"""How no request of HTTP/1.1 begins."""
BODY_PATIENCE_S = 0.25
"""A body that has not come after so long is waited for by the general way."""


class FastConnection(SendBuffer):
    """One client's socket. `since_s` is the moment from which it waits for a request, or for the rest of one.

    It is `busy` from the first byte of an answer's making to its last byte, also while the general way has
    it.
    """

    __slots__ = (
        *("_buffer", "_closes", "_context", "_path", "_reader", "_response", "address", "bound"),
        *("busy", "client", "has_head", "is_new", "share", "since_s"),
    )

    def __init__(self, path: FastPath, client: GeventSocket, address: tuple[str, int], bound: object) -> None:
        super().__init__(Connection(client), path.answers, path.write_timeout_s)
        self._path = path
        path.open[self] = None
        self.client = client
        self.address = address
        self.bound = bound
        """The address of ours that it came to."""
        self._buffer = b""
        self._closes = False
        self._context: RequestContext | None = None
        self._response: Response | None = None
        self.share = Share()
        self.busy = False
        self.is_new = True
        """No request has come yet."""
        self.has_head = False
        """The rest of a body is still to come."""
        self.since_s = time.monotonic()
        self._reader: Watcher = gevent.get_hub().loop.io(self.connection.fileno(), READ)
        self._reader.start(self._readable)

    def _readable(self) -> None:
        if self.busy:  # the answer before leaves first
            self._reader.stop()
        elif self._path.turns.has_time():
            self._read()
        else:
            self._reader.stop()
            self._path.turns.put(self.share, self._read_in_turn)

    def _read_in_turn(self) -> None:
        if not self.busy and self.is_open:
            self._reader.start(self._readable)
            self._read()

    def _read(self) -> None:
        try:
            received = self._path.received
            data = received[: self.client._sock.recv_into(received)].tobytes()
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if not data:
            self.close()
            return
        self._buffer = self._buffer + data if self._buffer else data
        self._next()

    def _next(self) -> None:
        """Answer the request at the beginning of the buffer, if it is all there."""
        data = self._buffer
        if self.is_new and self._path.rpc is not None and data.startswith(HTTP2):
            self._upgrade(data)
            return
        end = data.find(b"\r\n\r\n") + 4
        if end < 4:
            if len(data) > MOST_HEAD_BYTES or has_bare_line_feed(data):
                self.leave_to_general()
            return
        path = self._path
        head = path.heads.read(data[:end])
        if head is None or head.content_length > path.middleware.most_plain_bytes or not path.is_open:
            self.leave_to_general()
            return
        end_of_body = end + head.content_length
        if len(data) < end_of_body:
            if not self.has_head:
                self.has_head, self.since_s = True, time.monotonic()
            return
        if not self._answer(head, data[end:end_of_body], data[end_of_body:]):
            self.leave_to_general()

    def _answer(self, head: RequestHead, body: bytes, rest: bytes) -> bool:
        """Begin the answer; False, and nothing has happened, when the request is not plain."""
        route, path = head.route, self._path
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
        )
        context.route, context.label, context.way = route, route.path, WAYS[head.method]
        context.new_id = path.new_id
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
            outcome = path.respond_to_error(error, context)
        if type(outcome) is Response:
            self._finish(outcome)
        elif isinstance(outcome, PendingResponse):
            self._wait_for(outcome)
        current_request.reset(token)
        return True

    def _wait_for(self, pending: PendingResponse) -> None:
        """Waits for the answer, and reads nothing meanwhile."""
        self._reader.stop()
        context, middleware = self._context, self._path.middleware
        assert context is not None

        def gone() -> None:
            pending.abort()
            token = current_request.set(context)
            self._response = json_response(b"", CLIENT_GONE)
            middleware.end(context, self._response)
            current_request.reset(token)
            self.close()

        self.connection.watch(gone)
        pending.then(self._come)

    def _come(self, outcome: Response | Exception) -> None:
        context = self._context
        assert context is not None
        self.connection.unwatch()
        token = current_request.set(context)
        if isinstance(outcome, Exception):
            outcome = self._path.respond_to_error(outcome, context)
        self._reader.start(self._readable)
        self._finish(outcome)
        current_request.reset(token)

    def _finish(self, response: Response) -> None:
        """Finish the response with the middleware, and write it."""
        context = self._context
        assert context is not None
        try:
            self._path.middleware.end(context, response)
        except Exception:  # no byte has left, and only this lets the client go
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
        elif isinstance(body, StreamingBody):
            self._stream(response, body)
        else:  # pragma: no cover  # routes answer plain requests in no other way
            raise TypeError("a plain request is answered by bytes or by a StreamingBody")

    def _stream(self, response: Response, body: StreamingBody) -> None:
        self._reader.stop()
        transport = StreamTransport(
            self.connection,
            self._path.batcher,
            self._path.write_timeout_s,
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
        self._done()

    def lag(self) -> None:
        """The next request is read when the client has taken the answer."""
        self._reader.stop()
        super().lag()

    def all_sent(self) -> None:
        self._done()

    def client_gone(self) -> None:
        self.close()

    def _done(self) -> None:
        response, context = self._response, self._context
        assert response is not None and context is not None
        self._response = self._context = None
        if self._path.logs_access:
            self._path.log_access(context, response)
        if response.callbacks or type(response.body) is not bytes:
            response.close()
        self.busy = False
        if self._closes or not self._path.is_open:
            self.close()
            return
        self._await_request()

    def _await_request(self) -> None:
        self.since_s = time.monotonic()
        if self._buffer:  # it is here already; other connections come first
            self._reader.stop()
            self._path.turns.put(self.share, self._resume)
        elif not self._reader.active:
            self._reader.start(self._readable)

    def _resume(self) -> None:
        if not self.busy and self.is_open:
            self._reader.start(self._readable)
            self._next()

    @property
    def has_unread(self) -> bool:
        try:
            return bool(self.client._sock.recv(1, MSG_PEEK))
        except OSError:  # BlockingIOError, too
            return False

    def leave_to_general(self) -> None:
        """Have a greenlet serve what the buffer begins with."""
        self._reader.stop()
        self.busy, self.is_new, self.has_head = True, False, False
        data, self._buffer = self._buffer, b""
        self._path.serve_general(self, data)

    def take_back(self, data: bytes) -> None:
        """The general way has answered; `data` is what it read beyond that."""
        self.busy = False
        self._buffer = data
        self._await_request()

    def close(self) -> None:
        """Closes the socket; a running answer is discarded."""
        if not self.is_open:
            return
        self._forget()
        self.connection.unwatch()
        self.catch_up()
        response, self._response = self._response, None
        if response is not None and self._context is not None:
            if self._path.logs_access:
                self._path.log_access(self._context, response)
            response.close()
        self.client.close()

    def _forget(self) -> None:
        self.is_open = False
        del self._path.open[self]
        self._reader.stop()
        self._reader.close()

    def _upgrade(self, data: bytes) -> None:
        """The connection begins with `data`, and is HTTP/2."""
        from app.server.http2.connection import Http2Connection  # which few servers need

        self._forget()
        Http2Connection(self._path, self.client, self.address).begin(data)

    def leave(self) -> None:
        """The running answer closes the connection."""

    def look(self, now_s: float) -> None:
        """Closes an idle connection; what is incomplete goes the general way after a while."""
        if self.busy:
            return
        if now_s - self.since_s > self._path.idle_s:
            self.close()
        elif self.has_head and now_s - self.since_s > BODY_PATIENCE_S:
            self.leave_to_general()
