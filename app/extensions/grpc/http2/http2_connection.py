"""An HTTP/2 connection that serves gRPC calls from the hub, in fair turns."""

import time
from functools import partial

import gevent.socket
from h2 import events
from h2.errors import ErrorCodes

from app.core.base.overload import MemoryExceededError, MemoryFullError
from app.core.server.gunicorn.fair_turns import Work
from app.core.server.gunicorn.hub_connection import Address, FastPath
from app.extensions.grpc.http2.call_transport import CallTransport
from app.extensions.grpc.http2.greeting import Http2Greeting
from app.extensions.grpc.http2.limits import (
    ACK,
    CONTINUATION,
    FRAME_HEAD,
    GOAWAY,
    HEAD_BYTES,
    HEADERS,
    MAX_CALLS,
    MAX_FRAME_BYTES,
    MAX_HEADER_BYTES,
    SETTINGS,
)
from app.extensions.grpc.http2.protocol import ConnectionFailedError, Headers, read_headers
from app.extensions.grpc.http2.rpc_call import RpcCall

SLICE_S = 0.001
"""Most work for one connection in a row, in seconds: a quarter of a turn of the loop."""
END_HEADERS = 0x4
MAX_STREAM_ID = 2**31 - 1
"""Greatest id of a stream; the bits of the id in a frame's head."""
MIN_GOAWAY_BYTES = 8
HEADER_OVERHEAD_BYTES = 100
"""Estimated memory of a header besides its name and value, in bytes."""
MAX_RESETS = 2000
"""Most stream resets in a burst."""
RESETS_FORGIVEN = 100
"""Resets deducted at each check of a connection, every fifth of a second."""
MAX_SETTINGS = 64
"""Most settings stored for a client, unknown ones included."""
UNSUPPORTED: Headers = [(b":status", b"415"), (b"content-type", b"text/plain")]
"""The answer to requests that are not gRPC calls (grpc/doc/PROTOCOL-HTTP2.md)."""


