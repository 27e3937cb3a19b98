"""An HTTP/2 connection and its gRPC calls, served from the hub in fair turns.

A call is a stream of HTTP/2, from its headers to the status after its last message.
"""

import logging
import re
import time
from collections.abc import Iterator, Mapping
from urllib.parse import quote

import gevent.event
import gevent.socket
import msgspec
from h2 import events
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from h2.stream import H2Stream

from app.base.clock.clock import Watcher
from app.serving.api.errors import as_api_error, forget_frames
from app.serving.gunicorn.connections import Address, FastPath
from app.serving.gunicorn.http2 import transport
from app.serving.gunicorn.http2.budget import FrameBudget
from app.serving.gunicorn.logs import log_exchange
from app.serving.http import route
from app.serving.http.connection import BrokenOffError
from app.serving.http.context import RequestContext, current_request
from app.serving.http.errors import ApiError, internal, not_implemented
from app.serving.http.response import CLIENT_GONE, Response

log = logging.getLogger(__name__)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""First bytes of a client with prior knowledge of HTTP/2 (RFC 9113, section 3.4)."""
HEAD_BYTES = transport.FRAME_HEAD.size
SLICE_S = 0.001
"""Most work for one connection in a row, in seconds: a quarter of a turn of the loop."""
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
UNSUPPORTED: transport.Headers = [(b":status", b"415"), (b"content-type", b"text/plain")]
"""The answer to requests that are no gRPC calls (grpc/doc/PROTOCOL-HTTP2.md)."""
MOST_EACH_BYTES = 1 << 16
"""Most bytes of waiting messages in a call whose messages are answered one by one."""
OK: transport.Headers = [(b":status", b"200"), (b"content-type", b"application/grpc")]
LONGEST_MESSAGE = 2000
"""Most characters of a status message."""
PLAIN = " !#$&'()*+,/:;=?@[]"
"""Characters of a status message sent unescaped, besides letters and digits."""
TIMEOUT = re.compile(r"(\d{1,8})([HMSmun])", re.ASCII)
LONGEST_S = 1e9
UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


class Http2Connection(transport.CallTransport):
    """One client's HTTP/2 connection with prior knowledge, taken over from a `FastConnection`."""

    def __init__(
        self, path: FastPath, client: gevent.socket.socket, address: Address, data: bytes
    ) -> None:
        """`data`, all bytes so far, is read in this connection's turn."""
        rpc = None if path.app is None else path.app.rpc
        assert rpc is not None  # only a server with gRPC upgrades
        super().__init__(path, client, address, rpc)
        self._methods = rpc.methods
        self.calls: dict[int, RpcCall] = {}
        self.stalled: dict[RpcCall, None] = {}
        """Calls without room in the client's windows, the longest waiting first."""
        self._in = data
        self._settled = self._is_behind = False
        self._budget = FrameBudget()
        self._has_announced_end = False
        self._resets = self._block_bytes = 0
        """`_block_bytes`: size of an unfinished header block, with the heads of its frames."""
        self.send_pending()
        self._wait()

    def _readable(self) -> None:
        if self.path.turns.has_time():
            self._in += self._receive()
            self.guarded(self._read)
        else:
            self._wait()

    def _wait(self) -> None:
        self._is_behind = True
        self._reader.stop()
        self.soon(self._go_on)

    def _go_on(self) -> None:
        if self.is_open:
            self._is_behind = False
            self._reader.start(self._readable)
            if len(self._in) < transport.MOST_FRAME_BYTES + HEAD_BYTES:
                self._in += self._receive()
            self._read()

    def _read(self) -> None:
        data, at, until_s = self._in, 0, time.monotonic() + SLICE_S
        if not self._settled:
            if len(data) < len(PREFACE) + HEAD_BYTES:
                return
            self.h2.receive_data(data[: len(PREFACE)])
            _, _, kind, flags, _ = transport.FRAME_HEAD.unpack_from(data, len(PREFACE))
            if kind != SETTINGS or flags & ACK:
                raise transport.ConnectionFailed(
                    ErrorCodes.PROTOCOL_ERROR, "the first frame is not SETTINGS"
                )
            self._settled, at = True, len(PREFACE)
        while self.is_open and len(data) - at >= HEAD_BYTES:
            high, low, kind, flags, stream = transport.FRAME_HEAD.unpack_from(data, at)
            size = high << 16 | low
            # h2 would wait for the first of these, and refuse the other with the wrong error.
            if size > transport.MOST_FRAME_BYTES or kind == SETTINGS and flags & ACK and size:
                raise transport.ConnectionFailed(ErrorCodes.FRAME_SIZE_ERROR, "a frame is too long")
            end = at + HEAD_BYTES + size
            if end > len(data):
                break
            frame, at = data[at:end], end
            self._budget.take(kind, flags, size, len(self.calls))
            # After a GOAWAY, h2 would take no more frames; its client still waits for answers.
            if kind != GOAWAY or stream & STREAM_BITS or size < 8 or self._block_bytes:
                self._take(kind, flags, frame)
            if time.monotonic() > until_s and self.is_open:
                self._wait()
                break
        self._in = data[at:]

    def _take(self, kind: int, flags: int, frame: bytes) -> None:
        if kind in (HEADERS, CONTINUATION):
            self._block_bytes += len(frame)
            if self._block_bytes > transport.MOST_HEADER_BYTES + HEAD_BYTES:
                raise transport.ConnectionFailed(
                    ErrorCodes.ENHANCE_YOUR_CALM, "a header block is too long"
                )
            if flags & END_HEADERS:
                self._block_bytes = 0
        for event in self.h2.receive_data(frame):
            self._do(event)
        self.send_pending()

    def _do(self, event: events.Event) -> None:
        if isinstance(event, events.RequestReceived):
            self._begin_call(event)
            return
        call = self.calls.get(getattr(event, "stream_id", None) or 0)
        if isinstance(event, events.DataReceived):
            self.h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id)
            if call is not None:
                call.take(event.data, event.stream_ended is not None)
        elif isinstance(event, events.TrailersReceived) and call is not None:
            if transport.read_headers(event.headers, is_trailer=True) is None:
                call.cut_off(ErrorCodes.PROTOCOL_ERROR)
            else:
                call.take(b"", True)
        elif isinstance(event, events.WindowUpdated) and call is not None:
            call.wake.set()
        elif isinstance(event, events.WindowUpdated | events.RemoteSettingsChanged):
            if len(self.h2.remote_settings) > MOST_SETTINGS:
                raise transport.ConnectionFailed(ErrorCodes.ENHANCE_YOUR_CALM, "too many settings")
            self._feed()
        elif isinstance(event, events.StreamReset):
            self._resets += 1
            if call is not None:
                call.gone()
            if self._resets > MOST_RESETS:
                raise transport.ConnectionFailed(
                    ErrorCodes.ENHANCE_YOUR_CALM, "too many calls are given up"
                )

    def _begin_call(self, event: events.RequestReceived) -> None:
        stream, is_end = event.stream_id, event.stream_ended is not None
        self.is_new = False
        if (found := transport.read_headers(event.headers)) is None:
            self.reset(stream, ErrorCodes.PROTOCOL_ERROR)
            return
        size = sum(len(name) + len(value) + PER_HEADER for name, value in found.items())
        has_room = (
            self.buffered + size <= self.most_buffered_bytes
            and len(self.calls) < transport.MOST_CALLS
        )
        if self._is_leaving or not has_room:
            self.reset(stream, ErrorCodes.REFUSED_STREAM)
        elif found[":method"] != "POST" or not found.get("content-type", "").startswith(
            "application/grpc"
        ):
            self.send_headers(stream, UNSUPPORTED, ends=True)
            if not is_end:
                self.reset(stream, ErrorCodes.NO_ERROR)
        else:
            method, self.busy = self._methods.get(found[":path"]), True
            call = self.calls[stream] = RpcCall(self, self.h2.streams[stream], method, found, size)
            if is_end:
                call.take(b"", True)

    def _feed(self) -> None:
        for call in self.stalled:
            call.wake.set()

    def send_data(self, stream: H2Stream, data: bytes) -> None:
        super().send_data(stream, data)
        self._budget.pay()

    def note_answer(self) -> None:
        """Called when a call has been answered to its end."""
        self._budget.pay()

    def catch_up(self) -> None:
        super().catch_up()
        self._feed()

    @property
    def has_unread(self) -> bool:
        return self._is_behind or super().has_unread

    def look(self, now_s: float) -> None:
        """Ends an idle connection, and calls whose client neither sends nor reads in time.

        Closes the connection of a client that has left, whose frames may be unread for minutes.
        """
        is_idle = not self.busy and now_s - self.since_s > self.path.idle_s
        if is_idle or (self._is_behind and self.is_closed_by_client):
            self.close()
            return
        self._budget.forgive()
        self._resets = max(0, self._resets - RESETS_FORGIVEN)
        for call in list(self.stalled):
            if now_s - call.since_s < self.path.client_timeout_s:
                break
            self.soon(call.cut_off)
        late_s = now_s - self.path.client_timeout_s
        for late in self.calls.values():
            if not late.has_request and late.since_s < late_s:
                self.soon(late.expire)

    @property
    def is_receiving(self) -> bool:
        return bool(self._in)

    def announce_end(self) -> None:
        """Asks for no new calls by a GOAWAY without a last stream (RFC 9113, section 6.8).

        Calls that the client sent before it reads this frame are served. Endless calls end.
        A connection without any call yet is left alone.
        """
        if not (self.is_new or self._has_announced_end or self._is_leaving):
            self._has_announced_end = True
            self.guarded(self._say_goodbye, ErrorCodes.NO_ERROR, last_stream=STREAM_BITS)
            self._end_endless_calls()

    def leave(self) -> None:
        """Refuses new calls by GOAWAY; running calls go on, endless ones end."""
        if not self._is_leaving:
            self._is_leaving = True
            self.guarded(self._say_goodbye, ErrorCodes.NO_ERROR)
            self._end_endless_calls()

    def _end_endless_calls(self) -> None:
        for call in list(self.calls.values()):
            self.soon(call.shut_down)

    def close(self) -> None:
        """Sends the bytes that the socket takes at once, and closes it; answers of running calls
        are lost.
        """
        if self not in self.path.open:
            return
        del self.path.open[self]
        self.leave()
        self.flush()
        self._forget()
        self.catch_up()
        self._parts.clear()
        self.h2.end()
        self.client.close()
        for call in list(self.calls.values()):
            self.soon(call.gone)


