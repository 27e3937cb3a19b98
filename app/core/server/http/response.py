"""An HTTP response, sent by Flask under any worker or by the fast path.

A `Response` is a WSGI callable and its own WSGI body; Flask returns it unchanged. Its headers are
complete from the start: Werkzeug's response completes them at each call, at a tenth of the cost of
a short chat.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from wsgiref.types import StartResponse, WSGIEnvironment

import msgspec
from msgspec import Struct
from werkzeug.http import HTTP_STATUS_CODES

from app.core.server.http.errors import ApiError
from app.core.server.http.stream_transport import StreamTransport

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
EVENT_STREAM = "text/event-stream; charset=utf-8"
UNBUFFERED = "X-Accel-Buffering"
"""With "no", nginx and proxies that know this header pass each event on at once.

vLLM's streams do not have it: a proxy has to be configured for them.
"""
DONE = b"data: [DONE]\n\n"
"""Last event of a stream in vLLM."""
STATUS_LINES = {
    status: f"{status} {phrase.upper()}" for status, phrase in HTTP_STATUS_CODES.items()
}
"""Code and reason phrase in Werkzeug's wording: Python's changes with its version."""
CLIENT_GONE = 499
"""Status of an answer whose client has disconnected; only in logs and metrics."""


class StreamingBody:
    """A body sent in pieces: iterated or attached, once, and always closed."""

    __slots__ = ("bytes_sent", "gone")
    endless = False
    """The body continues until the server ends."""
    was_damaged = False
    """A fault was applied to the body on purpose."""

    def __init__(self) -> None:
        self.bytes_sent = 0
        self.gone = False
        """True if the client disconnected before the end."""

    @property
    def is_cut_off(self) -> bool:
        """True if a fault has ended the body early."""
        return False

    def __iter__(self) -> Iterator[bytes]:
        raise NotImplementedError

    def attach(self, transport: StreamTransport) -> None:
        """Sends the body through `transport` from now on."""
        raise NotImplementedError

    def close(self) -> None:
        """Called when the server needs no more of the body."""


class Response:
    """Status, headers and body. A body of bytes gets a `Content-Length`, unless `streamed`.

    Attributes:
        body: Bytes, or an iterable of bytes that are sent as they come.
        streamed: The bytes are a stream whose pieces were all due at once, and are sent as one
            chunk.
        headers: Headers in order, whose names must differ in more than case.
    """

    __slots__ = ("body", "callbacks", "headers", "pieces_bytes", "status", "streamed")

    def __init__(
        self,
        body: bytes | Iterable[bytes] = b"",
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
        streamed: bool = False,
    ) -> None:
        self.status = status
        self.streamed = streamed
        self.headers = dict(headers or {})
        if content_type is not None:
            self.headers["Content-Type"] = content_type
        if not streamed and isinstance(body, bytes):
            self.headers["Content-Length"] = str(len(body))
        self.body = body
        self.pieces_bytes = 0
        """Bytes of an iterated body so far."""
        self.callbacks: list[Callable[[], None]] | None = None
        """Called by `close`. A response of bytes without callbacks need not be closed."""

    @property
    def status_line(self) -> str:
        """Code and reason phrase."""
        return STATUS_LINES.get(self.status) or f"{self.status} UNKNOWN"

    @property
    def bytes_sent(self) -> int:
        """Bytes of content passed to the server or the socket.

        A client that disconnected may have received fewer.
        """
        if isinstance(self.body, StreamingBody):
            return self.body.bytes_sent
        if isinstance(self.body, bytes):
            return len(self.body)
        return self.pieces_bytes

    def replace_body(self, body: bytes) -> None:
        """Replaces the body and its `Content-Length`."""
        self.body = body
        self.headers["Content-Length"] = str(len(body))

    def on_close(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once, when the answer has been sent or the client has disconnected."""
        if self.callbacks is None:
            self.callbacks = []
        self.callbacks.append(callback)

    def close(self) -> None:
        """Closes the body, then calls the callbacks, the first one first."""
        steps = self.callbacks or []
        self.callbacks = None
        if not isinstance(self.body, bytes) and hasattr(self.body, "close"):
            steps.insert(0, self.body.close)
        failure: BaseException | None = None
        for step in steps:
            try:
                step()
            except BaseException as error:  # the other steps have to run, too
                failure = error
        if failure is not None:
            raise failure

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Returns the WSGI body, after it has passed status and headers to `start_response`."""
        status = STATUS_LINES.get(self.status) or self.status_line
        start_response(status, list(self.headers.items()))
        if isinstance(self.body, bytes) and self.callbacks is None:
            return [self.body]
        return self

    def __iter__(self) -> Iterator[bytes]:
        for piece in [self.body] if isinstance(self.body, bytes) else self.body:
            self.pieces_bytes += len(piece)
            yield piece


class PendingResponse(Struct, eq=False):
    """A future response, which no greenlet waits for."""

    _on_abort: Callable[[], None]
    outcome: Response | Exception | None = None
    _callback: Callable[[Response | Exception], None] | None = None

    def on_resolve(self, callback: Callable[[Response | Exception], None]) -> None:
        """Calls `callback` once with the response or error: at once, or in `resolve`."""
        if self.outcome is not None:
            callback(self.outcome)
        else:
            self._callback = callback

    def resolve(self, outcome: Response | Exception) -> None:
        """Passes the response, or the error in its place, to the callback."""
        self.outcome = outcome
        callback = self._callback
        self._callback = None
        if callback is not None:
            callback(outcome)

    def abort(self) -> None:
        """Drops the callback; call it when the client disconnects before the response is there."""
        self._callback = None
        self._on_abort()


def json_response(
    body: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Returns a JSON response; `body` is encoded unless already bytes."""
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return Response(data, status, headers, JSON)


def event_of(item: object) -> bytes:
    """Returns a server-sent event with `item` as JSON."""
    return b"data: " + msgspec.json.encode(item) + b"\n\n"


def error_event(error: ApiError) -> bytes:
    """Returns the event for an error after the stream's start."""
    return b"data: " + error.body() + b"\n\n"
