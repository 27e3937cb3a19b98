"""An HTTP/2 connection served from the hub: reads frames, creates calls, sends answers in fair turns.

h2 keeps the state of the protocol. DATA frames are written without h2, which takes tens of microseconds per
frame, but with h2's flow-control windows. All bytes of one turn of the loop leave in one piece.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from struct import Struct
from typing import ParamSpec

from h2.config import H2Configuration
from h2.connection import H2Connection
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
from h2.exceptions import DenialOfServiceError, ProtocolError
from h2.settings import SettingCodes, Settings
from h2.stream import H2Stream
from hpack import Decoder
from hpack.exceptions import HPACKDecodingError, HPACKError
from hpack.struct import HeaderTuple
from hyperframe.frame import GoAwayFrame

from app.serving.gunicorn.connections import HubConnection
from app.serving.gunicorn.fair_turns import TURN_S, Share
from app.serving.gunicorn.fast.path import FastPath
from app.serving.gunicorn.http2.call import Headers, RpcCall, read_headers
from app.serving.http.connection import GeventSocket
from app.serving.http.rpc import PREFIX_BYTES

P = ParamSpec("P")
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""First bytes of a client with prior knowledge of HTTP/2 (RFC 9113, section 3.4)."""
FRAME_HEAD = Struct(">BHBBL")
"""High and low part of the payload's size, kind, flags and stream (RFC 9113, section 4.1)."""
HEAD_BYTES = FRAME_HEAD.size
DATA, HEADERS, SETTINGS, GOAWAY, CONTINUATION = 0x0, 0x1, 0x4, 0x7, 0x9
ACK, END_HEADERS = 0x1, 0x4
STREAM_BITS = 2**31 - 1
MOST_FRAME_BYTES = 1 << 14
"""Largest payload of a frame by default, in bytes, for both sides."""
MOST_CALLS = 1 << 14
"""Most concurrent calls on one connection."""
MOST_HEADER_BYTES = 1 << 14
"""Most bytes of a call's encoded headers."""
MOST_DECODED_BYTES = 1 << 15
"""Most bytes of a call's decoded headers, with 32 for each header."""
PER_HEADER = 100
"""Estimated memory of a header besides its name and value, in bytes."""
MOST_CLOSED_STREAMS = 1000
"""Closed streams that h2 remembers."""
WINDOW = 1 << 22
"""Flow-control window for requests on one connection, in bytes."""
FIRST_WINDOW = 65_535
"""Initial flow-control window of a connection, in bytes (RFC 9113, section 6.9.2)."""
BUFFERED_MESSAGES = 4
"""Most incomplete messages of the greatest length at the same time on one connection."""
MOST_HELD_BYTES = 1 << 22
"""Most bytes that wait for a client that does not read; calls stop sending long before."""
SLICE_S = 0.001
"""Most work for one connection in a row, in seconds: a quarter of a turn of the loop."""
MOST_RESETS = 2000
"""Most stream resets in a burst."""
RESETS_FORGIVEN = 100
"""Resets deducted at each check of a connection, every fifth of a second."""
MOST_SETTINGS = 64
"""Most settings kept for a client, unknown ones included."""
UNSUPPORTED: Headers = [(b":status", b"415"), (b"content-type", b"text/plain")]
"""The answer to requests that are no gRPC calls (grpc/doc/PROTOCOL-HTTP2.md)."""
TABLE_SIZES = re.compile(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]{0,9}[\x00-\x7f]){3}")
"""Start of a header block with three table size updates; two are allowed (RFC 7541, section 4.2)."""


class ConnectionFailed(ProtocolError):
    """The client violates the protocol or a limit: the connection ends."""

    def __init__(self, code: ErrorCodes, text: str) -> None:
        super().__init__(text)
        self.error_code = code


