"""A gRPC call: a stream of HTTP/2, from its headers to the status after its last message."""

import logging
import re
import time
from collections.abc import Callable, Iterator
from enum import Enum, auto
from urllib.parse import quote

import gevent.event
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from h2.stream import H2Stream, StreamState

from app.core.api.errors import as_api_error, forget_frames
from app.core.base.clock.clock import Watcher
from app.core.base.error_body import error_message
from app.core.base.overload import MemoryExceededError, MemoryFullError
from app.core.server.gunicorn.logs import log_exchange
from app.core.server.http.body_limits import WORK_FACTOR
from app.core.server.http.client_connection import BrokenOffError, ClientConnection
from app.core.server.http.context import SMALL_BODY_BYTES, RequestContext, current_request
from app.core.server.http.errors import ApiError, internal, not_implemented
from app.core.server.http.response import CLIENT_GONE, Response
from app.core.server.http.rpc import PREFIX_BYTES, RpcCode, RpcMethod, RpcOutcome, RpcResponse
from app.extensions.grpc.http2.call_transport import CallTransport
from app.extensions.grpc.http2.protocol import Headers
from app.extensions.grpc.message_feed import MessageFeed

log = logging.getLogger(__name__)
MAX_STREAMED_BYTES = 1 << 16
"""Most bytes of waiting messages in a call whose messages are answered one by one."""
OK: Headers = [(b":status", b"200"), (b"content-type", b"application/grpc")]
MAX_STATUS_LENGTH = 2000
"""Most characters of a status message."""
UNESCAPED = " !#$&'()*+,/:;=?@[]"
"""Characters of a status message sent unescaped, besides letters and digits."""
TIMEOUT = re.compile(r"(\d{1,8})([HMSmun])", re.ASCII)
MAX_TIMEOUT_S = 1e9
UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


class CallState(Enum):
    """How far the answer to a call has come. h2 knows whether the client will send more."""

    WAITING = auto()
    """No answer yet: a message is incomplete, or the method runs."""
    ANSWERED = auto()
    """There is an answer, and no part has been sent."""
    SENDING = auto()
    """The metadata is sent."""
    ENDED = auto()
    """The status is sent, or no client is left to read it."""


class CallClient(ClientConnection):
    """The client of one call, which may leave while its connection stays open."""

    __slots__ = ("_call",)

    def __init__(self, call: "RpcCall") -> None:
        # The socket is that of the whole connection.
        self._call = call

    @property
    def is_closed_by_client(self) -> bool:
        """True once the call has ended."""
        return not self._call.is_open

    def watch(self, gone: Callable[[], None]) -> None:
        """Calls `gone` in the hub as soon as the client cancels the call."""
        self._call.gone = gone

    def unwatch(self) -> None:
        """Ends `watch`."""
        self._call.gone = None

    def shut(self) -> None:
        """Does nothing: the call closes the whole connection itself."""


