"""The sending side of an HTTP/2 connection.

h2 keeps the state of the protocol. DATA frames are written without h2, which takes tens of
microseconds per frame, but with h2's flow-control windows. All bytes of one turn of the loop leave
in one piece.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, ParamSpec

import gevent.socket
from h2.errors import ErrorCodes
from h2.exceptions import DenialOfServiceError, ProtocolError
from h2.stream import H2Stream
from hpack.exceptions import HPACKError
from hyperframe.frame import GoAwayFrame

from app.core.server.gunicorn.fair_turns import TURN_S, ConnectionCost
from app.core.server.gunicorn.hub_connection import Address, FastPath, HubConnection
from app.core.server.http.rpc import RpcService
from app.extensions.grpc.http2.budget import FrameBudget
from app.extensions.grpc.http2.limits import DATA, FRAME_HEAD, MAX_FRAME_BYTES, WINDOW_BYTES
from app.extensions.grpc.http2.protocol import ConnectionFailedError, Headers, ServerProtocol

P = ParamSpec("P")
BUFFERED_MESSAGES = 4
"""Most incomplete messages of the greatest length at the same time on one connection."""
MAX_HELD_BYTES = 1 << 20
"""Most memory, in bytes, of frames that no client reads; calls stop sending long before."""
PIECE_BYTES = 64
"""Memory of a waiting piece besides its content, in bytes."""
MAX_REASON_BYTES = 200
"""Most bytes of a reason in a GOAWAY frame."""


class CallTransport(HubConnection):
    """The sending side of an HTTP/2 connection.

    While it lags, the socket takes no bytes, and calls wait. `buffered` counts the bytes of
    incomplete requests and of calls' headers.
    """

    def __init__(
        self,
        path: FastPath,
        client: gevent.socket.socket,
        address: Address,
        *,
        rpc: RpcService,
        greeted: bytes,
    ) -> None:
        """`greeted`: see `ServerProtocol`."""
        super().__init__(path, client, address, ConnectionCost(TURN_S))  # long work until measured
        self.max_message_bytes = rpc.max_message_bytes
        self.max_buffered_bytes = BUFFERED_MESSAGES * (rpc.max_message_bytes + WINDOW_BYTES)
        self.h2 = ServerProtocol(rpc.max_message_bytes, greeted)
        self.calls: dict[int, Any] = {}
        """Running calls (`RpcCall`) by stream id."""
        self.stalled: dict[Any, None] = {}
        """Calls without room in the client's windows, the longest waiting first."""
        self.buffered = 0
        memory = None if path.app is None else path.app.middleware.memory
        self._claim = None if memory is None else memory().claim()
        if self._claim is not None:
            self._claim.is_incomplete = True
        self.budget = FrameBudget()
        self._held_bytes = 0
        self._refuses_calls = False

    def add_buffered(self, size: int) -> None:
        """Counts bytes of requests and headers that are stored, or with a minus, no longer are.

        Raises:
            MemoryFullError, MemoryExceededError: the requests of all connections take too much. The
                bytes are not counted.
        """
        if self._claim is not None:
            if size > 0:
                self._claim.grow(size)
            else:
                self._claim.shrink(-size)
        self.buffered += size

    def begin_stall(self, call: Any) -> bool:
        """Registers a call without room for its answer; returns False for a registered one."""
        is_new = call not in self.stalled
        self.stalled.setdefault(call)
        return is_new

    def end_stall(self, call: Any) -> None:
        """Removes a call that has room again."""
        self.stalled.pop(call, None)

    def remove_call(self, call: Any, stream_id: int) -> None:
        """Removes a call that has ended. Without any call, the connection's idle time begins."""
        self.calls.pop(stream_id, None)
        self.end_stall(call)
        if not self.calls:
            self.busy = False
            self.since_s = time.monotonic()

    def schedule(self, task: Callable[[], None]) -> None:
        """Runs `task` in a turn of this connection; a protocol error ends the connection."""
        self.path.turns.schedule(self.cost, partial(self.run_guarded, task))

    def run_guarded(self, work: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Calls `work`.

        A ProtocolError ends the connection with a GOAWAY frame that contains the reason.
        """
        try:
            work(*args, **kwargs)
        except ProtocolError as error:
            self._refuses_calls = True
            code = error.error_code
            is_limit = isinstance(error, DenialOfServiceError)
            if isinstance(error.__cause__, HPACKError) and not is_limit:
                code = ErrorCodes.COMPRESSION_ERROR
            with suppress(ConnectionFailedError):
                self._send_goaway(code, str(error))
            self.close()

    def send_headers(self, stream_id: int, headers: Headers, ends: bool = False) -> None:
        """Sends headers or, if they end the stream, trailers."""
        self.h2.send_headers(stream_id, headers, end_stream=ends)
        self.send_pending()

    def reset(self, stream_id: int, code: ErrorCodes) -> None:
        """Ends a stream at once."""
        self.h2.reset_stream(stream_id, code)
        self.send_pending()

    def send_pending(self) -> None:
        """Sends the frames that h2 has prepared."""
        data = self.h2.data_to_send()
        if data:
            self.put(data)

    def _send_goaway(
        self, code: ErrorCodes, text: str = "", last_stream_id: int | None = None
    ) -> None:
        """Sends GOAWAY without h2, which would then send nothing more for running calls.

        `last_stream_id`: the last stream that is served; by default the last one that has begun.
        """
        if last_stream_id is None:
            last_stream_id = self.h2.highest_inbound_stream_id
        reason = text.encode("ascii", "replace")[:MAX_REASON_BYTES]
        self.put(GoAwayFrame(0, last_stream_id, code, reason).serialize())

    def window(self, stream: H2Stream) -> int:
        """Returns the bytes that the client's windows allow on `stream` now."""
        return min(stream.outbound_flow_control_window, self.h2.outbound_flow_control_window)

    def send_data(self, stream: H2Stream, data: bytes) -> None:
        """Sends `data`, which must fit the windows, in as few frames as possible.

        Counts it as progress.
        """
        size = len(data)
        stream_id = stream.stream_id
        stream.outbound_flow_control_window -= size
        self.h2.outbound_flow_control_window -= size
        for start in range(0, size, MAX_FRAME_BYTES):
            part = data[start : start + MAX_FRAME_BYTES]  # no copy of data that fits one frame
            self.put(FRAME_HEAD.pack(0, len(part), DATA, 0, stream_id) + part)
        self.budget.pay()

    def put(self, data: bytes) -> None:
        """Sends `data` soon.

        Raises:
            ConnectionFailedError: too many bytes wait.
        """
        if self.is_open:
            super().put(data)
            if self.lags:
                self._held_bytes += len(data) + PIECE_BYTES
            else:
                self._held_bytes = 0
            if self._held_bytes > MAX_HELD_BYTES:
                raise ConnectionFailedError(
                    ErrorCodes.ENHANCE_YOUR_CALM, "the client is not reading its responses"
                )
