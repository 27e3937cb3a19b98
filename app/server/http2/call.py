"""One call of gRPC: a stream of HTTP/2, from its headers to the status behind its last message."""

from __future__ import annotations

import logging
import time

import gevent

from app.http.connection import Watcher
from app.http.context import RequestContext, current_request
from app.http.errors import ApiError
from app.http.response import CLIENT_GONE, Response, StreamingBody
from app.http.rpc import PREFIX_BYTES, RpcCode, RpcMethod, RpcOutcome, RpcResponse, error_response
from app.http.stream import StreamSource
from app.server.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    Reason,
    data_frames,
    frame,
    head,
    reset,
)
from app.server.http2.heads import as_rpc, metadata, status, timeout_s
from app.server.http2.owner import CallConnection

log = logging.getLogger(__name__)


class RpcCall:
    """A call of `method`, None when there is no such method. It is what a `StreamTransport` is for HTTP/1.1.

    `window` is how many bytes of messages the client allows. `has_request` says that the client has said all.
    """

    __slots__ = (
        *("_begun", "_body", "_connection", "_context", "_deadline", "_headers", "_is_logged", "_lagging"),
        *("_last", "_method", "_most_bytes", "_outbox", "_response", "_size", "_source", "_unsent"),
        *("has_request", "id", "is_open", "since_s", "stalled", "window"),
    )

    def __init__(
        self,
        connection: CallConnection[RpcCall],
        id: int,
        window: int,
        method: RpcMethod | None,
        headers: dict[str, str],
        size: int,
    ) -> None:
        """`size`: the bytes of memory that its headers take."""
        self.id, self.window = id, window
        self._connection, self._outbox = connection, connection.outbox
        self._method, self._headers, self._size = method, headers, size
        connection.buffered += size
        self._most_bytes = connection.most_message_bytes
        self._body = bytearray()
        """What has come of the next message."""
        self._context: RequestContext | None = None
        self._response: RpcResponse | None = None
        self._source: StreamSource | None = None
        self._unsent = b""
        self._begun = self._last = self._lagging = self._is_logged = False
        self._deadline: Watcher | None = None
        self.has_request = False
        self.stalled = False
        """The client's windows have no room for what is to be said next."""
        self.since_s = time.monotonic()
        """Since when the rest of its request, or room for its answer, is awaited."""
        self.is_open = True
        if (limit_s := timeout_s(headers)) is not None:
            self._deadline = gevent.get_hub().loop.timer(limit_s)
            self._deadline.start(connection.chores.put, self._expire)

    # What the client says.

    def take(self, data: bytes, is_end: bool) -> None:
        """Hub: the next bytes of its messages."""
        self.has_request |= is_end
        self._body += data
        self._connection.buffered += len(data)
        if not self._check():
            return
        self._arrived()

    def _arrived(self) -> None:
        """More of its messages is there."""
        if self.has_request:
            self._begin()

    def _check(self) -> bool:
        """False, and the call has ended, when its message is too long, or we have too much to keep."""
        connection, most = self._connection, self._most_bytes
        wanted = max(len(self._body), self._end_of_message)
        if wanted > most + PREFIX_BYTES or connection.buffered > connection.most_buffered_bytes:
            text = f"A message of {wanted - PREFIX_BYTES} bytes is too long: at most {most} are read."
            self.fail(RpcCode.RESOURCE_EXHAUSTED, text)
            return False
        return True

    def _message(self) -> bytes | None:
        """The next whole message; None, and perhaps the call has ended, when there is none."""
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
        """How many bytes the next message has with its prefix; 5 until that is there."""
        body = self._body
        return PREFIX_BYTES + (
            int.from_bytes(body[1:PREFIX_BYTES], "big") if len(body) >= PREFIX_BYTES else 0
        )

    def _begin(self) -> None:
        """The request is all there: a greenlet answers it."""
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

    # What we say.

    def _handle(self, context: RequestContext) -> None:
        """Greenlet: find the answer."""
        if not self.is_open:
            return
        current_request.set(context)
        method, middleware = self._method, self._connection.path.middleware
        try:
            response: Response | None = middleware.begin(context)
            if response is None:
                if method is None:
                    raise ApiError(501, "NotImplementedError", f"There is no method {context.path[:200]}.")
                response = method.handle(context)
        except Exception as error:
            response = self._connection.response_to(error)
        try:
            self._connection.guarded(self._end, response)
        except Exception:  # it could not be rendered
            log.exception("an answer broke off")
            self._connection.guarded(self.fail, RpcCode.INTERNAL, "The answer broke off.")

    def _end(self, response: Response) -> None:
        """This is the answer: finish it with the middleware, and send it."""
        assert self._context is not None
        answer = response if isinstance(response, RpcResponse) else as_rpc(response)
        if not self.is_open:  # the client left meanwhile
            answer.status = CLIENT_GONE
        try:
            self._connection.path.middleware.end(self._context, answer)
        except Exception as error:
            self._connection.response_to(error)
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
        """Send the metadata before the first message."""
        if not self._begun:
            self._begun = True
            self._outbox.put(frame(HEADERS, END_HEADERS, self.id, metadata(response)))

    @property
    def lags(self) -> bool:
        """What is to be said has to wait until it is asked for."""
        return self._lagging or self._outbox.blocked

    def start(self, source: StreamSource) -> None:
        """Take pieces of `source` from now on."""
        self._source = source

    def write(self, data: bytes, last: bool = False) -> None:
        """Send messages soon; `last` ends the call with its status."""
        self._unsent = self._unsent + data if self._unsent else data
        self._last |= last
        self._push()

    def send_soon(self, data: bytes) -> None:
        """As `write`, of a short message."""
        outbox, size = self._outbox, len(data)
        if self._unsent or size > self.window or size > outbox.window:
            self.write(data)
            return
        self.window -= size
        outbox.window -= size
        outbox.put(head(0, size, DATA, 0, self.id) + data)

    def _push(self) -> None:
        """As much as the client's windows allow."""
        outbox, unsent = self._outbox, self._unsent
        size = min(len(unsent), self.window, outbox.window)
        if size > 0:
            self.window -= size
            outbox.window -= size
            outbox.put(data_frames(self.id, unsent[:size]))
            self._unsent = unsent = unsent[size:]
        if unsent:
            self._wait_for_room(size > 0)
        else:
            if self.stalled:
                self.stalled = False
                self._connection.stalled.pop(self, None)
                self._connection.hungry.pop(self, None)
            if self._last:
                self._finish()

    def _wait_for_room(self, has_said: bool) -> None:
        """Until a window grows; the time that the client has for that begins when it `has_said` something."""
        connection = self._connection
        if has_said or not self.stalled:
            self.since_s = time.monotonic()
            connection.stalled.pop(self, None)
            connection.stalled[self] = None
        self.stalled = self._lagging = True
        if self.window > 0:
            connection.hungry[self] = None
        else:
            connection.hungry.pop(self, None)

    def lag(self) -> None:
        """Ask the source for slices, in turns with other calls."""
        if self._source is not None:
            self._lagging = True
            self._connection.ask_soon(self)

    def go_on(self) -> None:
        """There may be room again."""
        if self.stalled and self.is_open:
            self._push()
            if not self.stalled and self.is_open:
                self.lag()

    def ask(self) -> bool:
        """Take a slice of what waits; whether more does."""
        if self.stalled or self._source is None or not self.is_open:
            return False
        try:
            data, more, last = self._source.next_slice()
        except Exception:  # it could not be rendered
            log.exception("an answer broke off")
            self._connection.guarded(self.fail, RpcCode.INTERNAL, "The answer broke off.")
            return False
        self._connection.guarded(self.write, data, last)
        if self.stalled or not self.is_open:
            return False
        self._lagging = more
        return more

    # How it ends.

    def _finish(self) -> None:
        """Everything is said: the status, and that is all."""
        response = self._response
        assert response is not None
        block = status(response.outcome) if self._begun else metadata(response) + status(response.outcome)
        self._outbox.put(frame(HEADERS, END_HEADERS | END_STREAM, self.id, block))
        if not self.has_request:
            self._outbox.put(reset(self.id, Reason.NO_ERROR))
        self._close()

    def fail(self, code: RpcCode, text: str) -> None:
        """End it with this status, whatever is under way."""
        if not self.is_open:
            return
        self._abandon()
        self._response = RpcResponse(b"", None, RpcOutcome(code, text))
        self._unsent, self._last = b"", True
        self._finish()

    def _expire(self) -> None:
        self.fail(RpcCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def give_up(self) -> None:
        """The rest of its request has not come."""
        self.fail(RpcCode.DEADLINE_EXCEEDED, "The request did not come in time.")

    def cut_off(self) -> None:
        """The client has given no room for what is to be said."""
        if self.is_open:
            self._outbox.put(reset(self.id, Reason.CANCEL))
            self.gone()

    def leave(self) -> None:
        """The server goes down, or gives way to another."""
        self.fail(RpcCode.UNAVAILABLE, "The server is shutting down.")

    @property
    def is_endless(self) -> bool:
        """It would go on for ever."""
        return self._response is not None and getattr(self._response.body, "endless", False)

    def break_off(self) -> None:
        """End the connection, on purpose."""
        self._connection.close()

    def gone(self) -> None:
        """The client waits for it no more."""
        if self.is_open:
            self._abandon()
            self._close()

    def _abandon(self) -> None:
        """Nobody needs what the source would yet say."""
        source, self._source = self._source, None
        if source is not None:
            source.leave()
        if self._response is not None:
            self._close_response()

    def close(self) -> None:
        """The source is done with us."""
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
        self._connection.forget_call(self)
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
