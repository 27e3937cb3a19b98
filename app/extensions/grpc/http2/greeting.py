"""The start of an HTTP/2 connection, before its first call: `Http2Greeting`.

The tables and windows of a connection take 15 KiB and 0.2 ms. A client that connects, sends its
preface and disconnects, as port scanners and load balancers do, would cost that much each time. A
greeting therefore answers the first frames by constant bytes, and notices when the client
disconnects. `Http2Connection` takes over with the first frame that needs more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from app.core.server.gunicorn.fair_turns import TURN_S, ConnectionCost
from app.core.server.gunicorn.hub_connection import Address, FastPath, HubConnection
from app.extensions.grpc.http2.limits import (
    ACK,
    FRAME_HEAD,
    GOAWAY,
    HEAD_BYTES,
    INITIAL_WINDOW_BYTES,
    MAX_WINDOW_BYTES,
    PING,
    SETTINGS,
    WINDOW_UPDATE,
    are_valid_settings,
    frame,
    server_preface,
)

if TYPE_CHECKING:
    import gevent.socket

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""First bytes of a client with prior knowledge of HTTP/2 (RFC 9113, section 3.4)."""
MAX_GREETING_BYTES = 400
"""Most bytes that are kept for `Http2Connection`: the preface and the frames that it repeats.

A usual client sends 100. These are fewer than 64 settings, and take h2 less than 2 ms.
"""
GREETING_KINDS = (SETTINGS, PING, WINDOW_UPDATE)
"""Kinds of frames that clients send before their first call."""
PING_BYTES = 8
INCREMENT_BYTES = 4
"""Sizes of the payloads of PING and WINDOW_UPDATE."""
PROTOCOL_ERROR = 0x1
"""Code of a GOAWAY frame for a client that violates the protocol (RFC 9113, section 7)."""


