"""A client's connection served from the hub: no greenlet waits for the next request.

`FastConnection` reads, recognises plain requests and writes their answers. All other requests take the
general path: a greenlet gets the socket with the bytes read so far, and returns it after the answer.
"""

from __future__ import annotations

import logging
import time

from app.serving.gunicorn.client_socket import has_bare_line_feed
from app.serving.gunicorn.connections import FastPath, HubConnection
from app.serving.gunicorn.fair_turns import Share
from app.serving.gunicorn.fast.heads import MOST_HEAD_BYTES, RequestHead, response_head
from app.serving.http.connection import GeventSocket
from app.serving.http.context import RequestContext, current_request
from app.serving.http.response import CLIENT_GONE, PendingResponse, Response, StreamingBody, json_response
from app.serving.http.stream import LAST_CHUNK, StreamTransport

log = logging.getLogger(__name__)
WAYS = {"POST": "fast", "GET": "probe"}
"""Label of `understudy_requests_total` for requests answered here."""
HTTP2 = b"PRI "
"""First bytes of an HTTP/2 connection; no request of HTTP/1.1 begins with them."""
BODY_PATIENCE_S = 0.25
"""Seconds until an incomplete body is left to the general path."""


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
            self._read()
        else:
            self._reader.stop()
            self.path.turns.put(self.share, self._read_in_turn)

    def _read_in_turn(self) -> None:
        if not self.busy and self.is_open:
            self._reader.start(self._readable)
            self._read()

    def _read(self) -> None:
        if data := self._receive():
            self._buffer = self._buffer + data if self._buffer else data
            self._next()

    def _next(self) -> None:
        """Answers the request at the start of the buffer, if complete."""
        data, path = self._buffer, self.path
        if self.is_new and path.rpc is not None and data.startswith(HTTP2):
            from app.serving.gunicorn.http2.connection import Http2Connection  # few servers need it

            self._forget()
            Http2Connection(path, self.client, self.address, data)
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
            outcome = path.respond_to_error(error, context)
        if type(outcome) is Response:
            self._finish(outcome)
        elif isinstance(outcome, PendingResponse):
            self._wait_for(outcome, context)
        current_request.reset(token)
        return True

    def _wait_for(self, pending: PendingResponse, context: RequestContext) -> None:
        """Waits for the answer; stops reading meanwhile."""

        def come(outcome: Response | Exception) -> None:
            self.connection.unwatch()
            token = current_request.set(context)
            if isinstance(outcome, Exception):
                outcome = self.path.respond_to_error(outcome, context)
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
        """Runs the middleware on the response, and writes it."""
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
            self._next()

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
