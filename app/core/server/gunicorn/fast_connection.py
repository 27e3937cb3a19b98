"""The fast and the direct path: requests of known routes, without gunicorn's parser and Flask.

A `FastConnection` reads a client's requests. Plain ones are answered from the hub. Others are
passed to the handlers of their routes, which may wait, each in a greenlet. Requests with unusual
heads and long or late bodies are left to the general path before anything is counted: a greenlet
gets the connection with the bytes read so far, and returns it after the answer. Validating,
building, rendering and counting are the same code on all paths, and all send through the transport
of the connection.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from functools import partial
from http import HTTPStatus

import gevent.socket
from gevent import GreenletExit
from gevent.event import Event

from app.core.api.errors import error_response, respond_to_error
from app.core.api.responder import EventStream
from app.core.server.gunicorn.fair_turns import SHORT_WORK_S, ConnectionCost
from app.core.server.gunicorn.heads import (
    MAX_HEAD_BYTES,
    RequestHead,
    has_bare_line_feed,
    response_head,
)
from app.core.server.gunicorn.hub_connection import Address, FastPath, HubConnection
from app.core.server.gunicorn.logs import log_exchange
from app.core.server.http.context import RequestContext, current_request
from app.core.server.http.response import (
    CLIENT_GONE,
    PendingResponse,
    Response,
    StreamingBody,
    json_response,
)
from app.core.server.http.route import Handler
from app.core.server.http.stream_transport import LAST_CHUNK

log = logging.getLogger(__name__)
PLAIN_LABELS = {"POST": "fast", "GET": "probe"}
"""Labels of `understudy_requests_total` for plain requests, by method."""
HANDLER_LABEL = "direct"
"""Label of `understudy_requests_total` for other requests that are answered here."""
HANDLER_COST_S = 0.001
"""Estimated processor time of a handler, in seconds."""
LINE_ENDS = b"\r\n"
HTTP2_START = b"PRI "
"""First bytes of an HTTP/2 connection; no request of HTTP/1.1 begins with them."""
BODY_PATIENCE_S = 0.25
"""Seconds until an incomplete body is left to the general path."""
WITHOUT_BODY = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
"""Statuses of answers that have no body."""


class RequestConnection(HubConnection):
    """Reads requests, one at a time, and leaves unusual ones to the general path.

    It is `busy` until the last byte of an answer is sent, on the general path, too.
    """

    __slots__ = (
        "_all_sent",
        "_buffer",
        "_closes",
        "_context",
        "_gone",
        "_pending",
        "_response",
        "bound",
        "has_head",
    )
    _answer: Callable[[RequestHead, bytes, bytes], None]
    """Starts the answer to a request. The last argument has the bytes after the request."""

    def __init__(
        self, path: FastPath, client: gevent.socket.socket, address: Address, bound: object
    ) -> None:
        """`bound`: the local address of the connection."""
        super().__init__(path, client, address, ConnectionCost())
        self.bound = bound
        self._buffer = b""
        self._gone: Callable[[], None] | None = None
        self._all_sent: Event | None = None
        """Set when a greenlet's bytes are sent, or the connection is closed.

        None without a greenlet.
        """
        self.has_head = False
        """True while a body is incomplete."""
        self._closes = False
        self._context: RequestContext | None = None
        self._response: Response | None = None
        self._pending: PendingResponse | None = None
        self._reader.start(self.read)

    def watch(self, gone: Callable[[], None]) -> None:
        """Calls `gone` as soon as the client closes or resets the connection.

        The watcher that reads requests stays active: another one would take two system calls for
        each stream.
        """
        self._gone = gone
        if not self._reader.active:
            self._reader.start(self.read)

    @property
    def answering_since_s(self) -> float:
        """Arrival of the request that is being answered (monotonic seconds)."""
        context = self._context
        return self.since_s if context is None else context.arrival_s

    def unwatch(self) -> None:
        """Ends `watch`."""
        self._gone = None
        if self._leaving is not None:
            super().unwatch()

    def read(self) -> None:
        """Hub: reads what a client has sent.

        Called at once for a new connection, which saves a turn of the loop.
        """
        if self.busy:  # the previous answer is sent first
            if self._gone is None:
                self._reader.stop()
            else:
                self._peek(self._gone)
        elif self.path.turns.has_time():
            data = self._receive()
            if data:
                self._read_on(data)
        else:
            self._reader.stop()
            self.path.turns.schedule(self.cost, self._read_in_turn)

    def _read_in_turn(self) -> None:
        if not self.busy and self.is_open:
            self._reader.start(self.read)
            data = self._receive()
            if data:
                self._read_on(data)

    def _read_on(self, data: bytes) -> None:
        """Appends `data` to the buffer, and answers the buffer's first request if complete."""
        if self._buffer:
            data = self._buffer + data
        self._buffer = data
        path = self.path
        if self.is_new and path.upgrade is not None and data.startswith(HTTP2_START):
            if self.is_closed_by_client:
                self.close()
            else:
                self._unregister()
                path.upgrade(path, self.client, self.address, data)
            return
        end = data.find(b"\r\n\r\n") + 4
        if end < 4:
            is_http = data[:1] in LINE_ENDS or data[:1].isupper()  # unlike TLS, for example
            if len(data) > MAX_HEAD_BYTES or has_bare_line_feed(data) or not is_http:
                self.leave_to_general()
            return
        if end > MAX_HEAD_BYTES:  # reading it would keep it in the cache of heads
            self.leave_to_general()
            return
        head = path.heads.read(data[:end])
        if (
            head is None
            or head.content_length > path.middleware.max_plain_bytes
            or not path.is_open
        ):
            self.leave_to_general()
            return
        end_of_body = end + head.content_length
        if len(data) < end_of_body:
            if not self.has_head:
                self.has_head = True
                self.since_s = time.monotonic()
        else:
            self._answer(head, data[end:end_of_body], data[end_of_body:])

    def _await_request(self) -> None:
        """Waits for the next request of the connection; one that has arrived takes its turn."""
        self.busy = False
        self.since_s = time.monotonic()
        if self._buffer:  # the next request has arrived; other connections run first
            self._reader.stop()
            self.path.turns.schedule(self.cost, self._resume)
        elif not self._reader.active:
            self._reader.start(self.read)

    def _resume(self) -> None:
        if not self.busy and self.is_open:
            self._reader.start(self.read)
            self._read_on(b"")

    def leave_to_general(self) -> None:
        """Starts a greenlet that serves the request with the bytes read so far."""
        self._reader.stop()
        if not self.has_head:
            self.since_s = time.monotonic()
        self.busy = True
        self.is_new = False
        self.has_head = False
        self._all_sent = Event()
        data = self._buffer
        self._buffer = b""
        self.path.serve_general(self, data)

    def take_back(self, data: bytes) -> None:
        """Resumes after an answer of the general path, which read `data` beyond its request."""
        self._buffer = data
        self._all_sent = None
        self._await_request()

    def end_of_requests(self) -> None:
        """Closes the connection; a request whose body is cut short gets an error."""
        if self.has_head and not self.busy:
            self.leave_to_general()
        else:
            self.close()

    @property
    def is_receiving(self) -> bool:
        """True if a part of a request has arrived, and no request is being answered."""
        return not self.busy and bool(self._buffer)

    def announce_end(self) -> None:
        """Leaves a request whose body is incomplete to the general path, which waits for it.

        The answer to the next request contains `Connection: close`.
        """
        if self.has_head and not self.busy:
            self.leave_to_general()

    def enforce_limits(self, now_s: float) -> None:
        """Closes the connection of a client that is idle, or slow to send a head.

        Leaves a request whose body is late to the general path.
        """
        if self.busy:
            return
        if self.has_head:
            if now_s - self.since_s > BODY_PATIENCE_S:
                self.leave_to_general()
        elif self.is_overdue(now_s):
            self.close()


