"""A client's connection of HTTP/1.1 that waits for requests; subclasses answer them."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import gevent.socket
from gevent.event import Event

from app.core.server.gunicorn.fair_turns import ConnectionCost
from app.core.server.gunicorn.heads import MAX_HEAD_BYTES, RequestHead, has_bare_line_feed
from app.core.server.gunicorn.hub_connection import Address, FastPath, HubConnection
from app.core.server.http.client_connection import CLOSE_WAIT, ESTABLISHED, tcp_state

LINE_ENDS = b"\r\n"
HTTP2_START = b"PRI "
"""First bytes of an HTTP/2 connection; no request of HTTP/1.1 begins with them."""
BODY_PATIENCE_S = 0.25
"""Seconds until an incomplete body is left to the general path."""


class RequestConnection(HubConnection):
    """Reads requests, one at a time, and leaves unusual ones to the general path.

    It is `busy` until the last byte of an answer is sent, on the general path, too.
    """

    __slots__ = ("_all_sent", "_buffer", "_gone", "bound", "has_head")

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
        self._reader.start(self.read)

    def _answer(self, head: RequestHead, body: bytes, following: bytes) -> None:
        """Starts the answer. `following`: bytes after the request."""
        raise NotImplementedError

    def watch(self, gone: Callable[[], None]) -> None:
        """Calls `gone` as soon as the client closes or resets the connection.

        The watcher that reads requests stays active: another one would take three system calls for
        each stream.
        """
        self._gone = gone
        if not self._reader.active:
            self._reader.start(self.read)

    def unwatch(self) -> None:
        """Ends `watch`."""
        self._gone = None
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


def has_left(sock: socket.socket, has_tls: bool) -> bool:
    """Returns whether the client of a new connection has disconnected without a full request.

    A client of HTTP/1.1 may close its side after a request, and still read the answer. One of
    HTTP/2 or TLS is unable to complete its start.
    """
    state = tcp_state(sock)
    if state != CLOSE_WAIT or has_tls:
        return state != ESTABLISHED
    start = sock.recv(len(HTTP2_START), socket.MSG_PEEK)
    return not start or start == HTTP2_START
