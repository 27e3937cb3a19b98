"""The clients' connections of one worker, and the fast path.

The fast path answers plain requests for generation from the hub, without Flask and WSGI environ: a
`FastConnection` reads, recognises plain requests and writes their answers. Validating, building,
rendering and counting are the routes' and the middleware's code, shared with the general path. All
other requests are left to the general path before anything is counted: a greenlet gets the
connection with the bytes read so far, and returns it after the answer. Both ways send through the
transport of the connection.
"""

from __future__ import annotations

import errno
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from ssl import SSLWantReadError, SSLWantWriteError

import gevent.socket
from gevent.event import Event

from app.base.clock.clock import Watcher
from app.serving.api.errors import respond_to_error
from app.serving.flask.application import Understudy
from app.serving.gunicorn.fair_turns import FairTurns, Share
from app.serving.gunicorn.heads import (
    MOST_HEAD_BYTES,
    RequestHead,
    RequestHeads,
    has_bare_line_feed,
    response_head,
)
from app.serving.gunicorn.logs import ServerLogger, log_exchange
from app.serving.http.connection import LAST_CHUNK, READ, StreamTransport, WriteBatcher
from app.serving.http.context import RequestContext, current_request
from app.serving.http.response import (
    CLIENT_GONE,
    PendingResponse,
    Response,
    StreamingBody,
    json_response,
)

log = logging.getLogger(__name__)
WAYS = {"POST": "fast", "GET": "probe"}
"""Label of `understudy_requests_total` for requests answered here."""
HTTP2 = b"PRI "
"""First bytes of an HTTP/2 connection; no request of HTTP/1.1 begins with them."""
BODY_PATIENCE_S = 0.25
"""Seconds until an incomplete body is left to the general path."""
RECEIVE = 1 << 16
LONGEST_S = 1e9
"""Stands for no limit, in seconds."""
MOST_ANSWERS = 8
"""Most complete answers per batch: the first has then waited half a millisecond."""
Address = tuple[str, int]
ServeGeneral = Callable[["FastConnection", bytes], object]
Upgrade = Callable[["FastPath", gevent.socket.socket, Address, bytes], object]


class HubConnection(StreamTransport):
    """A client's socket that the hub reads, so that no greenlet waits for the next request.

    `busy`: a request is being answered. `is_new`: no request has come yet. `since_s`: start of the
    wait for a request, or for the rest of one (monotonic seconds).
    """

    __slots__ = (
        "_read_into",
        "_reader",
        "address",
        "busy",
        "client",
        "is_new",
        "path",
        "share",
        "since_s",
    )

    def __init__(
        self, path: FastPath, client: gevent.socket.socket, address: Address, share: Share
    ) -> None:
        super().__init__(client, path.batcher, path.client_timeout_s)
        self.path, self.client, self.address, self.share = path, client, address, share
        path.open[self] = None
        self.busy, self.is_new, self.since_s = False, True, time.monotonic()
        tls = getattr(client, "_sslobj", None)
        self._read_into: Callable[[memoryview], int] = (
            self._raw.recv_into if tls is None else lambda room: tls.read(len(room), room)
        )
        self._reader: Watcher = gevent.get_hub().loop.io(self._raw.fileno(), READ)

    def _receive(self) -> bytes:
        received = self.path.received
        try:
            data = received[: self._read_into(received)].tobytes()
        except (BlockingIOError, SSLWantReadError, SSLWantWriteError):
            return b""
        except OSError as error:
            log.debug("a connection with %s has ended: %s", self.address, error)
            data = b""
        if not data:
            self.close()
        return data

    @property
    def has_unread(self) -> bool:
        """True if bytes have arrived that are not read yet."""
        try:
            return bool(self._raw.recv(1, socket.MSG_PEEK))
        except OSError:  # BlockingIOError, too
            return False

    def _forget(self) -> None:
        self.is_open = False
        self.path.open.pop(self, None)
        self._reader.stop()
        self._reader.close()

    def client_gone(self) -> None:
        self.close()

    def take_turn(self, work: Callable[[], None]) -> None:
        """Renders and sends for a client that lags as long work: probes go first."""
        self.path.turns.run_long(work)

    def look(self, now_s: float) -> None:
        """Enforces time limits. Called every fifth of a second."""
        raise NotImplementedError

    @property
    def is_receiving(self) -> bool:
        """True if a part of a request has arrived."""
        raise NotImplementedError

    def announce_end(self) -> None:
        """Asks the client to send no further request here; one that is on its way is served."""

    def leave(self) -> None:
        """Admits no further request; running answers go on."""


OpenConnections = dict[HubConnection, None]


@dataclass(eq=False)
class FastPath:
    """State that the connections of one worker share. Without `app`, no request takes the fast
    path.

    An idle connection is closed after `idle_s`. A client that takes no bytes is cut off after
    `client_timeout_s`. `serve_general` starts a greenlet for the next request of a connection; the
    request starts with the given bytes.
    """

    app: Understudy | None
    log: ServerLogger
    turns: FairTurns
    open: OpenConnections
    idle_s: float
    serve_general: ServeGeneral
    client_timeout_s: float = LONGEST_S
    is_open: bool = True
    """False when the answer to the last request of a connection has to close the connection."""
    pipelines_until_s: float = LONGEST_S
    """End of the time for pipelined requests when `is_open` is False (monotonic seconds)."""
    upgrade: Upgrade | None = None
    """Continues a connection as HTTP/2, with the bytes read so far; None if the server has no gRPC.
    """

    def __post_init__(self) -> None:
        app = self.app
        self.heads = RequestHeads(() if app is None else app.routes)
        if app is not None:
            self.middleware, self.new_id = app.middleware, app.new_request_id
        self.batcher, self.answers = WriteBatcher(), WriteBatcher(MOST_ANSWERS)
        self.received = memoryview(bytearray(RECEIVE))
        """Receive buffer of all connections.

        A new buffer per `recv` would fragment the C library's heap.
        """
        self.logs_access = self.log.access_log_enabled

    def closes_after(self, has_more: bool) -> bool:
        """Returns whether an answer closes its connection when `is_open` is False.

        `has_more`: further bytes have arrived, which may be a pipelined request.
        """
        return not has_more or time.monotonic() >= self.pipelines_until_s


