"""The protocol and the sending side of an HTTP/2 connection, by h2 and hpack with this server's
limits.

h2 keeps the state of the protocol. DATA frames are written without h2, which takes tens of
microseconds per frame, but with h2's flow-control windows. All bytes of one turn of the loop leave
in one piece.
"""

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from struct import Struct
from typing import ParamSpec

import gevent.socket
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import DenialOfServiceError, ProtocolError
from h2.settings import SettingCodes, Settings
from h2.stream import H2Stream
from h2.utilities import HeaderValidationFlags, validate_headers
from hpack import Decoder
from hpack.exceptions import HPACKDecodingError, HPACKError
from hpack.struct import Header, HeaderTuple
from hyperframe.frame import GoAwayFrame

from app.serving.gunicorn.connections import Address, FastPath, HubConnection
from app.serving.gunicorn.fair_turns import TURN_S, Share
from app.serving.http.route import PREFIX_BYTES, RpcService

P = ParamSpec("P")
Headers = list[tuple[bytes, bytes]]
FRAME_HEAD = Struct(">BHBBL")
"""High and low part of the payload's size, kind, flags and stream (RFC 9113, section 4.1)."""
DATA = 0x0
MOST_FRAME_BYTES = 1 << 14
"""Largest payload of a frame by default, in bytes, for both sides."""
BUFFERED_MESSAGES = 4
"""Most incomplete messages of the greatest length at the same time on one connection."""
MOST_HELD_BYTES = 1 << 20
"""Most memory, in bytes, of frames that no client reads; calls stop sending long before."""
PIECE_BYTES = 64
"""Memory of a waiting piece besides its content, in bytes."""
MOST_CALLS = 1 << 14
"""Most concurrent calls on one connection."""
MOST_HEADER_BYTES = 1 << 14
"""Most bytes of a call's encoded headers."""
MOST_DECODED_BYTES = 1 << 15
"""Most bytes of a call's decoded headers, with 32 for each header."""
MOST_CLOSED_STREAMS = 1000
"""Closed streams whose ends h2 remembers."""
MOST_ENDED = 100
"""Most closed streams, of 1 KB each, beside as many as are open."""
WINDOW = 1 << 22
"""Flow-control window for requests on one connection, in bytes."""
FIRST_WINDOW = 65_535
"""Initial flow-control window of a connection, in bytes (RFC 9113, section 6.9.2)."""
TABLE_SIZES = re.compile(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]{0,9}[\x00-\x7f]){3}")
"""Start of a header block with three table size updates; two are allowed (RFC 7541, section 4.2).
"""
CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Characters refused in headers: a line break could forge a line wherever headers are shown."""


class ConnectionFailed(ProtocolError):
    """The client violates the protocol or a limit: the connection ends."""

    def __init__(self, code: ErrorCodes, text: str) -> None:
        super().__init__(text)
        self.error_code = code


class HeaderDecoder(Decoder):
    """hpack's decoder with a limit on table size updates:

    a block full of updates would take 50 ms.
    """

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
        self._clean_at = MOST_ENDED
        self.initiate_connection()
        self.increment_flow_control_window(WINDOW - FIRST_WINDOW)

    def end(self) -> None:
        """Reads no more frames.

        The table's bound methods would keep this object until a full collection.
        """
        self._frame_dispatch_table.clear()

    @property
    def open_inbound_streams(self) -> int:
        """Always 0: `Http2Connection` counts calls, and refuses them one by one.

        h2 reads this property at each new stream, and scans all streams to drop the closed ones.
        Here the scan runs only when closed streams may outnumber open ones.
        """
        if len(self.streams) >= self._clean_at:
            self._clean_at = 2 * super().open_inbound_streams + MOST_ENDED
        return 0


def read_headers(block: Iterable[Header], is_trailer: bool = False) -> dict[str, str] | None:
    """Returns the headers of a call by name; None when malformed (RFC 9113, section 8.2)."""
    found: dict[str, str] = {}
    flags = HeaderValidationFlags(
        is_client=False, is_trailer=is_trailer, is_response_header=False, is_push_promise=False
    )
    try:
        checked = list(validate_headers(block, flags))
    except ProtocolError:
        return None
    for raw_name, raw_value in checked:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        if CONTROL.search(value):
            return None
        found[name] = f"{found[name]},{value}" if name in found else value
    return found


class CallTransport(HubConnection):
    """The sending side of an HTTP/2 connection. While it lags, the socket takes no bytes, and calls
    wait.

    `buffered` counts the bytes of incomplete requests and of calls' headers.
    """

    def __init__(
        self, path: FastPath, client: gevent.socket.socket, address: Address, rpc: RpcService
    ) -> None:
        super().__init__(path, client, address, Share(TURN_S))  # long work until measured
        self.most_message_bytes = rpc.most_message_bytes
        self.most_buffered_bytes = BUFFERED_MESSAGES * (rpc.most_message_bytes + WINDOW)
        self.h2 = ServerProtocol(rpc.most_message_bytes)
        self.buffered = self._held_bytes = 0
        self._is_leaving = False

    def soon(self, task: Callable[[], None]) -> None:
        self.path.turns.put(self.share, partial(self.guarded, task))

    def guarded(self, work: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Calls `work`; a ProtocolError ends the connection with a GOAWAY frame that contains the
        reason.
        """
        try:
            work(*args, **kwargs)
        except ProtocolError as error:
            is_dear, self._is_leaving = isinstance(error, DenialOfServiceError), True
            is_coding = isinstance(error.__cause__, HPACKError) and not is_dear
            with suppress(ConnectionFailed):
                self._say_goodbye(
                    ErrorCodes.COMPRESSION_ERROR if is_coding else error.error_code, str(error)
                )
            self.close()

    def send_headers(self, id: int, headers: Headers, ends: bool = False) -> None:
        self.h2.send_headers(id, headers, end_stream=ends)
        self.send_pending()

    def reset(self, id: int, code: ErrorCodes) -> None:
        self.h2.reset_stream(id, code)
        self.send_pending()

    def send_pending(self) -> None:
        if data := self.h2.data_to_send():
            self.put(data)

    def _say_goodbye(
        self, code: ErrorCodes, text: str = "", last_stream: int | None = None
    ) -> None:
        """Sends GOAWAY without h2, which would then send nothing more for running calls.

        `last_stream`: the last stream that is served; by default the last one that has begun.
        """
        if last_stream is None:
            last_stream = self.h2.highest_inbound_stream_id
        reason = text.encode("ascii", "replace")[:200]
        self.put(GoAwayFrame(0, last_stream, code, reason).serialize())

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
            self._held_bytes = self._held_bytes + len(data) + PIECE_BYTES if self.lags else 0
            if self._held_bytes > MOST_HELD_BYTES:
                raise ConnectionFailed(ErrorCodes.ENHANCE_YOUR_CALM, "answers are not read")
