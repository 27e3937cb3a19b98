"""A connection of HTTP/2 in the hands of the hub: frames of the client in, calls made, their answers out."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from socket import MSG_PEEK
from typing import ParamSpec, Protocol

import gevent

from app.api.errors import as_api_error, forget_frames
from app.http.connection import READ, Connection, GeventSocket, Watcher
from app.http.rpc import RpcResponse, error_response
from app.server.fast.path import FastPath
from app.server.http2 import frames
from app.server.http2.call import RpcCall
from app.server.http2.each import EachCall
from app.server.http2.frames import HEAD, HEAD_BYTES, PREFACE, ConnectionFailed, Reason
from app.server.http2.heads import UNSUPPORTED, read_headers
from app.server.http2.hpack import HeaderDecoder, HeaderError
from app.server.http2.outbox import Outbox
from app.server.http2.turns import SLICE_S, Chores, Timers, Turns

P = ParamSpec("P")

MOST_CALLS = 1 << 14
"""At a time on one connection."""
MOST_BLOCK_BYTES = 1 << 14
"""Of a header block as it comes."""
MOST_RESETS = 2000
"""Calls that a client may give up between two looks at it, a fifth of a second."""
PER_HEADER = 100
"""Bytes that a header takes besides its name and value."""
WINDOW = 1 << 22
"""Bytes of requests that may be on their way on one connection."""
BUFFERED_MESSAGES = 4
"""So many of the longest messages may be incomplete at the same time on one connection."""


class Connections(Protocol):
    """The connections of a worker, as one of them knows them."""

    @property
    def path(self) -> FastPath: ...

    def forget(self, connection: Http2Connection, /) -> bool: ...

    def has(self, connection: Http2Connection, /) -> bool: ...


class Http2Connection:
    """One client's connection, which is HTTP/2 from its beginning. See `FastConnection`, which gave it up."""

    __slots__ = (
        *("_all", "_block", "_connection", "_decoder", "_in", "_initial_window", "_is_behind", "_is_leaving"),
        "_last_id",
        *("_methods", "_reader", "_resets", "_settled", "_timers", "_turns", "_unanswered", "address"),
        *("buffered", "calls", "chores", "client", "hungry", "is_new", "most_buffered_bytes"),
        *("most_message_bytes", "outbox", "path", "since_s", "stalled"),
    )
    has_head = False

    def __init__(self, among: Connections, client: GeventSocket, address: tuple[str, int]) -> None:
        self._all, self.path = among, among.path
        self.client, self.address = client, address
        rpc = among.path.rpc
        assert rpc is not None  # or nobody would have come here
        self._methods, self.most_message_bytes = rpc.methods, rpc.most_message_bytes
        self.most_buffered_bytes = BUFFERED_MESSAGES * (self.most_message_bytes + WINDOW)
        self.buffered = 0
        """Bytes of requests that are not all there, and of headers of all calls."""
        self.calls: dict[int, RpcCall] = {}
        self.stalled: dict[RpcCall, None] = {}
        """Those whose client gives no room for what they say, the first one first."""
        self.hungry: dict[RpcCall, None] = {}
        """Those of them that wait for the connection's window, as their own is open."""
        self._connection = Connection(client)
        self.outbox = Outbox(self._connection, among.path.batcher, self.close, self._has_room)
        self._decoder = HeaderDecoder()
        self._in = b""
        self._settled = False
        self._initial_window = frames.WINDOW
        self._last_id = self._resets = self._unanswered = 0
        self._block: tuple[int, int, bytes] | None = None
        """Stream, flags and begin of a header block that goes on in the next frame."""
        self._timers = Timers()
        self._turns = Turns(self._timers, lambda: not self.outbox.blocked and among.has(self))
        self.chores = Chores(self._timers, self.guarded)
        self._is_leaving = self._is_behind = False
        self.is_new = True
        """No call has come yet."""
        self.since_s = time.monotonic()
        self._reader: Watcher = gevent.get_hub().loop.io(self._connection.fileno(), READ)

    def begin(self, data: bytes) -> None:
        """Take over: `data` is what has come so far."""
        most = self.most_message_bytes + HEAD_BYTES
        told = {
            frames.MAX_CONCURRENT_STREAMS: MOST_CALLS,
            frames.INITIAL_WINDOW_SIZE: most + WINDOW,
            frames.MAX_HEADER_LIST_SIZE: MOST_BLOCK_BYTES,
        }
        self._reader.start(self._readable)
        self.outbox.put(frames.settings_frame(told) + frames.window_update(0, WINDOW - frames.WINDOW))
        self._take(data)

    # What the client says.

    def _readable(self) -> None:
        received = self.path.received
        try:
            data = received[: self.client._sock.recv_into(received)].tobytes()
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._take(data)
        else:
            self.close()

    def _take(self, data: bytes) -> None:
        self._in = self._in + data if self._in else data
        self.guarded(self._read)

    def guarded(self, work: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Do what may find out that the connection cannot go on."""
        try:
            work(*args, **kwargs)
        except ConnectionFailed as failed:
            self._fail(failed.reason, str(failed))
        except HeaderError as error:
            self._fail(Reason.COMPRESSION_ERROR, str(error))

    def _read(self) -> None:
        """Take the frames that are there, for a while."""
        data, at, until_s = self._in, 0, time.monotonic() + SLICE_S
        if not self._settled:
            if not data.startswith(PREFACE[: len(data)]):
                raise ConnectionFailed(Reason.PROTOCOL_ERROR, "no preface of HTTP/2")
            if len(data) < len(PREFACE) + HEAD_BYTES:
                return
            at = len(PREFACE)
            if data[at + 3] != frames.SETTINGS or data[at + 4] & frames.ACK:
                raise ConnectionFailed(Reason.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            self._settled = True
        while len(data) - at >= HEAD_BYTES and self._all.has(self):
            high, low, kind, flags, stream = HEAD.unpack_from(data, at)
            size = high << 16 | low
            frames.check(kind, flags, stream & frames.MOST_WINDOW, size)
            end = at + HEAD_BYTES + size
            if end > len(data):
                break
            payload = data[at + HEAD_BYTES : end]
            at = end
            self._frame(kind, flags, stream & frames.MOST_WINDOW, payload)
            if time.monotonic() > until_s and self._all.has(self):
                self._is_behind = True
                self._reader.stop()
                self._timers.soon(self._go_on_reading)
                break
        self._in = data[at:]

    def _go_on_reading(self) -> None:
        if self._all.has(self):
            self._is_behind = False
            self._reader.start(self._readable)
            self.guarded(self._read)

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._block is not None and kind != frames.CONTINUATION:
            raise ConnectionFailed(Reason.PROTOCOL_ERROR, "a header block is broken off")
        if kind == frames.DATA:
            self._data(flags, stream, payload)
        elif kind == frames.HEADERS:
            self._headers(flags, stream, frames.unpadded(flags, payload, has_priority=True))
        elif kind == frames.CONTINUATION:
            self._continue(flags, stream, payload)
        elif kind == frames.WINDOW_UPDATE:
            self._window(stream, payload)
        elif kind == frames.RST_STREAM:
            self._reset(stream)
        elif kind == frames.SETTINGS:
            self._settings(flags, payload)
        elif kind == frames.PING and not flags & frames.ACK:
            self.outbox.put(frames.frame(frames.PING, frames.ACK, 0, payload))

    def _data(self, flags: int, stream: int, payload: bytes) -> None:
        if stream > self._last_id:
            raise ConnectionFailed(Reason.PROTOCOL_ERROR, "data of no call")
        self._unanswered += len(payload)
        if self._unanswered >= WINDOW // 2:
            self.outbox.put(frames.window_update(0, self._unanswered))
            self._unanswered = 0
        call = self.calls.get(stream)
        if call is not None and not call.has_request:
            call.take(frames.unpadded(flags, payload), bool(flags & frames.END_STREAM))

    def _headers(self, flags: int, stream: int, block: bytes) -> None:
        if flags & frames.END_HEADERS:
            self._open(flags, stream, block)
        else:
            self._block = stream, flags, block

    def _continue(self, flags: int, stream: int, payload: bytes) -> None:
        if self._block is None or self._block[0] != stream:
            raise ConnectionFailed(Reason.PROTOCOL_ERROR, "a header block goes on that never began")
        _, first, block = self._block
        block += payload
        if len(block) > MOST_BLOCK_BYTES or not payload:
            raise ConnectionFailed(Reason.ENHANCE_YOUR_CALM, "a header block is too long")
        self._block = stream, first, block
        if flags & frames.END_HEADERS:
            self._block = None
            self._open(first, stream, block)

    def _open(self, flags: int, stream: int, block: bytes) -> None:
        """A new call, or the end of what the client says in one."""
        headers = self._decoder.decode(block)
        is_end = bool(flags & frames.END_STREAM)
        if stream <= self._last_id:
            call = self.calls.get(stream)
            if call is not None and not call.has_request and is_end:
                call.take(b"", True)
            return
        if not stream & 1:
            raise ConnectionFailed(Reason.PROTOCOL_ERROR, "a client's stream has an odd number")
        self._last_id, self.is_new = stream, False
        if self._is_leaving or len(self.calls) >= MOST_CALLS:
            self.outbox.put(frames.reset(stream, Reason.REFUSED_STREAM))
            return
        self._begin_call(stream, headers, is_end)

    def _begin_call(self, stream: int, headers: list[tuple[str, str]], is_end: bool) -> None:
        found = read_headers(headers)
        if found is None:
            self.outbox.put(frames.reset(stream, Reason.PROTOCOL_ERROR))
            return
        size = sum(len(name) + len(value) + PER_HEADER for name, value in found.items())
        if self.buffered + size > self.most_buffered_bytes:
            self.outbox.put(frames.reset(stream, Reason.REFUSED_STREAM))
            return
        if found.get(":method") != "POST" or not found.get("content-type", "").startswith("application/grpc"):
            flags = frames.END_HEADERS | frames.END_STREAM
            self.outbox.put(frames.frame(frames.HEADERS, flags, stream, UNSUPPORTED))
            if not is_end:
                self.outbox.put(frames.reset(stream, Reason.NO_ERROR))
            return
        method = self._methods.get(found.setdefault(":path", ""))
        if method is not None and method.each:
            call: RpcCall = EachCall(self, stream, self._initial_window, method, found, size)
        else:
            call = RpcCall(self, stream, self._initial_window, method, found, size)
        self.calls[stream] = call
        if is_end:
            call.take(b"", True)

    def _reset(self, stream: int) -> None:
        if stream > self._last_id:
            raise ConnectionFailed(Reason.PROTOCOL_ERROR, "the end of no call")
        call = self.calls.get(stream)
        if call is not None:
            self._resets += 1
            call.gone()
        if self._resets > MOST_RESETS:
            raise ConnectionFailed(Reason.ENHANCE_YOUR_CALM, "too many calls are given up")

    def _settings(self, flags: int, payload: bytes) -> None:
        if flags & frames.ACK:
            return
        window = frames.read_settings(payload).get(frames.INITIAL_WINDOW_SIZE)
        if window is not None:
            if window > frames.MOST_WINDOW:
                raise ConnectionFailed(Reason.FLOW_CONTROL_ERROR, "a window is too large")
            more, self._initial_window = window - self._initial_window, window
            for call in list(self.calls.values()) if more else ():
                call.window += more
                if call.stalled:
                    self.chores.put(call.go_on)
        self.outbox.put(frames.frame(frames.SETTINGS, frames.ACK, 0))

    def _window(self, stream: int, payload: bytes) -> None:
        more = frames.NUMBER.unpack(payload)[0] & frames.MOST_WINDOW
        if stream == 0:
            self.outbox.window += more
            if not more or self.outbox.window > frames.MOST_WINDOW:
                raise ConnectionFailed(
                    Reason.FLOW_CONTROL_ERROR, "a window is too large, or grows by nothing"
                )
            if self.hungry:
                self.chores.put(self._feed)
        elif stream > self._last_id or not more:
            raise ConnectionFailed(Reason.PROTOCOL_ERROR, "a window of no call, or that grows by nothing")
        elif (meant := self.calls.get(stream)) is not None:
            meant.window += more
            if meant.window > frames.MOST_WINDOW:
                raise ConnectionFailed(Reason.FLOW_CONTROL_ERROR, "a window is too large")
            if meant.stalled:
                self.chores.put(meant.go_on)

    def _feed(self) -> None:
        """The connection's window has grown: one call after the other says what it has room for."""
        if self.hungry and self.outbox.window > 0:
            next(iter(self.hungry)).go_on()
            self.chores.put(self._feed)

    def ask_soon(self, call: RpcCall) -> None:
        """Ask `call` for a slice of what it has to say when it is its turn."""
        self._turns.put(call)

    def _has_room(self) -> None:
        """The socket takes bytes again: every call may have something to say."""
        for call in list(self.calls.values()):
            call.lag()

    # What the worker asks.

    def response_to(self, error: Exception) -> RpcResponse:
        """The answer to a call that raised `error`."""
        known = as_api_error(error)
        forget_frames(error)
        return error_response(known)

    def forget_call(self, call: RpcCall) -> None:
        """The call is over."""
        self.calls.pop(call.id, None)
        self.stalled.pop(call, None)
        self.hungry.pop(call, None)
        self._turns.remove(call)
        if not self.calls and self._all.has(self):
            self.since_s = time.monotonic()

    @property
    def busy(self) -> bool:
        """Calls are being answered."""
        return bool(self.calls)

    @property
    def takes_no_bytes_since_s(self) -> float | None:
        """Since when the client has taken nothing of what waits for it; None when nothing waits."""
        return self.outbox.since_s if self.outbox.blocked else None

    @property
    def has_unread(self) -> bool:
        """Bytes have arrived that nobody has read."""
        try:
            return self._is_behind or bool(self.client._sock.recv(1, MSG_PEEK))
        except OSError:
            return False

    def look(self, now_s: float) -> None:
        """End calls whose client neither asks nor reads any more."""
        self._resets = 0
        for call in list(self.stalled):
            if now_s - call.since_s < self.path.write_timeout_s:
                break
            self.chores.put(call.cut_off)
        late_s = now_s - self.path.read_timeout_s
        for late in self.calls.values():
            if not late.has_request and late.since_s < late_s:
                self.chores.put(late.give_up)

    def leave(self) -> None:
        """Calls that run go on; new ones are to be made elsewhere."""
        if not self._is_leaving:
            self._is_leaving = True
            self.guarded(self.outbox.put, frames.goaway(self._last_id, Reason.NO_ERROR))
            for call in list(self.calls.values()):
                if call.is_endless:
                    self.chores.put(call.leave)
            self.chores.do()

    def _fail(self, reason: Reason, text: str) -> None:
        self._is_leaving = True
        with suppress(ConnectionFailed):
            self.outbox.put(frames.goaway(self._last_id, reason, text))
        self.close()

    def close(self) -> None:
        """Close the socket; what is being answered is answered for nobody."""
        if not self._all.forget(self):
            return
        self.leave()
        self.outbox.close()
        self._reader.stop()
        self._reader.close()
        for call in list(self.calls.values()):
            self.chores.put(call.gone)
        self.chores.put(self._timers.close)
        self.chores.do()
        self.client.close()