class FastConnection(HubConnection):
    """One client's socket, `busy` until the last byte of an answer is sent, also on the general
    path.
    """

    __slots__ = ("_all_sent", "_buffer", "_closes", "_context", "_response", "bound", "has_head")

    def __init__(
        self, path: FastPath, client: gevent.socket.socket, address: Address, bound: object
    ) -> None:
        """`bound`: the local address of the connection."""
        super().__init__(path, client, address, Share())
        self.bound = bound
        self._buffer = b""
        self._closes = False
        self._context: RequestContext | None = None
        self._response: Response | None = None
        self._all_sent: Event | None = None
        """Set when a greenlet's bytes are sent, or the connection is closed; None without a
        greenlet.
        """
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
        """Adds `data` to the buffer, and answers the request at the start of the buffer, if
        complete.
        """
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
        if (
            head is None
            or head.content_length > path.middleware.most_plain_bytes
            or not path.is_open
        ):
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
            method=head.method,
            path=route.path,
            target=route.path,
            headers=head.headers,
            client=self.address[0],
            arrival_s=time.monotonic(),
            body=body,
            connection=self,
            host=head.headers["host"],
            new_id=path.new_id,
            route=route,
            label=route.path,
            way=WAYS[head.method],
        )
        self._closes, self._buffer, self._context = head.closes, rest, context
        self.busy, self.is_new, self.has_head = True, False, False
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
            self.unwatch()
            token = current_request.set(context)
            if isinstance(outcome, Exception):
                outcome = respond_to_error(outcome, context)
            self._reader.start(self._readable)
            self._finish(outcome)
            current_request.reset(token)

        def gone() -> None:
            pending.abort()
            come(json_response(b"", CLIENT_GONE))
            self.close()

        self._reader.stop()
        self.watch(gone)
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
        path = self.path
        if not path.is_open and path.closes_after(bool(self._buffer) or self.has_unread):
            self._closes = True
        body, head = response.body, response_head(response, self._closes)
        if isinstance(body, bytes):
            self._batcher = self.path.answers
            if response.streamed:
                self.put(b"%b%x\r\n%b\r\n%b" % (head, len(body), body, LAST_CHUNK))
            else:
                self.put(head + body)
            return
        assert isinstance(body, StreamingBody), "routes answer plain requests in no other way"
        self._reader.stop()
        self._parts.append(head)
        self._begin_stream(body)

    def _begin_stream(self, body: StreamingBody) -> None:
        self._batcher, self._last = self.path.batcher, False
        body.attach(self)
        self.watch(self.client_gone)
        self.flush()

    def send(self, data: bytes) -> None:
        """Greenlet:

        returns when `data` is sent. OSError: the client has gone, or takes no bytes.
        """
        if data:
            self._parts.append(data)
        self.flush()
        self._wait()

    def send_stream(self, body: StreamingBody) -> None:
        """Greenlet:

        returns when `body` is sent. OSError: the client has gone, or takes no bytes.
        """
        self._begin_stream(body)
        self._wait()
        self._source = None

    def _wait(self) -> None:
        assert self._all_sent is not None
        if self.is_open and (self.lags or (self._source is not None and not self._last)):
            self._all_sent.clear()
            self._all_sent.wait()
        if not self.is_open:
            raise OSError(errno.EPIPE, "the client has gone, or takes no bytes")

    def lag(self) -> None:
        self._reader.stop()
        super().lag()

    def all_sent(self) -> None:
        if self._source is not None:
            if not self._last:
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
        response, context = self._response, self._context
        self._response = self._context = self._source = None
        if response is not None and context is not None:
            if self.path.logs_access:
                log_exchange(self.path.log, context, response)
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
        self._reader.stop()
        self.busy, self.is_new, self.has_head = True, False, False
        self._all_sent = Event()
        data, self._buffer = self._buffer, b""
        self.path.serve_general(self, data)

    def take_back(self, data: bytes) -> None:
        """Resumes after an answer of the general path, which read `data` beyond its request."""
        self._buffer, self._all_sent = data, None
        self._await_request()

    @property
    def is_receiving(self) -> bool:
        return not self.busy and bool(self._buffer)

    def announce_end(self) -> None:
        """Leaves a request whose body is incomplete to the general path, which waits for the rest.

        The answer to the next request contains `Connection: close`.
        """
        if self.has_head and not self.busy:
            self.leave_to_general()

    def leave(self) -> None:
        self.announce_end()

    def client_gone(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            source.leave()
        self.close()

    def close(self) -> None:
        """Closes the socket; a running answer is discarded."""
        if self.is_open:
            self._forget()
            self.unwatch()
            self.catch_up()
            self._end_answer()
            self.client.close()
            if self._all_sent is not None:
                self._all_sent.set()

    def look(self, now_s: float) -> None:
        """Closes an idle connection; leaves a request whose body is late to the general path."""
        if self.busy:
            return
        if now_s - self.since_s > self.path.idle_s:
            self.close()
        elif self.has_head and now_s - self.since_s > BODY_PATIENCE_S:
            self.leave_to_general()
