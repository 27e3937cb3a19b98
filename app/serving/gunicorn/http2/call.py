"""One gRPC call: a stream of HTTP/2, from its headers to the status after its last message.

h2 keeps the state of the protocol. DATA frames are written without h2, which takes tens of microseconds per
frame, but with h2's flow-control windows. All bytes of one turn of the loop leave in one piece.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from struct import Struct
from typing import ParamSpec
from urllib.parse import quote

import gevent.socket
import msgspec
from h2.errors import ErrorCodes
from h2.exceptions import DenialOfServiceError, ProtocolError
from h2.stream import H2Stream
from hpack.exceptions import HPACKError
from hyperframe.frame import GoAwayFrame

from app.base.clock.clock import Watcher
from app.serving.api.errors import as_api_error, forget_frames
from app.serving.gunicorn.connections import Address, FastPath, HubConnection
from app.serving.gunicorn.fair_turns import TURN_S, Share
from app.serving.gunicorn.http2.protocol import WINDOW, ConnectionFailed, ServerProtocol
from app.serving.gunicorn.logs import log_exchange
from app.serving.http.connection import StreamSource
from app.serving.http.context import RequestContext, current_request
from app.serving.http.errors import ApiError, internal, not_implemented
from app.serving.http.response import CLIENT_GONE, Response, StreamingBody
from app.serving.http.rpc import (
    PREFIX_BYTES,
    RpcCode,
    RpcMethod,
    RpcOutcome,
    RpcResponse,
    RpcService,
    error_response,
)

log = logging.getLogger(__name__)
P = ParamSpec("P")
FRAME_HEAD = Struct(">BHBBL")
"""High and low part of the payload's size, kind, flags and stream (RFC 9113, section 4.1)."""
DATA = 0x0
MOST_FRAME_BYTES = 1 << 14
"""Largest payload of a frame by default, in bytes, for both sides."""
BUFFERED_MESSAGES = 4
"""Most incomplete messages of the greatest length at the same time on one connection."""
MOST_HELD_BYTES = 1 << 22
"""Most bytes that wait for a client that does not read; calls stop sending long before."""
SLICE_S = 0.001
"""Most work for one connection in a row, in seconds: a quarter of a turn of the loop."""

MOST_EACH_BYTES = 1 << 16
"""Most bytes of waiting messages in a call whose messages are answered one by one."""
BROKEN_OFF = (RpcCode.INTERNAL, "The answer broke off.")
Headers = list[tuple[bytes, bytes]]
OK: Headers = [(b":status", b"200"), (b"content-type", b"application/grpc")]
LONGEST_MESSAGE = 2000
"""Most characters of a status message."""
PLAIN = " !#$&'()*+,/:;=?@[]"
"""Characters of a status message sent unescaped, besides letters and digits."""
TIMEOUT = re.compile(r"(\d{1,8})([HMSmun])", re.ASCII)
LONGEST_S = 1e9
UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


class CallTransport(HubConnection):
    """The sending side of an HTTP/2 connection. While it lags, the socket takes no bytes, and calls wait.

    `buffered` counts the bytes of incomplete requests and of calls' headers.
    """

    def __init__(
        self, path: FastPath, client: gevent.socket.socket, address: Address, rpc: RpcService
    ) -> None:
        super().__init__(path, client, address, Share(TURN_S))  # long work until measured
        self.most_message_bytes = rpc.most_message_bytes
        self.most_buffered_bytes = BUFFERED_MESSAGES * (rpc.most_message_bytes + WINDOW)
        self.h2 = ServerProtocol(rpc.most_message_bytes)
        self.calls: dict[int, RpcCall] = {}
        self.stalled: dict[RpcCall, None] = {}
        """Calls without room in the client's windows, the longest waiting first."""
        self.buffered = self._held_bytes = 0
        self._is_leaving = self._awaits_turn = False
        self._tasks: dict[Callable[[], None], None] = {}

    def soon(self, task: Callable[[], None]) -> None:
        """Schedules `task` for this connection's turn, once however often it is scheduled until then."""
        self._tasks[task] = None
        self._await_turn()

    def _await_turn(self) -> None:
        if self._tasks and not self._awaits_turn:
            self._awaits_turn = True
            self.path.turns.put(self.share, self._work)

    def _work(self) -> None:
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

    def send_headers(self, id: int, headers: Headers, ends: bool = False) -> None:
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
            self._held_bytes = self._held_bytes + len(data) if self.lags else 0
            if self._held_bytes > MOST_HELD_BYTES:
                raise ConnectionFailed(ErrorCodes.ENHANCE_YOUR_CALM, "answers are not read")


