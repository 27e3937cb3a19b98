"""One gRPC call: a stream of HTTP/2, from its headers to the status after its last message."""

from __future__ import annotations

import logging
import time

import gevent
from h2.errors import ErrorCodes
from h2.stream import H2Stream

from app.base.clock.clock import Watcher
from app.serving.api.errors import as_api_error, forget_frames
from app.serving.gunicorn.http2.heads import as_rpc, metadata, status, timeout_s
from app.serving.gunicorn.http2.transport import CallTransport
from app.serving.http.context import RequestContext, current_request
from app.serving.http.errors import ApiError
from app.serving.http.response import CLIENT_GONE, Response, StreamingBody
from app.serving.http.rpc import PREFIX_BYTES, RpcCode, RpcMethod, RpcOutcome, RpcResponse, error_response
from app.serving.http.stream import StreamSource

log = logging.getLogger(__name__)


MOST_EACH_BYTES = 1 << 16
"""Most bytes of waiting messages in a call whose messages are answered one by one."""


class RpcCall:
    """A call of `method` (None: unknown method), with the interface of `StreamTransport`.

    `has_request`: the client has sent its last message. `size`: memory of the call's headers, in bytes.
    """

    __slots__ = (
        *("_begun", "_body", "_connection", "_context", "_deadline", "_headers", "_is_logged", "_lagging"),
        *("_last", "_method", "_most_bytes", "_response", "_size", "_source", "_stream", "_unsent"),
        *("has_request", "id", "is_open", "since_s", "stalled"),
    )

    def __init__(
        self,
        connection: CallTransport[RpcCall],
        stream: H2Stream,
        method: RpcMethod | None,
        headers: dict[str, str],
        size: int,
    ) -> None:
        self._connection, self._stream, self.id = connection, stream, stream.stream_id
        self._method, self._headers, self._size = method, headers, size
        connection.buffered += size
        self._most_bytes = MOST_EACH_BYTES if method and method.each else connection.most_message_bytes
        self._body = bytearray()
        """Received bytes of the next messages."""
        self._context: RequestContext | None = None
        self._response: RpcResponse | None = None
        self._source: StreamSource | None = None
        self._unsent = b""
        self._begun = self._last = self._lagging = self._is_logged = False
        self._deadline: Watcher | None = None
        self.has_request = False
        self.stalled = False
        """True while the client's windows have no room for `_unsent`."""
        self.since_s = time.monotonic()
        """Start of the wait for the rest of the request, or for room for the answer (monotonic seconds)."""
        self.is_open = True
        if (limit_s := timeout_s(headers)) is not None:
            self._deadline = gevent.get_hub().loop.timer(limit_s)
            self._deadline.start(connection.soon, self._expire)

    # Request.

    def take(self, data: bytes, is_end: bool) -> None:
        """Hub: receives the next bytes of the client's messages."""
        self.has_request |= is_end
        self._body += data
        self._connection.buffered += len(data)
        if not self._check():
            return
        self._arrived()

    def _arrived(self) -> None:
        if self.has_request:
            self._begin()

    def _check(self) -> bool:
        """Ends the call and returns False when a message is too long, or too many bytes are buffered."""
        connection, most = self._connection, self._most_bytes
        wanted = max(len(self._body), self._end_of_message)
        if wanted > most + PREFIX_BYTES or connection.buffered > connection.most_buffered_bytes:
            text = f"A message of {wanted - PREFIX_BYTES} bytes is too long: at most {most} are read."
            self.fail(RpcCode.RESOURCE_EXHAUSTED, text)
            return False
        return True

    def _message(self) -> bytes | None:
        """Removes and returns the next message; None without a complete one. Invalid input ends the call."""
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
        return PREFIX_BYTES + (
            int.from_bytes(body[1:PREFIX_BYTES], "big") if len(body) >= PREFIX_BYTES else 0
        )

    def _begin(self) -> None:
        message = self._message()
        if message is None:
            return
        if self._body:
            self.fail(RpcCode.INTERNAL, "The call has more than one message.")
            return
        self._context = self._new_context(message)
        gevent.spawn(self._handle, self._context)

    def _new_context(self, message: bytes) -> RequestContext:
        headers, path = self._headers, self._headers[":path"]
        headers["content-length"] = str(len(message))
        context = RequestContext(
            *("POST", path, path, headers, self._connection.address[0], time.monotonic()),
            body=message,
            http_version="HTTP/2",
            host=headers.get(":authority", ""),
        )
        context.new_id, context.way = self._connection.path.new_id, "grpc"
        if self._method is not None:
            context.route, context.label = self._method, self._method.path
        return context

    # Answer.

    def _handle(self, context: RequestContext) -> None:
        connection = self._connection
        connection.path.turns.wait(connection.share)
        if not self.is_open:
            return
        current_request.set(context)
        method, middleware = self._method, connection.path.middleware
        try:
            response: Response | None = middleware.begin(context)
            if response is None:
                if method is None:
                    raise ApiError(501, "NotImplementedError", f"There is no method {context.path[:200]}.")
                response = method.handle(context)
        except Exception as error:
            response = _response_to(error)
        try:
            connection.guarded(self._end, response)
        except Exception:  # rendering failed
            log.exception("an answer broke off")
            connection.guarded(self.fail, RpcCode.INTERNAL, "The answer broke off.")

    def _end(self, response: Response) -> None:
        """Runs the middleware on the answer, and sends it."""
        assert self._context is not None
        answer = response if isinstance(response, RpcResponse) else as_rpc(response)
        if not self.is_open:  # the client left meanwhile
            answer.status = CLIENT_GONE
        try:
            self._connection.path.middleware.end(self._context, answer)
        except Exception as error:
            _response_to(error)
            answer = error_response(ApiError(500, "InternalServerError", "The answer could not be finished."))
        if not self.is_open:
            answer.close()
            return
        self._response = answer
        body = answer.body
        if isinstance(body, StreamingBody):
            self._open(answer)
            body.attach(self)  # type: ignore[arg-type]
        else:
            data = body if isinstance(body, bytes) else b"".join(body)
            if data:
                self._open(answer)
            self.write(data, last=True)

    def _open(self, response: Response) -> None:
        """Sends the metadata, before the first message."""
        if not self._begun:
            self._begun = True
            self._connection.send_headers(self.id, metadata(response))

    @property
    def lags(self) -> bool:
        """True while pieces wait in the source until `ask` takes them."""
        return self._lagging or self._connection.lags

    def start(self, source: StreamSource) -> None:
        self._source = source

    def write(self, data: bytes, last: bool = False) -> None:
        """Sends messages soon; `last` ends the call with its status."""
        self._unsent = self._unsent + data if self._unsent else data
        self._last |= last
        self._push()

    def send_soon(self, data: bytes) -> None:
        """Sends a short message, as `write` does."""
        if self._unsent or len(data) > self._connection.room(self._stream):
            self.write(data)
        else:
            self._connection.send_data(self._stream, data)

    def _push(self) -> None:
        """Sends as much as the client's windows allow."""
        connection, unsent = self._connection, self._unsent
        size = min(len(unsent), connection.room(self._stream))
        if size > 0:
            connection.send_data(self._stream, unsent[:size])
            self._unsent = unsent = unsent[size:]
        if unsent:
            self._wait_for_room(size > 0)
            return
        if self.stalled:
            self.stalled = False
            connection.stalled.pop(self, None)
        if self._last:
            self._finish()

    def _wait_for_room(self, has_sent: bool) -> None:
        """Waits until a window grows; `has_sent`: the client's time limit starts anew."""
        stalled = self._connection.stalled
        if has_sent or not self.stalled:
            self.since_s = time.monotonic()
            stalled.pop(self, None)
            stalled[self] = None
        self.stalled = self._lagging = True

    def lag(self) -> None:
        """Starts taking slices of the source, in turns with other calls."""
        if self._source is not None:
            self._lagging = True
            self._connection.soon(self.ask)

    def go_on(self) -> None:
        if self.stalled and self.is_open:
            self._push()
            if not self.stalled and self.is_open:
                self.lag()

    def ask(self) -> None:
        """Takes a slice of the source now, and another one in the next turn."""
        connection = self._connection
        if self.stalled or connection.lags or self._source is None or not self.is_open:
            return
        try:
            data, more, last = self._source.next_slice()
        except Exception:  # rendering failed
            log.exception("an answer broke off")
            self.fail(RpcCode.INTERNAL, "The answer broke off.")
            return
        self.write(data, last)
        if not self.stalled and self.is_open:
            self._lagging = more
            if more:
                connection.soon(self.ask)

    # End.

    def _finish(self) -> None:
        response = self._response
        assert response is not None
        trailers = status(response.outcome)
        headers = trailers if self._begun else metadata(response) + trailers
        self._connection.send_headers(self.id, headers, ends=True)
        if not self.has_request:
            self._connection.reset(self.id, ErrorCodes.NO_ERROR)
        self._close()

    def fail(self, code: RpcCode, text: str) -> None:
        """Ends the call with this status, at any stage."""
        if not self.is_open:
            return
        self._abandon()
        self._response = RpcResponse(b"", None, RpcOutcome(code, text))
        self._unsent, self._last = b"", True
        self._finish()

    def _expire(self) -> None:
        self.fail(RpcCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def give_up(self) -> None:
        self.fail(RpcCode.DEADLINE_EXCEEDED, "The request did not come in time.")

    def cut_off(self) -> None:
        """Resets the call: the client's windows had no room for too long."""
        if self.is_open:
            self._connection.reset(self.id, ErrorCodes.CANCEL)
            self.gone()

    def leave(self) -> None:
        """Ends the call: the server shuts down, or is replaced."""
        self.fail(RpcCode.UNAVAILABLE, "The server is shutting down.")

    @property
    def is_endless(self) -> bool:
        return self._response is not None and getattr(self._response.body, "endless", False)

    def break_off(self) -> None:
        self._connection.close()

    def gone(self) -> None:
        if self.is_open:
            self._abandon()
            self._close()

    def _abandon(self) -> None:
        """Stops the source and closes the response."""
        source, self._source = self._source, None
        if source is not None:
            source.leave()
        if self._response is not None:
            self._close_response()

    def close(self) -> None:
        """Drops the source, which has ended."""
        self._source = None

    def _close(self) -> None:
        self.is_open = False
        self._source = None
        if self._deadline is not None:
            self._deadline.stop()
            self._deadline.close()
            self._deadline = None
        self._connection.buffered -= len(self._body) + self._size
        self._body = bytearray()
        self._connection.forget_call(self.id, self)
        if self._response is not None:
            self._close_response()

    def _close_response(self) -> None:
        response, context = self._response, self._context
        self._response = None
        if response is None or context is None:
            return
        path = self._connection.path
        if path.logs_access and not self._is_logged:
            self._is_logged = True
            path.log_access(context, response)
        response.close()


class EachCall(RpcCall):
    """Answers one message per turn, in the hub; for the middleware, all messages are one request."""

    __slots__ = ()

    def _arrived(self) -> None:
        self.lag()

    def lag(self) -> None:
        """Schedules `ask`: there may be a message, or room for an answer."""
        self._connection.soon(self.ask)

    def ask(self) -> None:
        """Answers one message now, and another one in the next turn."""
        if self._may_answer and (self._body or self.has_request):
            self._answer_next()
        if self._may_answer and (self.has_request or len(self._body) >= self._end_of_message):
            self._connection.soon(self.ask)

    @property
    def _may_answer(self) -> bool:
        return self.is_open and not self.stalled and not self._connection.lags

    def _answer_next(self) -> None:
        """Answers the next message, or ends the call after the last one."""
        message = self._message()
        if message is None:
            if self.is_open and self.has_request:
                self._end(RpcResponse())
            return
        self.since_s = time.monotonic()
        context = self._new_context(message)
        try:
            if self._context is None:
                self._context = context
                if (refusal := self._connection.path.middleware.begin(context)) is not None:
                    self._end(refusal)
                    return
            data = bytes(self._method.handle(context).body)  # type: ignore[arg-type, union-attr]
        except Exception as error:
            self._end(_response_to(error))
            return
        self._open(RpcResponse())
        self.write(data)

    def _abandon(self) -> None:
        if self._context is not None and self._response is None:
            self._response = RpcResponse(status=CLIENT_GONE)
            self._connection.path.middleware.end(self._context, self._response)
        super()._abandon()


def _response_to(error: Exception) -> RpcResponse:
    known = as_api_error(error)
    forget_frames(error)
    return error_response(known)