class Http2Connection(CallTransport):
    """One client's HTTP/2 connection with prior knowledge, taken over from an `Http2Greeting`."""

    calls: dict[int, RpcCall]
    stalled: dict[RpcCall, None]

    def __init__(
        self,
        path: FastPath,
        client: gevent.socket.socket,
        address: Address,
        *,
        greeted: bytes,
        unread: bytes,
    ) -> None:
        """`greeted`: see `ServerProtocol`. `unread`, the bytes after them, wait for a turn."""
        rpc = None if path.app is None else path.app.rpc
        assert rpc is not None  # only a server with gRPC upgrades
        super().__init__(path, client, address, rpc=rpc, greeted=greeted)
        self._methods = rpc.methods
        self._unread = unread
        self._turn: list[Work] = []
        """Reading that waits for a turn; empty without."""
        self._has_announced_end = False
        self._reset_count = 0
        self._block_bytes = 0
        """Size of an unfinished header block, with the heads of its frames."""
        self._wait_for_turn()

    @classmethod
    def take_over(cls, greeting: Http2Greeting) -> None:
        """Continues the connection of a client that makes its first call."""
        greeted, unread, refuses_calls = greeting.release()
        connection = cls(
            greeting.path, greeting.client, greeting.address, greeted=greeted, unread=unread
        )
        if refuses_calls:
            connection.refuse_requests()

    def _readable(self) -> None:
        if self.path.turns.has_time():
            self._unread += self._receive()
            self.run_guarded(self._read)
        else:
            self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        self._reader.stop()
        work = partial(self.run_guarded, self._continue_reading)
        self._turn = self.path.turns.schedule(self.cost, work)

    def _continue_reading(self) -> None:
        self._turn = []
        if self.is_closed_by_client:  # no client would read the answers
            self.close()
        elif self.is_open:
            self._reader.start(self._readable)
            if len(self._unread) < MAX_FRAME_BYTES + HEAD_BYTES:
                self._unread += self._receive()
            self._read()

    def _read(self) -> None:
        data = self._unread
        offset = 0
        until_s = time.monotonic() + SLICE_S
        while self.is_open and len(data) - offset >= HEAD_BYTES:
            high, low, kind, flags, stream_id = FRAME_HEAD.unpack_from(data, offset)
            size = high << 16 | low
            # h2 would wait for the first of these, and refuse the other with the wrong error.
            is_long_ack = kind == SETTINGS and flags & ACK and size
            if size > MAX_FRAME_BYTES or is_long_ack:
                raise ConnectionFailedError(ErrorCodes.FRAME_SIZE_ERROR, "a frame is too long")
            end = offset + HEAD_BYTES + size
            if end > len(data):
                break
            frame = data[offset:end]
            offset = end
            self.budget.charge(kind=kind, flags=flags, size=size, call_count=len(self.calls))
            # After a valid GOAWAY, h2 would take no more frames; its client still waits for
            # answers. h2 refuses a GOAWAY that is not valid.
            is_valid_goaway = (
                kind == GOAWAY
                and not stream_id & MAX_STREAM_ID
                and size >= MIN_GOAWAY_BYTES
                and not self._block_bytes
            )
            if not is_valid_goaway:
                self._process(kind, flags, frame)
            if time.monotonic() > until_s and self.is_open:
                self._wait_for_turn()
                break
        self._unread = data[offset:]

    def _process(self, kind: int, flags: int, frame: bytes) -> None:
        if kind in (HEADERS, CONTINUATION):
            self._block_bytes += len(frame)
            if self._block_bytes > MAX_HEADER_BYTES + HEAD_BYTES:
                raise ConnectionFailedError(
                    ErrorCodes.ENHANCE_YOUR_CALM, "a header block is too long"
                )
            if flags & END_HEADERS:
                self._block_bytes = 0
        for event in self.h2.receive_data(frame):
            self._handle(event)
        self.send_pending()

    def _handle(self, event: events.Event) -> None:
        if isinstance(event, events.RequestReceived):
            self._begin_call(event)
            return
        call = self.calls.get(getattr(event, "stream_id", None) or 0)
        if isinstance(event, events.DataReceived):
            self.h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id)
            if call is not None:
                call.receive(event.data, is_end=event.stream_ended is not None)
        elif isinstance(event, events.TrailersReceived) and call is not None:
            if read_headers(event.headers, is_trailer=True) is None:
                call.cut_off(ErrorCodes.PROTOCOL_ERROR)
            else:
                call.receive(b"", is_end=True)
        elif isinstance(event, events.WindowUpdated) and call is not None:
            call.wake.set()
        elif isinstance(event, events.WindowUpdated | events.RemoteSettingsChanged):
            if len(self.h2.remote_settings) > MAX_SETTINGS:
                raise ConnectionFailedError(
                    ErrorCodes.ENHANCE_YOUR_CALM, "too many settings were sent"
                )
            self._wake_stalled()
        elif isinstance(event, events.StreamReset):
            self._count_reset(call)

    def _count_reset(self, call: RpcCall | None) -> None:
        self._reset_count += 1
        if call is not None:
            call.end()
        if self._reset_count > MAX_RESETS:
            raise ConnectionFailedError(ErrorCodes.ENHANCE_YOUR_CALM, "too many stream resets")

    def _begin_call(self, event: events.RequestReceived) -> None:
        stream_id = event.stream_id
        is_end = event.stream_ended is not None
        self.is_new = False
        headers = read_headers(event.headers)
        if headers is None:
            self.reset(stream_id, ErrorCodes.PROTOCOL_ERROR)
            return
        size = sum(
            len(name) + len(value) + HEADER_OVERHEAD_BYTES for name, value in headers.items()
        )
        content_type = headers.get("content-type", "")
        has_room = self.buffered + size <= self.max_buffered_bytes and len(self.calls) < MAX_CALLS
        if self._refuses_calls or not has_room:
            self.reset(stream_id, ErrorCodes.REFUSED_STREAM)
        elif headers[":method"] != "POST" or not content_type.startswith("application/grpc"):
            self.send_headers(stream_id, UNSUPPORTED, ends=True)
            if not is_end:
                self.reset(stream_id, ErrorCodes.NO_ERROR)
        else:
            try:
                call = RpcCall(
                    self,
                    self.h2.streams[stream_id],
                    method=self._methods.get(headers[":path"]),
                    headers=headers,
                    size=size,
                )
            except (MemoryFullError, MemoryExceededError):
                self.reset(stream_id, ErrorCodes.REFUSED_STREAM)
                return
            self.busy = True
            self.calls[stream_id] = call
            if is_end:
                call.receive(b"", is_end=True)

    def _wake_stalled(self) -> None:
        for call in self.stalled:
            call.wake.set()

    def catch_up(self) -> None:
        """Stops lagging, and lets waiting calls send."""
        super().catch_up()
        self._wake_stalled()

    @property
    def has_unread(self) -> bool:
        """True if bytes have arrived that are not read yet."""
        return bool(self._turn) or super().has_unread

    def enforce_limits(self, now_s: float) -> None:
        """Ends an idle or slow connection, and calls whose client neither sends nor reads in time.

        Closes the connection of a client that has disconnected, whose frames may be unread for
        minutes.
        """
        is_overdue = not self.busy and self.is_overdue(now_s)
        if is_overdue or (self._turn and self.is_closed_by_client):
            self.close()
            return
        self.budget.forgive()
        self._reset_count = max(0, self._reset_count - RESETS_FORGIVEN)
        for call in list(self.stalled):
            if now_s - call.since_s < self.path.client_timeout_s:
                break
            self.schedule(call.cut_off)
        late_s = now_s - self.path.client_timeout_s
        for call in self.calls.values():
            if not call.has_request and call.since_s < late_s:
                self.schedule(call.expire)

    @property
    def is_receiving(self) -> bool:
        """True if a part of a frame or of a header block has arrived."""
        return bool(self._unread or self._block_bytes)

    def announce_end(self) -> None:
        """Asks for no new calls by a GOAWAY without a last stream (RFC 9113, section 6.8).

        Calls that the client sent before it reads this frame are served. Endless calls end.
        A connection without any call yet is left alone.
        """
        if not (self.is_new or self._has_announced_end or self._refuses_calls):
            self._has_announced_end = True
            self.run_guarded(self._send_goaway, ErrorCodes.NO_ERROR, last_stream_id=MAX_STREAM_ID)
            self._end_endless_calls()

    def refuse_requests(self) -> None:
        """Refuses new calls by GOAWAY; running calls continue, endless ones end."""
        if not self._refuses_calls:
            self._refuses_calls = True
            self.run_guarded(self._send_goaway, ErrorCodes.NO_ERROR)
            self._end_endless_calls()

    def _end_endless_calls(self) -> None:
        for call in list(self.calls.values()):
            self.schedule(call.shut_down)

    def close(self) -> None:
        """Sends the bytes that the socket takes at once, and closes it.

        Answers of running calls are lost.
        """
        if self not in self.path.connections:
            return
        del self.path.connections[self]
        self.refuse_requests()
        self.flush()
        self._unregister()
        self.catch_up()
        self._parts.clear()
        self._turn.clear()
        self._unread = b""
        self.h2.end()
        self.client.close()
        for call in list(self.calls.values()):
            self.schedule(call.end)
