"""An HTTP/2 connection served from the hub: reads frames in fair turns, and creates calls."""

from __future__ import annotations

import time

import gevent.socket
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)

from app.serving.gunicorn.connections import Address, FastPath
from app.serving.gunicorn.http2.call import (
    FRAME_HEAD,
    MOST_FRAME_BYTES,
    SLICE_S,
    CallTransport,
    Headers,
    RpcCall,
)
from app.serving.gunicorn.http2.protocol import MOST_CALLS, MOST_HEADER_BYTES, ConnectionFailed, read_headers

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""First bytes of a client with prior knowledge of HTTP/2 (RFC 9113, section 3.4)."""
HEAD_BYTES = FRAME_HEAD.size
HEADERS, SETTINGS, GOAWAY, CONTINUATION = 0x1, 0x4, 0x7, 0x9
ACK, END_HEADERS = 0x1, 0x4
STREAM_BITS = 2**31 - 1
PER_HEADER = 100
"""Estimated memory of a header besides its name and value, in bytes."""
MOST_RESETS = 2000
"""Most stream resets in a burst."""
RESETS_FORGIVEN = 100
"""Resets deducted at each check of a connection, every fifth of a second."""
MOST_SETTINGS = 64
"""Most settings kept for a client, unknown ones included."""
UNSUPPORTED: Headers = [(b":status", b"415"), (b"content-type", b"text/plain")]
"""The answer to requests that are no gRPC calls (grpc/doc/PROTOCOL-HTTP2.md)."""


class Http2Connection(CallTransport):
    """One client's HTTP/2 connection with prior knowledge, taken over from a `FastConnection`."""

    def __init__(self, path: FastPath, client: gevent.socket.socket, address: Address, data: bytes) -> None:
        """`data`, all bytes so far, is read in this connection's turn."""
        rpc = path.rpc
        assert rpc is not None  # only a server with gRPC upgrades
        super().__init__(path, client, address, rpc)
        self._methods = rpc.methods
        self._in = data
        self._settled = self._is_behind = False
        self._resets = self._block_bytes = 0
        """`_block_bytes`: size of an unfinished header block, with the heads of its frames."""
        self.send_pending()
        self._wait()

    def _readable(self) -> None:
        if not self.path.turns.has_time():
            self._wait()
        elif data := self._receive():
            self._in = self._in + data if self._in else data
            self.guarded(self._read)

    def _wait(self) -> None:
        self._is_behind = True
        self._reader.stop()
        self.soon(self._go_on)

    def _go_on(self) -> None:
        if not self.is_open:
            return
        self._is_behind = False
        self._reader.start(self._readable)
        if self._in:
            self._read()
        if self.is_open and not self._is_behind and (data := self._receive()):
            self._in += data
            self._read()

    def _read(self) -> None:
        data, at, until_s = self._in, 0, time.monotonic() + SLICE_S
        if not self._settled:
            if not self._settle(data):
                return
            at = len(PREFACE)
        while self.is_open and len(data) - at >= HEAD_BYTES:
            high, low, kind, flags, stream = FRAME_HEAD.unpack_from(data, at)
            size = high << 16 | low
            # h2 would wait for the first of these, and refuse the other with the wrong error.
            if size > MOST_FRAME_BYTES:
                raise ConnectionFailed(ErrorCodes.FRAME_SIZE_ERROR, "a frame is too long")
            if kind == SETTINGS and flags & ACK and size:
                raise ConnectionFailed(ErrorCodes.FRAME_SIZE_ERROR, "an acknowledgement has a payload")
            end = at + HEAD_BYTES + size
            if end > len(data):
                break
            frame, at = data[at:end], end
            # After a GOAWAY, h2 would take no more frames; its client still waits for answers.
            if kind != GOAWAY or stream & STREAM_BITS or size < 8 or self._block_bytes:
                self._take(kind, flags, frame)
            if time.monotonic() > until_s and self.is_open:
                self._wait()
                break
        self._in = data[at:]

    def _settle(self, data: bytes) -> bool:
        if not data.startswith(PREFACE[: len(data)]):
            raise ConnectionFailed(ErrorCodes.PROTOCOL_ERROR, "no preface of HTTP/2")
        if len(data) < len(PREFACE) + HEAD_BYTES:
            return False
        _, _, kind, flags, _ = FRAME_HEAD.unpack_from(data, len(PREFACE))
        if kind != SETTINGS or flags & ACK:
            raise ConnectionFailed(ErrorCodes.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        self.h2.receive_data(PREFACE)
        self._settled = True
        return True

    def _take(self, kind: int, flags: int, frame: bytes) -> None:
        if kind in (HEADERS, CONTINUATION):
            self._block_bytes += len(frame)
            if self._block_bytes > MOST_HEADER_BYTES + HEAD_BYTES:
                raise ConnectionFailed(ErrorCodes.ENHANCE_YOUR_CALM, "a header block is too long")
            if flags & END_HEADERS:
                self._block_bytes = 0
        for event in self.h2.receive_data(frame):
            self._do(event)
        self.send_pending()

    def _do(self, event: Event) -> None:
        if isinstance(event, RequestReceived):
            self._begin_call(event)
            return
        call = self.calls.get(getattr(event, "stream_id", None) or 0)
        if isinstance(event, DataReceived):
            self.h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id)
            if call is not None:
                call.take(event.data, event.stream_ended is not None)
        elif isinstance(event, TrailersReceived) and call is not None:
            if read_headers(event.headers, is_trailer=True) is None:
                self.reset(call.id, ErrorCodes.PROTOCOL_ERROR)
                call.gone()
            else:
                call.take(b"", True)
        elif isinstance(event, WindowUpdated):
            if call is not None:
                self.soon(call.go_on)
            elif not event.stream_id:
                self.soon(self._feed)
        elif isinstance(event, RemoteSettingsChanged):
            if len(self.h2.remote_settings) > MOST_SETTINGS:
                raise ConnectionFailed(ErrorCodes.ENHANCE_YOUR_CALM, "too many settings")
            self.soon(self._feed)
        elif isinstance(event, StreamReset):
            self._resets += 1
            if call is not None:
                call.gone()
            if self._resets > MOST_RESETS:
                raise ConnectionFailed(ErrorCodes.ENHANCE_YOUR_CALM, "too many calls are given up")

    def _begin_call(self, event: RequestReceived) -> None:
        stream, is_end = event.stream_id, event.stream_ended is not None
        self.is_new = False
        found = read_headers(event.headers)
        if found is None:
            self.reset(stream, ErrorCodes.PROTOCOL_ERROR)
            return
        size = sum(len(name) + len(value) + PER_HEADER for name, value in found.items())
        has_room = self.buffered + size <= self.most_buffered_bytes and len(self.calls) < MOST_CALLS
        if self._is_leaving or not has_room:
            self.reset(stream, ErrorCodes.REFUSED_STREAM)
            return
        if found[":method"] != "POST" or not found.get("content-type", "").startswith("application/grpc"):
            self.send_headers(stream, UNSUPPORTED, ends=True)
            if not is_end:
                self.reset(stream, ErrorCodes.NO_ERROR)
            return
        method = self._methods.get(found[":path"])
        call = self.calls[stream] = RpcCall(self, self.h2.streams[stream], method, found, size)
        self.busy = True
        if is_end:
            call.take(b"", True)

    def _feed(self) -> None:
        for call in list(self.stalled):
            call.go_on()

    def catch_up(self) -> None:
        super().catch_up()
        if self.is_open:
            for call in self.calls.values():
                self.soon(call.lag)

    @property
    def has_unread(self) -> bool:
        return self._is_behind or super().has_unread

    def look(self, now_s: float) -> None:
        """Ends an idle connection, and calls whose client neither sends nor reads in time."""
        if not self.busy and now_s - self.since_s > self.path.idle_s:
            self.close()
            return
        self._resets = max(0, self._resets - RESETS_FORGIVEN)
        for call in list(self.stalled):
            if now_s - call.since_s < self.path.write_timeout_s:
                break
            self.soon(call.cut_off)
        late_s = now_s - self.path.read_timeout_s
        for late in self.calls.values():
            if not late.has_request and late.since_s < late_s:
                self.soon(late.give_up)

    def leave(self) -> None:
        """Refuses new calls by GOAWAY; running calls go on, endless ones end."""
        if not self._is_leaving:
            self._is_leaving = True
            self.guarded(self._say_goodbye, ErrorCodes.NO_ERROR)
            for call in list(self.calls.values()):
                self.soon(call.shut_down)
            self._work()

    def close(self) -> None:
        """Sends the bytes that the socket takes at once, and closes it; answers of running calls are lost."""
        if self not in self.path.open:
            return
        del self.path.open[self]
        self.leave()
        self.flush()
        self._forget()
        self.catch_up()
        self._parts.clear()
        self.client.close()
        for call in list(self.calls.values()):
            self.soon(call.gone)
        self._work()