class Http2Greeting(HubConnection):
    """A client of HTTP/2 that has made no call yet, taken over from a `FastConnection`."""

    __slots__ = (
        "_greeted_bytes",
        "_received",
        "_refuses_calls",
        "_take_over",
        "_waits",
        "_window",
    )

    def __init__(
        self,
        path: FastPath,
        client: gevent.socket.socket,
        address: Address,
        data: bytes,
        *,
        max_message_bytes: int,
        take_over: Callable[[Http2Greeting], object],
    ) -> None:
        """`data`: all bytes so far.

        `take_over` is called in a turn of the connection when a frame needs its state, unless the
        client has disconnected. It calls `release`, now or later.
        """
        super().__init__(path, client, address, cost=ConnectionCost())
        self._take_over = take_over
        self._received = b""
        self._greeted_bytes = 0
        """Size of the preface and the frames that are answered, in bytes."""
        self._window = INITIAL_WINDOW_BYTES
        """The client's flow-control window for the connection, in bytes."""
        self._waits = False
        """True from the first frame that needs the connection's state."""
        self._refuses_calls = False
        self.put(server_preface(max_message_bytes))
        self._reader.start(self._readable)
        self._read_on(data)

    def _readable(self) -> None:
        if self.path.turns.has_time():
            self._read()
        else:
            self._reader.stop()
            self.path.turns.schedule(self.cost, self._read_in_turn)

    def _read_in_turn(self) -> None:
        if self.is_open:
            self._reader.start(self._readable)
            self._read()

    def _read(self) -> None:
        data = self._receive()
        if data:
            self._read_on(data)

    def _read_on(self, data: bytes) -> None:
        self._received += data
        data = self._received
        if not self._greeted_bytes:
            if len(data) < len(PREFACE) + HEAD_BYTES:
                return
            _, _, kind, flags, _ = FRAME_HEAD.unpack_from(data, len(PREFACE))
            if not data.startswith(PREFACE) or kind != SETTINGS or flags & ACK:
                self._fail(b"the connection must start with the preface and SETTINGS")
                return
            self._greeted_bytes = len(PREFACE)
        while len(data) - self._greeted_bytes >= HEAD_BYTES:
            size = self._answer_frame(data)
            if size is None:
                self._wait_for_take_over()
                return
            if not size:
                return
            self._greeted_bytes += size

    def _answer_frame(self, data: bytes) -> int | None:
        """Answers the next frame.

        Returns its size, 0 if it is incomplete, or None if it needs the connection's state.
        """
        start = self._greeted_bytes
        high, low, kind, flags, stream_id = FRAME_HEAD.unpack_from(data, start)
        end = start + HEAD_BYTES + low
        if high or stream_id or end > MAX_GREETING_BYTES or kind not in GREETING_KINDS:
            return None
        if end > len(data):
            return 0
        payload = data[start + HEAD_BYTES : end]
        is_answered = False
        if flags:
            is_answered = kind == SETTINGS and flags == ACK and not payload
        elif kind == SETTINGS and are_valid_settings(payload):
            self.put(frame(SETTINGS, ACK))
            is_answered = True
        elif kind == PING and len(payload) == PING_BYTES:
            self.put(frame(PING, ACK, payload))
            is_answered = True
        elif kind == WINDOW_UPDATE and len(payload) == INCREMENT_BYTES:
            is_answered = self._widen(int.from_bytes(payload, "big"))
        if not is_answered:
            return None
        size: int = HEAD_BYTES + low
        return size

    def _widen(self, increment: int) -> bool:
        """Counts an increment of the client's window; returns False if it is not valid."""
        self._window += increment
        return increment > 0 and self._window <= MAX_WINDOW_BYTES

    def _fail(self, reason: bytes) -> None:
        payload = bytes(4) + PROTOCOL_ERROR.to_bytes(4, "big") + reason
        self._refuses_calls = True
        self.put(frame(GOAWAY, 0, payload))
        self.close()

    def _wait_for_take_over(self) -> None:
        self._waits = True
        self._reader.stop()
        self.continue_with(self._take_over)

    def continue_with(self, take_over: Callable[[Http2Greeting], object]) -> None:
        """Calls `take_over` in a turn of long work, unless the client disconnects before."""
        self._take_over = take_over
        self.path.turns.schedule(ConnectionCost(TURN_S), self._continue_in_turn)

    def _continue_in_turn(self) -> None:
        self.flush()
        # A client whose socket takes no 100 bytes at the start does not read.
        if self.lags:
            self.close()
        elif self.is_open:
            if self.is_closed_by_client:
                self.end_of_requests()
            else:
                self._take_over(self)

    def release(self) -> tuple[bytes, bytes, bool]:
        """Leaves the socket to an `Http2Connection`.

        Returns the bytes that are answered, the bytes after them, and whether calls are refused.
        """
        self._unregister()
        data = self._received
        return data[: self._greeted_bytes], data[self._greeted_bytes :], self._refuses_calls

    @property
    def has_unread(self) -> bool:
        """True if bytes have arrived that are not read yet, or a call waits for its turn."""
        return self._waits or super().has_unread

    @property
    def is_receiving(self) -> bool:
        """True if a part of a frame has arrived."""
        return len(self._received) > self._greeted_bytes

    def enforce_limits(self, now_s: float) -> None:
        """Closes the connection of a client that is idle or slow, or has disconnected meanwhile."""
        if self._waits and self.is_closed_by_client:
            self.end_of_requests()
        elif not self._waits and self.is_overdue(now_s):
            self.close()

    def announce_end(self) -> None:
        """Leaves the connection alone: its client may be about to make its first call."""

    def refuse_requests(self) -> None:
        """Refuses calls by GOAWAY."""
        if not self._refuses_calls:
            self._refuses_calls = True
            self.put(frame(GOAWAY, 0, bytes(8)))

    def end_of_requests(self) -> None:
        """Closes the connection; sends nothing to a client that has disconnected."""
        self._refuses_calls = True
        self._parts.clear()
        self.close()

    def close(self) -> None:
        """Sends the bytes that the socket takes at once, and closes it."""
        if self.is_open:
            self.refuse_requests()
            self.flush()
            self._unregister()
            self._parts.clear()
            self._received = b""
            self.catch_up()
            self.client.close()