class FastConnection(RequestConnection):
    """One client's connection of HTTP/1.1: answers the requests that it reads."""

    __slots__ = ()

    def _answer(self, head: RequestHead, body: bytes, following: bytes) -> None:
        """Starts the answer. `following`: bytes after the request."""
        route = head.route
        path = self.path
        plain = head.plain
        request = None
        way = HANDLER_LABEL
        if plain is not None:
            try:
                request = plain.recognise(body)
            except BaseException:  # the handler of the route fails likewise, and answers
                log.debug("a request could not be parsed", exc_info=True)
        if request is not None:
            way = PLAIN_LABELS[head.method]
        arrival_s = time.monotonic()
        if self.has_head:
            arrival_s = self.since_s
        context = RequestContext(
            method=head.method,
            path=route.path,
            target=route.path,
            headers=head.headers,
            client=self.address[0],
            arrival_s=arrival_s,
            part=body,
            connection=self,
            host=head.headers["host"],
            new_id=path.new_id,
            route=route,
            label=route.path,
            way=way,
        )
        self._closes = head.closes
        self._buffer = following
        self._context = context
        self.busy = True
        self.is_new = False
        self.has_head = False
        if plain is None or request is None:
            self._start_handler(partial(self._handle, context, route.handle))
            return
        context.body = body
        token = current_request.set(context)
        outcome: Response | PendingResponse | None
        try:
            outcome = path.middleware.begin(context)
            if outcome is None:
                outcome = plain.answer(context, request)
        except BaseException as error:
            outcome = respond_to_error(error, context)
        if type(outcome) is Response:
            self._finish(outcome)
        elif isinstance(outcome, PendingResponse):
            self._wait_for(outcome)
        current_request.reset(token)

    def _start_handler(self, work: Callable[[], None]) -> None:
        """Runs `work` in a greenlet: now, or in a turn of long work."""
        path = self.path
        run = partial(path.handlers.run, work)
        cost = self.cost
        was_short = cost.cost_s <= SHORT_WORK_S
        # Turns measure a handler only until it first waits, and not at all if it starts at once.
        cost.cost_s = max(cost.cost_s, HANDLER_COST_S)
        if was_short and not path.turns.has_time():
            path.turns.schedule(cost, partial(self._run_late, run))
        else:
            run()

    def _run_late(self, run: Callable[[], None]) -> None:
        """Runs a handler that has waited for a turn, unless its client has left meanwhile."""
        if self.is_closed_by_client:
            self.close()
        else:
            run()

    def _handle(self, context: RequestContext, handle: Handler) -> None:
        """Greenlet: answers by the route's handler, which may wait."""
        if not self.is_open:
            return
        token = current_request.set(context)
        try:
            try:
                response = self.path.middleware.begin(context, is_general=True)
                if response is None:
                    response = handle(context)
                if response.status in WITHOUT_BODY:
                    response.body = b""
                    response.streamed = False
                    if response.status == HTTPStatus.NO_CONTENT:  # RFC 9110 section 8.6
                        response.headers.pop("Content-Length", None)
            except GreenletExit:  # the worker ends
                raise
            except BaseException as error:
                response = respond_to_error(error, context)
            if self.is_open:
                self._finish(response)
            else:
                try:
                    self.path.middleware.end(context, response)
                except Exception:
                    log.exception("a response could not be completed")
                self._abandon_answer(context, response)
        finally:
            current_request.reset(token)

    def _wait_for(self, pending: PendingResponse) -> None:
        self._pending = pending
        self.watch(self._abandon)
        pending.on_resolve(self._finish_pending)

    def _finish_pending(self, outcome: Response | Exception) -> None:
        self._pending = None
        self.unwatch()
        context = self._context
        assert context is not None
        token = current_request.set(context)
        if isinstance(outcome, Exception):
            outcome = respond_to_error(outcome, context)
        self._finish(outcome)
        current_request.reset(token)

    def _abandon(self) -> None:
        """Ends a request whose client disconnects before the response is there."""
        assert self._pending is not None
        self._pending.abort()
        self._finish_pending(json_response(b"", CLIENT_GONE))
        self.close()

    def _finish(self, response: Response) -> None:
        """Ends the middleware, and sends the response or its first bytes."""
        context = self._context
        assert context is not None
        path = self.path
        if not path.is_open and path.closes_after(bool(self._buffer) or self.has_unread):
            self._closes = True
        try:
            path.middleware.end(context, response)
            head = response_head(response, self._closes)
        except Exception as error:  # no byte has been sent
            _close(response)
            response = error_response(error)
            head = response_head(response, self._closes)
        body = response.body
        if isinstance(body, bytes):
            self._response = response
            self._batcher = path.answers
            if response.streamed:
                self.put(b"%b%x\r\n%b\r\n%b" % (head, len(body), body, LAST_CHUNK))
            else:
                self.put(head + body)
        elif isinstance(body, EventStream):
            self._response = response
            self._parts.append(head)
            try:
                self._begin_stream(body)
            except Exception:  # only closing can signal the error
                log.exception("a response ended early")
                self.close()
        else:
            self._send_pieces(context, response, head)

    def _send_pieces(self, context: RequestContext, response: Response, head: bytes) -> None:
        """Greenlet: sends the pieces of a body as they come, and returns when they are sent."""
        is_chunked = "Content-Length" not in response.headers
        self._batcher = self.path.batcher
        self._all_sent = Event()
        try:
            for piece in response:
                data = piece
                if is_chunked and piece:
                    data = b"%x\r\n%b\r\n" % (len(piece), piece)
                self.send(head + data)
                head = b""
        except BaseException as error:  # the client may have a part: only closing can signal it
            if isinstance(error, OSError | GreenletExit):
                log.debug("the connection to %s has ended: %s", self.address, error)
            else:
                log.exception("a response ended early")
            self._abandon_answer(context, response)
            return
        self._all_sent = None
        self._response = response
        if is_chunked:
            head += LAST_CHUNK
        self.put(head)

    def _abandon_answer(self, context: RequestContext, response: Response) -> None:
        """Closes the connection and ends an answer that is not sent to its end."""
        self.close()
        self._context = context
        self._response = response
        self._end_answer()

    def _begin_stream(self, body: StreamingBody) -> None:
        self._batcher = self.path.batcher
        self._has_last_piece = False
        body.attach(self)
        self.watch(self.client_gone)
        self.flush()

    def send(self, data: bytes) -> None:
        """Greenlet: sends `data`, and returns when it is sent.

        Raises:
            OSError: the client has disconnected, or takes no bytes.
        """
        if data:
            self._parts.append(data)
        self.flush()
        self._wait()

    def send_stream(self, body: StreamingBody) -> None:
        """Greenlet: sends `body`, and returns when it is sent.

        Raises:
            OSError: the client has disconnected, or takes no bytes.
        """
        self._begin_stream(body)
        self._wait()
        self._source = None

    def _wait(self) -> None:
        assert self._all_sent is not None
        is_streaming = self._source is not None and not self._has_last_piece
        if self.is_open and (self.lags or is_streaming):
            self._all_sent.clear()
            self._all_sent.wait()
        if not self.is_open:
            raise OSError(errno.EPIPE, "the client has disconnected or is not reading its response")

    def all_sent(self) -> None:
        """Ends an answer whose last byte has been sent."""
        if self._source is not None:
            if not self._has_last_piece:
                return
            self.unwatch()
        if self._all_sent is not None:
            self._all_sent.set()
        if self._response is None:
            return  # no answer of the fast path
        self._end_answer()
        # Without "close" in the head, the client sends another request, even if the worker stops.
        if self._closes:
            self.close()
        else:
            self._await_request()

    def _end_answer(self) -> None:
        """Logs the exchange, and closes its response."""
        response = self._response
        context = self._context
        self._response = None
        self._context = None
        self._source = None
        if response is not None and context is not None:
            if self.path.logs_access:
                log_exchange(self.path.log, context, response)
            if response.callbacks or type(response.body) is not bytes:
                _close(response)

    def client_gone(self) -> None:
        """Drops the source of the answer, and closes the connection."""
        source = self._source
        self._source = None
        if source is not None:
            source.leave()
        self.close()

    def close(self) -> None:
        """Closes the socket; a running answer is discarded."""
        if self.is_open:
            self._unregister()
            self.unwatch()
            self.catch_up()
            self._end_answer()
            self.client.close()
            if self._all_sent is not None:
                self._all_sent.set()


def _close(response: Response) -> None:
    """Closes a response; an error there must not keep its connection from the next request."""
    try:
        response.close()
    except Exception:
        log.exception("a response could not be closed")