class HeaderDecoder(Decoder):
    """hpack's decoder with a limit on table size updates: a block full of updates would take 50 ms."""

    def decode(self, data: bytes, raw: bool = False) -> Iterable[HeaderTuple]:
        """Raises HPACKDecodingError for a block that matches TABLE_SIZES."""
        if TABLE_SIZES.match(data):
            raise HPACKDecodingError("too many changes of the table's size")
        return super().decode(data, raw)


class ServerProtocol(H2Connection):
    """h2's server connection, for messages of up to `most_message_bytes`."""

    MAX_CLOSED_STREAMS = MOST_CLOSED_STREAMS

    def __init__(self, most_message_bytes: int) -> None:
        super().__init__(
            H2Configuration(
                client_side=False,
                validate_inbound_headers=False,  # a malformed request ends its own stream, not the connection
                normalize_inbound_headers=False,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        most = {
            SettingCodes.MAX_CONCURRENT_STREAMS: MOST_CALLS,
            SettingCodes.INITIAL_WINDOW_SIZE: most_message_bytes + PREFIX_BYTES + WINDOW,
            SettingCodes.MAX_HEADER_LIST_SIZE: MOST_HEADER_BYTES,
        }
        self.local_settings = Settings(client=False, initial_values=most)
        self.decoder = HeaderDecoder(MOST_DECODED_BYTES)
        self._clean_at = MOST_CLOSED_STREAMS
        self.initiate_connection()
        self.increment_flow_control_window(WINDOW - FIRST_WINDOW)

    @property
    def open_inbound_streams(self) -> int:
        """Always 0: `Http2Connection` counts calls, and refuses them one by one.

        h2 reads this property at each new stream, and scans all streams to drop the closed ones. Here the
        scan runs only when closed streams may outnumber open ones.
        """
        if len(self.streams) >= self._clean_at:
            self._clean_at = 2 * super().open_inbound_streams + MOST_CLOSED_STREAMS
        return 0


class Http2Connection(HubConnection):
    """One client's HTTP/2 connection with prior knowledge, taken over from a `FastConnection`.

    `buffered` counts the bytes of incomplete requests and of calls' headers. While the connection lags, the
    socket takes no bytes, and calls wait.
    """

    def __init__(self, path: FastPath, client: GeventSocket, address: tuple[str, int], data: bytes) -> None:
        """`data`, all bytes so far, is read in this connection's turn."""
        rpc = path.rpc
        assert rpc is not None  # only a server with gRPC upgrades
        super().__init__(path, client, address, path.batcher, Share(TURN_S))  # long work until measured
        self._methods, self.most_message_bytes = rpc.methods, rpc.most_message_bytes
        self.most_buffered_bytes = BUFFERED_MESSAGES * (rpc.most_message_bytes + WINDOW)
        self.h2 = ServerProtocol(rpc.most_message_bytes)
        self.calls: dict[int, RpcCall] = {}
        self.stalled: dict[RpcCall, None] = {}
        """Calls without room in the client's windows, the longest waiting first."""
        self.buffered = 0
        self._in = data
        self._settled = self._is_behind = self._is_leaving = False
        self._block_bytes = 0
        """Bytes of an unfinished header block, with the heads of its frames."""
        self._resets = 0
        self._tasks: dict[Callable[[], None], None] = {}
        self._awaits_turn = False
        self.send_pending()
        self._wait()

    # Turns.

    def soon(self, task: Callable[[], None]) -> None:
        """Schedules `task` for this connection's turn, once however often it is scheduled until then."""
        self._tasks[task] = None
        self._await_turn()

    def _await_turn(self) -> None:
        if self._tasks and not self._awaits_turn:
            self._awaits_turn = True
            self.path.turns.put(self.share, self._work)

    def _work(self) -> None:
        """Runs waiting tasks for at most SLICE_S."""
        self._awaits_turn = False
        until_s = time.monotonic() + SLICE_S
        while self._tasks and time.monotonic() < until_s:
            task = next(iter(self._tasks))
            del self._tasks[task]
            self.guarded(task)
        self._await_turn()

    def guarded(self, work: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Calls `work`; a ProtocolError ends the connection with a GOAWAY frame that contains the reason."""
        try:
            work(*args, **kwargs)
        except ProtocolError as error:
            is_coding = isinstance(error.__cause__, HPACKError)
            is_coding = is_coding and not isinstance(error, DenialOfServiceError)
            self._is_leaving = True
            with suppress(ConnectionFailed):
                self._say_goodbye(ErrorCodes.COMPRESSION_ERROR if is_coding else error.error_code, str(error))
            self.close()

    # Frames from the client.

    def _readable(self) -> None:
        if not self.path.turns.has_time():
            self._wait()
        elif data := self._receive():
            self._in = self._in + data if self._in else data
            self.guarded(self._read)

    def _wait(self) -> None:
        """Continues reading in this connection's turn."""
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
        """Handles received frames one by one, for at most SLICE_S."""
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
            # After a GOAWAY, h2 would take no more frames; a client that says it still waits for its answers.
            if kind != GOAWAY or stream & STREAM_BITS or size < 8 or self._block_bytes:
                self._take(kind, flags, frame)
            if time.monotonic() > until_s and self.is_open:
                self._wait()
                break
        self._in = data[at:]

    def _settle(self, data: bytes) -> bool:
        """Checks the preface and the first frame's head; False while they are incomplete."""
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
        """Passes a frame to h2, and handles the resulting events."""
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

    def forget_call(self, call: RpcCall) -> None:
        """Removes an ended call; a connection without calls is idle."""
        self.calls.pop(call.id, None)
        self.stalled.pop(call, None)
        if not self.calls:
            self.busy, self.since_s = False, time.monotonic()

    def _feed(self) -> None:
        """Lets stalled calls send as much as there is room for, the longest waiting first."""
        for call in list(self.stalled):
            call.go_on()

    def catch_up(self) -> None:
        """Wakes every call: the socket takes bytes again."""
        super().catch_up()
        if self.is_open:
            for call in self.calls.values():
                self.soon(call.lag)

    # Sending.

    def send_headers(self, id: int, headers: Headers, ends: bool = False) -> None:
        """Sends a call's headers, or with `ends` its trailers."""
        self.h2.send_headers(id, headers, end_stream=ends)
        self.send_pending()

    def reset(self, id: int, code: ErrorCodes) -> None:
        self.h2.reset_stream(id, code)
        self.send_pending()

    def send_pending(self) -> None:
        if data := self.h2.data_to_send():
            self.put(data)

    def _say_goodbye(self, code: ErrorCodes, text: str = "") -> None:
        """Sends GOAWAY without h2, which would then send nothing more for running calls."""
        last = self.h2.highest_inbound_stream_id
        self.put(GoAwayFrame(0, last, code, text.encode("ascii", "replace")[:200]).serialize())

    def room(self, stream: H2Stream) -> int:
        """Returns the bytes that the client's windows allow on `stream` now."""
        return min(stream.outbound_flow_control_window, self.h2.outbound_flow_control_window)

    def send_data(self, stream: H2Stream, data: bytes) -> None:
        """Sends `data`, which must fit the windows, in as few frames as possible."""
        size, id = len(data), stream.stream_id
        stream.outbound_flow_control_window -= size
        self.h2.outbound_flow_control_window -= size
        for at in range(0, size, MOST_FRAME_BYTES):
            part = data[at : at + MOST_FRAME_BYTES]  # no copy of a message that fits one frame
            self.put(FRAME_HEAD.pack(0, len(part), DATA, 0, id) + part)

    def put(self, data: bytes) -> None:
        """Sends `data` soon. ConnectionFailed when too many bytes wait."""
        if self.is_open:
            super().put(data)
            if self.lags and self.held_bytes > MOST_HELD_BYTES:
                raise ConnectionFailed(ErrorCodes.ENHANCE_YOUR_CALM, "answers are not read")

    # Called by the worker.

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