class RpcCall:
    """A call of `method` (None: unknown method), with the interface of `StreamTransport` for its source.

    `has_request`: the client has sent its last message. `since_s`: start of the wait for the rest of the
    request, or for room for the answer (monotonic seconds). `size`: memory of the call's headers, in bytes.
    """

    __slots__ = (
        *("_begun", "_body", "_connection", "_context", "_deadline", "_headers", "_is_each", "_lagging"),
        *("_last", "_method", "_most_bytes", "_next_slice", "_response", "_size", "_source", "_stream"),
        *("_unsent", "has_request", "id", "is_open", "since_s", "stalled"),
    )

    def __init__(
        self,
        connection: CallTransport,
        stream: H2Stream,
        method: RpcMethod | None,
        headers: dict[str, str],
        size: int,
    ) -> None:
        self._connection, self._stream, self.id = connection, stream, stream.stream_id
        self._method, self._headers, self._size = method, headers, size
        connection.buffered += size
        self._is_each = method is not None and method.each
        self._most_bytes = MOST_EACH_BYTES if self._is_each else connection.most_message_bytes
        self._body = bytearray()
        """Received bytes of the next messages."""
        self._context: RequestContext | None = None
        self._response: RpcResponse | None = None
        self._source: StreamSource | None = None
        self._next_slice: Callable[[], tuple[bytes, bool, bool]] | None = None
        """Returns the next bytes of the answer; see `StreamSource`."""
        self._unsent = b""
        self._begun = self._last = self._lagging = self.has_request = False
        self.stalled = False
        """True while the client's windows have no room for `_unsent`."""
        self.since_s, self.is_open = time.monotonic(), True
        self._deadline: Watcher | None = None
        if given := TIMEOUT.fullmatch(headers.get("grpc-timeout", "")):
            limit_s = min(LONGEST_S, int(given[1]) * UNITS_S[given[2]])
            self._deadline = gevent.get_hub().loop.timer(limit_s)
            self._deadline.start(connection.soon, self._expire)

    def take(self, data: bytes, is_end: bool) -> None:
        """Hub: receives the next bytes of the client's messages."""
        connection, most = self._connection, self._most_bytes
        self.has_request |= is_end
        self._body += data
        connection.buffered += len(data)
        wanted = max(len(self._body), self._end_of_message)
        if wanted > most + PREFIX_BYTES or connection.buffered > connection.most_buffered_bytes:
            text = f"A message of {wanted - PREFIX_BYTES} bytes is too long: at most {most} are read."
            self.fail(RpcCode.RESOURCE_EXHAUSTED, text)
        elif self._context is not None:
            self.lag()
        elif self._is_each:
            self._begin(b"")
        elif self.has_request and (message := self._message()) is not None:
            if self._body:
                self.fail(RpcCode.INTERNAL, "The call has more than one message.")
            else:
                self._begin(message)

    def _message(self) -> bytes | None:
        body, end = self._body, self._end_of_message
        if len(body) < end:
            if self.has_request and (body or not self._begun):
                self.fail(RpcCode.INTERNAL, "The call has ended within a message, or without any.")
            return None
        if body[0]:
            self.fail(RpcCode.UNIMPLEMENTED, "Compressed messages are not read: send them as identity.")
            return None
        message = bytes(memoryview(body)[PREFIX_BYTES:end])
        self._connection.buffered -= end
        del body[:end]
        return message

    @property
    def _end_of_message(self) -> int:
        """Size of the next message with its prefix, in bytes; 5 until the prefix is complete."""
        body = self._body
        size = int.from_bytes(body[1:PREFIX_BYTES], "big") if len(body) >= PREFIX_BYTES else 0
        return PREFIX_BYTES + size

    def _begin(self, message: bytes) -> None:
        self._context = self._new_context(message)
        gevent.spawn(self._handle, self._context, self._method)

    def _new_context(self, message: bytes) -> RequestContext:
        headers, path = self._headers, self._headers[":path"]
        headers["content-length"] = str(len(message))
        return RequestContext(
            method="POST",
            path=path,
            target=path,
            headers=headers,
            client=self._connection.address[0],
            arrival_s=time.monotonic(),
            body=message,
            http_version="HTTP/2",
            host=headers.get(":authority", ""),
            new_id=self._connection.path.new_id,
            route=self._method,
            label="" if self._method is None else path,
            way="grpc",
        )

    def _handle(self, context: RequestContext, method: RpcMethod | None) -> None:
        connection = self._connection
        connection.path.turns.wait(connection.share)
        if not self.is_open:
            return
        current_request.set(context)
        try:
            response: Response | None = connection.path.middleware.begin(context)
            if response is None and method is None:
                raise not_implemented(f"There is no method {context.path[:200]}.")
            if response is None and method is not None and not method.each:
                response = method.handle(context)
        except Exception as error:
            response = _response_to(error)
        try:
            connection.guarded(self._answer, response)
        except Exception:  # rendering failed
            log.exception("an answer broke off")
            connection.guarded(self.fail, *BROKEN_OFF)

    def _answer(self, response: Response | None) -> None:
        """Runs the middleware on the answer, and sends it. None: each message has its own answer."""
        assert self._context is not None
        answer = RpcResponse() if response is None else _as_rpc(response)
        if not self.is_open:  # the client left meanwhile
            answer.status = CLIENT_GONE
        try:
            self._connection.path.middleware.end(self._context, answer)
        except Exception as error:
            _response_to(error)
            answer = error_response(internal("The answer could not be finished."))
        if not self.is_open:
            answer.close()
            return
        self._response, body = answer, answer.body
        if response is None or body:
            self._begun = True
            self._connection.send_headers(self.id, _metadata(answer))
        if isinstance(body, StreamingBody):
            body.attach(self)  # type: ignore[arg-type]
        elif response is None:
            self._next_slice = self._answer_next
            self.lag()
        else:
            answer.body = b"".join(body) if not isinstance(body, bytes) else body
            self.write(answer.body, last=True)

    def _answer_next(self) -> tuple[bytes, bool, bool]:
        """Answers the next message; see `StreamSource`."""
        assert self._method is not None and self._response is not None
        message = self._message()
        if message is None:
            return b"", False, self.has_request
        self.since_s = time.monotonic()
        try:
            data = bytes(self._method.handle(self._new_context(message)).body)  # type: ignore[arg-type]
        except Exception as error:
            self._response.outcome = _response_to(error).outcome
            return b"", False, True
        return data, self.has_request or len(self._body) >= self._end_of_message, False

    @property
    def lags(self) -> bool:
        """True while pieces wait in the source until `ask` takes them."""
        return self._lagging or self._connection.lags

    def start(self, source: StreamSource) -> None:
        self._source, self._next_slice = source, source.next_slice

    def write(self, data: bytes, last: bool = False) -> None:
        """Sends messages soon; `last` ends the call with its status."""
        self._unsent = self._unsent + data if self._unsent else data
        self._last |= last
        self._push()

    def send_soon(self, data: bytes) -> None:
        if self._unsent or len(data) > self._connection.room(self._stream):
            self.write(data)
        else:
            self._connection.send_data(self._stream, data)

    def _push(self) -> None:
        connection, unsent = self._connection, self._unsent
        size = min(len(unsent), connection.room(self._stream))
        if size > 0:
            connection.send_data(self._stream, unsent[:size])
            self._unsent = unsent = unsent[size:]
        if size > 0 or not unsent:
            connection.stalled.pop(self, None)
        if unsent:
            if self not in connection.stalled:  # the client's time limit starts anew
                self.since_s = time.monotonic()
                connection.stalled[self] = None
            self.stalled = self._lagging = True
            return
        self.stalled = False
        if self._last:
            self._finish()

    def lag(self) -> None:
        if self._next_slice is not None:
            self._lagging = True
            self._connection.soon(self.ask)

    def go_on(self) -> None:
        if self.stalled and self.is_open:
            self._push()
            if not self.stalled and self.is_open:
                self.lag()

    def ask(self) -> None:
        """Takes a slice of the answer now, and another one in the next turn."""
        connection = self._connection
        if self.stalled or connection.lags or self._next_slice is None or not self.is_open:
            return
        try:
            data, more, last = self._next_slice()
        except Exception:  # rendering failed
            log.exception("an answer broke off")
            self.fail(*BROKEN_OFF)
            return
        if self.is_open:
            self.write(data, last)
        if not self.stalled and self.is_open:
            self._lagging = more
            if more:
                connection.soon(self.ask)

    def _finish(self) -> None:
        response = self._response
        assert response is not None
        headers = [] if self._begun else _metadata(response)
        headers.append((b"grpc-status", b"%d" % response.outcome.code))
        if message := response.outcome.message:
            headers.append((b"grpc-message", quote(message[:LONGEST_MESSAGE], safe=PLAIN).encode()))
        self._connection.send_headers(self.id, headers, ends=True)
        if not self.has_request:
            self._connection.reset(self.id, ErrorCodes.NO_ERROR)
        self._close()

    def fail(self, code: RpcCode, text: str) -> None:
        """Ends the call with this status, at any stage."""
        if self.is_open:
            self._leave_source()
            self._response = self._response or RpcResponse()
            self._response.outcome = RpcOutcome(code, text)
            self._unsent = b""
            self._finish()

    def _expire(self) -> None:
        self.fail(RpcCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def give_up(self) -> None:
        self.fail(RpcCode.DEADLINE_EXCEEDED, "The request did not come in time.")

    def cut_off(self) -> None:
        if self.is_open:
            self._connection.reset(self.id, ErrorCodes.CANCEL)
            self.gone()

    def shut_down(self) -> None:
        """Ends an endless answer: the server shuts down, or is replaced."""
        if self._response is not None and getattr(self._response.body, "endless", False):
            self.fail(RpcCode.UNAVAILABLE, "The server is shutting down.")

    def break_off(self) -> None:
        self._connection.close()

    def gone(self) -> None:
        """Ends the call: the client has given it up, or has left."""
        if self.is_open:
            self._leave_source()
            self._close()

    def _leave_source(self) -> None:
        source, self._source, self._next_slice = self._source, None, None
        if source is not None:
            source.leave()

    def _close(self) -> None:
        connection = self._connection
        self.is_open = False
        self._source = self._next_slice = None
        if self._deadline is not None:
            self._deadline.stop()
            self._deadline.close()
        connection.buffered -= len(self._body) + self._size
        self._body.clear()
        connection.calls.pop(self.id, None)
        connection.stalled.pop(self, None)
        if not connection.calls:
            connection.busy, connection.since_s = False, time.monotonic()
        response, self._response = self._response, None
        if response is not None and self._context is not None:
            if connection.path.logs_access:
                log_exchange(connection.path.log, self._context, response)
            response.close()


def _metadata(response: Response) -> Headers:
    """Returns the metadata before the first message: the response's headers without those of HTTP."""
    return OK + [
        (name.lower().encode("latin-1", "replace"), value.encode("latin-1", "replace"))
        for name, value in response.headers.items()
        if name.lower() not in ("content-type", "content-length")
    ]


def _response_to(error: Exception) -> RpcResponse:
    known = as_api_error(error)
    forget_frames(error)
    return error_response(known)


def _as_rpc(response: Response) -> RpcResponse:
    """Converts a middleware's HTTP response; the error message in its body becomes the status message."""
    if isinstance(response, RpcResponse):
        return response
    try:
        error = msgspec.json.decode(response.body)["error"]  # type: ignore[arg-type]
    except (msgspec.DecodeError, KeyError, TypeError):
        error = ""
    text = error.get("message", "") if isinstance(error, Mapping) else error
    answer = error_response(ApiError(response.status, "", str(text)))
    answer.headers.update(response.headers)
    return answer