class RpcCall:
    """A call of `method` (None: unknown): the hub receives messages, and a greenlet answers.

    Attributes:
        since_s: Start of the wait for the remainder of the request, or for room for the answer
            (monotonic seconds).
        wake: Set when there may be room for the answer, or another message.
        gone: Called in the hub when the client cancels the call; None if there is no need.
    """

    def __init__(
        self,
        connection: CallTransport,
        stream: H2Stream,
        *,
        method: RpcMethod | None,
        headers: dict[str, str],
        size: int,
    ) -> None:
        """`size`: memory of the call's headers, in bytes."""
        self._connection = connection
        self._stream = stream
        self.id = stream.stream_id
        self._method = method
        self._headers = headers
        self._size = size
        connection.add_buffered(size)
        self._body = bytearray()
        """Received bytes of the next messages."""
        self.wake = gevent.event.Event()
        self.gone: Callable[[], None] | None = None
        self._greenlet: gevent.Greenlet | None = None
        self._context: RequestContext | None = None
        self._response: RpcResponse | None = None
        self._failure: RpcOutcome | None = None
        """The outcome, if it is not that of the response."""
        self._state = CallState.WAITING
        self.since_s = time.monotonic()
        self._deadline: Watcher | None = None
        timeout = TIMEOUT.fullmatch(headers.get("grpc-timeout", ""))
        if timeout:
            limit_s = min(MAX_TIMEOUT_S, int(timeout[1]) * UNITS_S[timeout[2]])
            self._deadline = gevent.get_hub().loop.timer(limit_s)
            self._deadline.start(connection.schedule, self.expire)

    @property
    def is_open(self) -> bool:
        """True until the call has ended."""
        return self._state is not CallState.ENDED

    @property
    def has_request(self) -> bool:
        """True if the client has sent its last message."""
        return self._stream.state_machine.state is not StreamState.OPEN

    @property
    def _answers_each(self) -> bool:
        return self._method is not None and self._method.answers_each

    def receive(self, data: bytes, is_end: bool) -> None:
        """Hub: receives the next bytes of the client's messages; `is_end`: no more will come."""
        connection = self._connection
        max_bytes = connection.max_message_bytes
        if self._answers_each:
            max_bytes = MAX_STREAMED_BYTES
        try:
            connection.add_buffered(len(data))
        except (MemoryFullError, MemoryExceededError) as error:
            self.fail(RpcCode.UNAVAILABLE, str(error))
            return
        self._body += data
        size = max(len(self._body), self._end_of_message)
        if size > max_bytes + PREFIX_BYTES or connection.buffered > connection.max_buffered_bytes:
            self.fail(
                RpcCode.RESOURCE_EXHAUSTED,
                f"A message of {size - PREFIX_BYTES} bytes is too long: "
                f"at most {max_bytes} are read.",
            )
        elif self._greenlet is not None:
            self.wake.set()
        elif self._answers_each:
            self._spawn_answer(b"")
        elif is_end:
            message = self._take_message()
            if message is not None and self._body:
                self.fail(RpcCode.INTERNAL, "The call has more than one message.")
            elif message is not None:
                self._spawn_answer(message)

    def _spawn_answer(self, message: bytes) -> None:
        self._greenlet = gevent.spawn(self._connection.run_guarded, self._serve, message)

    def _take_message(self) -> bytes | None:
        """Returns the next message; None until it is complete, and when the call has failed."""
        body = self._body
        end = self._end_of_message
        if len(body) < end:
            if self.has_request and (body or self._state is not CallState.SENDING):
                self.fail(RpcCode.INTERNAL, "The call ended before a complete message.")
            return None
        if body[0]:
            self.fail(
                RpcCode.UNIMPLEMENTED,
                "Compressed messages are not supported: use the encoding identity.",
            )
            return None
        message = bytes(memoryview(body)[PREFIX_BYTES:end])
        self._connection.add_buffered(-end)
        del body[:end]
        return message

    @property
    def _end_of_message(self) -> int:
        """Size of the next message with its prefix, in bytes; 5 until the prefix is complete."""
        prefix = self._body[:PREFIX_BYTES]
        if len(prefix) < PREFIX_BYTES:
            return PREFIX_BYTES
        return PREFIX_BYTES + int.from_bytes(prefix[1:], "big")

    def _new_context(self, message: bytes) -> RequestContext:
        headers = self._headers
        path = headers[":path"]
        headers["content-length"] = str(len(message))
        return RequestContext(
            method="POST",
            path=path,
            target=path,
            headers=headers,
            client=self._connection.address[0],
            arrival_s=time.monotonic(),
            body=message,
            connection=CallClient(self),
            http_version="HTTP/2",
            host=headers.get(":authority", ""),
            new_id=self._connection.path.new_id,
            route=self._method,
            label="" if self._method is None else path,
            way="grpc",
        )

    def _serve(self, message: bytes) -> None:
        """Greenlet: runs the middleware and the method, and sends the answer."""
        path = self._connection.path
        context = self._new_context(message)
        path.turns.wait(self._connection.cost)
        if not self.is_open:
            return
        self._context = context
        current_request.set(context)
        try:
            response = path.middleware.begin(context)
            if response is None:
                response = self._call_method(context)
        except Exception as error:
            response = _response_to(error)
        answer = _as_rpc(response)
        if not self.is_open:  # the client has disconnected meanwhile
            answer = RpcResponse(answer.body, answer.headers, answer.outcome, CLIENT_GONE)
        try:
            path.middleware.end(context, answer)
        except Exception as error:
            _response_to(error)
            answer = _failed(internal("The answer could not be finished."))
        if self.is_open:
            self._answer(answer)
        else:
            answer.close()

    def _call_method(self, context: RequestContext) -> RpcResponse:
        method = self._method
        if method is None:
            raise not_implemented(f"The method {context.path[:200]} does not exist.")
        claim = context.claim
        message = context.body or b""
        if claim is not None and len(message) > SMALL_BODY_BYTES:
            claim.cover(WORK_FACTOR * len(message))
        if method.answers_each:
            return RpcResponse(MessageFeed(self._answers(method)))
        return method.handle(context)

    def _answer(self, answer: RpcResponse) -> None:
        self._response = answer
        self._state = CallState.ANSWERED
        body = answer.body
        try:
            if body:
                self._state = CallState.SENDING
                self._connection.send_headers(self.id, _metadata(answer))
            for data in [body] if isinstance(body, bytes) else body:
                self._send(data)
            self._finish()
        except ProtocolError:
            raise
        except BrokenOffError:
            self._connection.close()
        except Exception:  # rendering failed
            log.exception("a response ended early")
            self.fail(RpcCode.INTERNAL, "The answer broke off.")

    def _answers(self, method: RpcMethod) -> Iterator[bytes]:
        """Yields the answer to each message as it arrives."""
        while self.is_open:
            self.since_s = time.monotonic()
            message = self._take_message()
            if message is not None:
                try:
                    response = method.handle(self._new_context(message))
                    yield bytes(response.body)  # type: ignore[arg-type]
                except Exception as error:
                    self._failure = _response_to(error).outcome
                    return
                self._connection.path.turns.wait(self._connection.cost)
            elif self.has_request:
                return
            else:
                self.wake.wait()
                self.wake.clear()

    def _send(self, data: bytes) -> None:
        """Sends messages as the client's windows and the socket allow."""
        connection = self._connection
        offset = 0
        while offset < len(data) and self.is_open:
            size = 0
            if not connection.lags:
                size = min(len(data) - offset, connection.window(self._stream))
            if size > 0:
                connection.send_data(self._stream, data[offset : offset + size])
                offset += size
                connection.end_stall(self)
                continue
            if connection.begin_stall(self):  # the client's time limit starts anew
                self.since_s = time.monotonic()
            self.wake.wait()
            self.wake.clear()
            connection.path.turns.wait(connection.cost)

    def _finish(self) -> None:
        """Sends the status, and ends the call."""
        if not self.is_open or self._response is None:
            return
        outcome = self._failure or self._response.outcome
        headers = [] if self._state is CallState.SENDING else _metadata(self._response)
        headers.append((b"grpc-status", b"%d" % outcome.code))
        if outcome.message:
            message = quote(outcome.message[:MAX_STATUS_LENGTH], safe=UNESCAPED)
            headers.append((b"grpc-message", message.encode()))
        self._connection.send_headers(self.id, headers, ends=True)
        self._connection.budget.pay()
        if not self.has_request:
            self._connection.reset(self.id, ErrorCodes.NO_ERROR)
        self.end()

    def fail(self, code: RpcCode, text: str) -> None:
        """Ends the call with this status, at any stage."""
        self._response = self._response or RpcResponse()
        self._failure = RpcOutcome(code, text)
        self._finish()

    def expire(self) -> None:
        """Ends the call, whose time is over."""
        self.fail(RpcCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def cut_off(self, code: ErrorCodes = ErrorCodes.CANCEL) -> None:
        """Ends the call without a status."""
        if self.is_open:
            self._connection.reset(self.id, code)
            self.end()

    def shut_down(self) -> None:
        """Ends an endless answer: the server shuts down, or is replaced."""
        if self._response is not None and getattr(self._response.body, "endless", False):
            self.fail(RpcCode.UNAVAILABLE, "The server is shutting down.")

    def end(self) -> None:
        """Ends the call: it is answered, or the client has canceled it, or has disconnected."""
        if not self.is_open:
            return
        connection = self._connection
        is_answering = self._state is not CallState.WAITING
        self._state = CallState.ENDED
        if self._deadline is not None:
            self._deadline.stop()
            self._deadline.close()
        connection.add_buffered(-len(self._body) - self._size)
        self._body.clear()
        connection.remove_call(self, self.id)
        response = self._response
        self._response = None
        if response is not None and self._context is not None:
            if connection.path.logs_access:
                log_exchange(connection.path.log, self._context, response)
            response.close()
        self._context = None
        greenlet = self._greenlet
        # A killed greenlet keeps the frames of its work, and they keep this object.
        self._greenlet = None
        if is_answering and greenlet is not None and greenlet is not gevent.getcurrent():
            greenlet.kill(block=False)
        if self.gone is not None:
            gevent.get_hub().loop.run_callback(self._tell_of_end)

    def _tell_of_end(self) -> None:
        """Hub: ends what waits for the client, unless it has ended meanwhile."""
        gone = self.gone
        self.gone = None
        if gone is not None:
            gone()


def _metadata(response: Response) -> Headers:
    """Returns the metadata before the first message: the headers without those of HTTP."""
    metadata = [*OK]
    for name, value in response.headers.items():
        key = name.lower()
        if key not in ("content-type", "content-length"):
            metadata.append((key.encode("latin-1", "replace"), value.encode("latin-1", "replace")))
    return metadata


def _failed(error: ApiError) -> RpcResponse:
    """Returns a response without messages, with the outcome of `error`."""
    outcome = RpcOutcome()
    outcome.fail(error)
    return RpcResponse(b"", error.headers, outcome, error.status)


def _response_to(error: Exception) -> RpcResponse:
    api_error = as_api_error(error)
    forget_frames(error)
    return _failed(api_error)


def _as_rpc(response: Response) -> RpcResponse:
    """Converts a middleware's HTTP response, whose error message becomes the status message."""
    if isinstance(response, RpcResponse):
        return response
    answer = _failed(ApiError(response.status, "", error_message(response.body)))
    answer.headers.update(response.headers)
    return answer