class RpcCall:
    """A call of `method` (None: unknown): messages come in the hub, and a greenlet answers.

    `has_request`: the client has sent its last message. `since_s`: start of the wait for the rest
    of the request, or for room for the answer (monotonic seconds). `size`: memory of the call's
    headers, in bytes.
    """

    def __init__(
        self,
        connection: Http2Connection,
        stream: H2Stream,
        method: route.RpcMethod | None,
        headers: dict[str, str],
        size: int,
    ) -> None:
        self._connection, self._stream, self.id = connection, stream, stream.stream_id
        self._method, self._headers, self._size = method, headers, size
        connection.buffered += size
        self._is_each = method is not None and method.each
        self._body = bytearray()
        """Received bytes of the next messages."""
        self.wake = gevent.event.Event()
        """Set when there may be room for the answer, or another message."""
        self._greenlet: gevent.Greenlet | None = None
        self._context: RequestContext | None = None
        self._response: route.RpcResponse | None = None
        self._begun = self._is_answering = self.has_request = False
        self.since_s, self.is_open = time.monotonic(), True
        self._deadline: Watcher | None = None
        if given := TIMEOUT.fullmatch(headers.get("grpc-timeout", "")):
            limit_s = min(LONGEST_S, int(given[1]) * UNITS_S[given[2]])
            self._deadline = gevent.get_hub().loop.timer(limit_s)
            self._deadline.start(connection.soon, self.expire)

    def take(self, data: bytes, is_end: bool) -> None:
        """Hub: receives the next bytes of the client's messages."""
        connection = self._connection
        most = MOST_EACH_BYTES if self._is_each else connection.most_message_bytes
        self.has_request |= is_end
        self._body += data
        connection.buffered += len(data)
        wanted = max(len(self._body), self._end_of_message)
        if (
            wanted > most + route.PREFIX_BYTES
            or connection.buffered > connection.most_buffered_bytes
        ):
            text = f"A message of {wanted - route.PREFIX_BYTES} bytes is too long: at most {most} are read."
            self.fail(route.RpcCode.RESOURCE_EXHAUSTED, text)
        elif self._greenlet is not None:
            self.wake.set()
        elif self._is_each or is_end:
            message = b"" if self._is_each else self._message()
            if message is not None and self._body and not self._is_each:
                self.fail(route.RpcCode.INTERNAL, "The call has more than one message.")
            elif message is not None:
                self._greenlet = gevent.spawn(connection.guarded, self._serve, message)

    def _message(self) -> bytes | None:
        body, end = self._body, self._end_of_message
        if len(body) < end:
            if self.has_request and (body or not self._begun):
                self.fail(
                    route.RpcCode.INTERNAL, "The call has ended within a message, or without any."
                )
            return None
        if body[0]:
            self.fail(
                route.RpcCode.UNIMPLEMENTED,
                "Compressed messages are not read: send them as identity.",
            )
            return None
        message = bytes(memoryview(body)[route.PREFIX_BYTES : end])
        self._connection.buffered -= end
        del body[:end]
        return message

    @property
    def _end_of_message(self) -> int:
        """Size of the next message with its prefix, in bytes; 5 until the prefix is complete."""
        prefix = self._body[: route.PREFIX_BYTES]
        has_size = len(prefix) == route.PREFIX_BYTES
        return route.PREFIX_BYTES + (int.from_bytes(prefix[1:], "big") if has_size else 0)

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

    def _serve(self, message: bytes) -> None:
        """Greenlet: runs the middleware and the method, and sends the answer."""
        path, method, context = self._connection.path, self._method, self._new_context(message)
        path.turns.wait(self._connection.share)
        if not self.is_open:
            return
        self._context = context
        current_request.set(context)
        try:
            response: Response | None = path.middleware.begin(context)
            if response is None:
                if method is None:
                    raise not_implemented(f"There is no method {context.path[:200]}.")
                feed = route.MessageFeed(self._answers(method)) if method.each else None
                response = route.RpcResponse(feed) if feed else method.handle(context)
        except Exception as error:
            response = _response_to(error)
        assert response is not None
        answer = _as_rpc(response)
        if not self.is_open:  # the client left meanwhile
            answer.status = CLIENT_GONE
        try:
            path.middleware.end(context, answer)
        except Exception as error:
            _response_to(error)
            answer = route.error_response(internal("The answer could not be finished."))
        if self.is_open:
            self._answer(answer)
        else:
            answer.close()

    def _answer(self, answer: route.RpcResponse) -> None:
        self._response, body, self._is_answering = answer, answer.body, True
        try:
            if body:
                self._begun = True
                self._connection.send_headers(self.id, _metadata(answer))
            for data in [body] if isinstance(body, bytes) else body:
                self._send(data)
            self._finish()
        except ProtocolError:
            raise
        except BrokenOffError:
            self._connection.close()
        except Exception:  # rendering failed
            log.exception("an answer broke off")
            self.fail(route.RpcCode.INTERNAL, "The answer broke off.")

    def _answers(self, method: route.RpcMethod) -> Iterator[bytes]:
        """Yields the answer to each message as it comes."""
        while self.is_open:
            self.since_s = time.monotonic()
            if (message := self._message()) is not None:
                try:
                    yield bytes(method.handle(self._new_context(message)).body)  # type: ignore[arg-type]
                except Exception as error:
                    assert self._response is not None
                    self._response.outcome = _response_to(error).outcome
                    return
                self._connection.path.turns.wait(self._connection.share)
            elif self.has_request:
                return
            else:
                self.wake.wait()
                self.wake.clear()

    def _send(self, data: bytes) -> None:
        """Sends messages as the client's windows and the socket allow."""
        connection, at = self._connection, 0
        while at < len(data) and self.is_open:
            size = 0 if connection.lags else min(len(data) - at, connection.room(self._stream))
            if size > 0:
                connection.send_data(self._stream, data[at : at + size])
                at += size
                connection.stalled.pop(self, None)
                continue
            if self not in connection.stalled:  # the client's time limit starts anew
                self.since_s = time.monotonic()
                connection.stalled[self] = None
            self.wake.wait()
            self.wake.clear()
            connection.path.turns.wait(connection.share)

    def _finish(self) -> None:
        if not self.is_open or self._response is None:
            return
        outcome, headers = self._response.outcome, [] if self._begun else _metadata(self._response)
        headers.append((b"grpc-status", b"%d" % outcome.code))
        if outcome.message:
            headers.append(
                (b"grpc-message", quote(outcome.message[:LONGEST_MESSAGE], safe=PLAIN).encode())
            )
        self._connection.send_headers(self.id, headers, ends=True)
        self._connection.note_answer()
        if not self.has_request:
            self._connection.reset(self.id, ErrorCodes.NO_ERROR)
        self.gone()

    def fail(self, code: route.RpcCode, text: str) -> None:
        """Ends the call with this status, at any stage."""
        self._response = self._response or route.RpcResponse()
        self._response.outcome = route.RpcOutcome(code, text)
        self._finish()

    def expire(self) -> None:
        self.fail(route.RpcCode.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def cut_off(self, code: ErrorCodes = ErrorCodes.CANCEL) -> None:
        if self.is_open:
            self._connection.reset(self.id, code)
            self.gone()

    def shut_down(self) -> None:
        """Ends an endless answer: the server shuts down, or is replaced."""
        if self._response is not None and getattr(self._response.body, "endless", False):
            self.fail(route.RpcCode.UNAVAILABLE, "The server is shutting down.")

    def gone(self) -> None:
        """Ends the call: it is answered, or the client has given it up, or has left."""
        if not self.is_open:
            return
        connection, self.is_open = self._connection, False
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
        if (
            self._is_answering
            and self._greenlet is not None
            and self._greenlet is not gevent.getcurrent()
        ):
            self._greenlet.kill(block=False)


def _metadata(response: Response) -> transport.Headers:
    """Returns the metadata before the first message:

    the response's headers without those of HTTP.
    """
    metadata = [*OK]
    for name, value in response.headers.items():
        if (key := name.lower()) not in ("content-type", "content-length"):
            metadata.append((key.encode("latin-1", "replace"), value.encode("latin-1", "replace")))
    return metadata


def _response_to(error: Exception) -> route.RpcResponse:
    known = as_api_error(error)
    forget_frames(error)
    return route.error_response(known)


def _as_rpc(response: Response) -> route.RpcResponse:
    """Converts a middleware's HTTP response; the error message in its body becomes the status
    message.
    """
    if isinstance(response, route.RpcResponse):
        return response
    try:
        error = msgspec.json.decode(response.body)["error"]  # type: ignore[arg-type]
    except (msgspec.DecodeError, KeyError, TypeError):
        error = ""
    text = error.get("message", "") if isinstance(error, Mapping) else error
    answer = route.error_response(ApiError(response.status, "", str(text)))
    answer.headers.update(response.headers)
    return answer
