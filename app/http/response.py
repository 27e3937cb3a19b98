"""An HTTP response, whoever sends it: Flask under any worker, or the fast path.

A `Response` is a WSGI callable, so Flask returns it as it is. Werkzeug's own copies and completes the headers
at every call, at a tenth of the cost of a short chat; ours are complete when they are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec

from app.http.errors import ApiError
from app.http.stream import StreamTransport

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
EVENT_STREAM = "text/event-stream; charset=utf-8"
UNBUFFERED = "X-Accel-Buffering"
"""With "no" it has nginx, and proxies that know its word, pass each event on at once."""
DONE = b"data: [DONE]\n\n"
"""The event that vLLM ends a stream with."""
_PHRASES = {each.value: each.phrase for each in HTTPStatus} | {
    203: "Non Authoritative Information",
    207: "Multi Status",
    306: "Switch Proxy",
    413: "Request Entity Too Large",
    414: "Request URI Too Long",
    416: "Requested Range Not Satisfiable",
    422: "Unprocessable Entity",
    449: "Retry With",
    511: "Network Authentication Failed",
}
"""Python's words change with its version; where Werkzeug has others, they are Werkzeug's."""
STATUS_LINES = {status: f"{status} {phrase.upper()}" for status, phrase in _PHRASES.items()}
"""Code and reason phrase."""
CLIENT_GONE = 499
"""Status, for the logs only, of an answer that nobody waits for any more."""


class StreamingBody:
    """A body that comes piece by piece. It is either iterated or attached, once; `close` always."""

    __slots__ = ("bytes_sent", "gone")
    endless = False
    """It goes on for as long as the server does."""
    was_damaged = False
    """Something went wrong with it on purpose."""

    def __init__(self) -> None:
        self.bytes_sent = 0
        """Bytes of content that have gone to the server or the socket; who left may have got fewer."""
        self.gone = False
        """The client left before the end."""

    @property
    def is_cut_off(self) -> bool:
        """The end is missing, on purpose."""
        return False

    def __iter__(self) -> Iterator[bytes]:
        raise NotImplementedError

    def attach(self, transport: StreamTransport) -> None:
        """Have the pieces written to `transport` from the hub, as they come."""
        raise NotImplementedError

    def close(self) -> None:
        """The server is done with it."""


class CountedBody:
    """A body of pieces that counts its bytes; closing it closes the pieces."""

    __slots__ = ("_next", "_pieces", "bytes_sent", "gone")

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces
        self._next = iter(pieces).__next__
        self.bytes_sent = 0
        self.gone = False

    def __iter__(self) -> CountedBody:
        return self

    def __next__(self) -> bytes:
        piece = self._next()
        self.bytes_sent += len(piece)
        return piece

    def close(self) -> None:
        if (close := getattr(self._pieces, "close", None)) is not None:
            close()


class Response:
    """Status, headers and body; a body that is bytes has its `Content-Length`, unless it is `streamed`.

    `body` is bytes, or any iterable of bytes that is sent on as it comes. `streamed` says that bytes are a
    stream whose pieces were all there at once: they leave as one chunk. The names of `headers` differ in more
    than case; they leave in the order in which they were set.
    """

    __slots__ = ("callbacks", "body", "headers", "status", "streamed")

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
        self.headers = dict(headers) if headers else {}
        if content_type is not None:
            self.headers["Content-Type"] = content_type
        if content_type is EVENT_STREAM:
            self.headers[UNBUFFERED] = "no"
        if not streamed and isinstance(body, bytes):
            self.headers["Content-Length"] = str(len(body))
        self.body = body
        self.callbacks: list[Callable[[], None]] | None = None
        """What `close` calls. A response of bytes without any need not be closed."""

    @property
    def status_line(self) -> str:
        return STATUS_LINES.get(self.status) or f"{self.status} UNKNOWN"

    def header_items(self) -> list[tuple[str, str]]:
        return list(self.headers.items())

    def replace_body(self, body: bytes) -> None:
        """Send `body` instead, and its length."""
        self.body = body
        self.headers["Content-Length"] = str(len(body))

    def header_lines(self) -> str:
        """The headers as lines of HTTP/1.1, with the empty line that ends a head."""
        lines = ""
        for name, value in self.headers.items():
            lines += f"{name}: {value}\r\n"
        return lines + "\r\n"

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when the answer has been sent, or nobody waits for it any more."""
        if self.callbacks is None:
            self.callbacks = []
        self.callbacks.append(callback)

    def close(self) -> None:
        """The server is done with the response: close the body, then call back, whatever of it fails."""
        callbacks, self.callbacks = self.callbacks, None
        with ExitStack() as last_first:
            for callback in reversed(callbacks or ()):
                last_first.callback(callback)
            if not isinstance(self.body, bytes) and (close := getattr(self.body, "close", None)) is not None:
                close()

    def without_body(self) -> None:
        """As a HEAD request has it: the length is that of what is not sent."""
        self.body = b""

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response(self.status_line, self.header_items())
        if isinstance(self.body, bytes):
            if self.callbacks is None:
                return [self.body]
            return ClosingBody([self.body], self)
        return ClosingBody(self.body, self)


class ClosingBody:
    """A body as WSGI wants it: its `close` is the response's."""

    __slots__ = ("_next", "response")

    def __init__(self, body: Iterable[bytes], response: Response) -> None:
        self._next = iter(body).__next__
        self.response = response

    def __iter__(self) -> ClosingBody:
        return self

    def __next__(self) -> bytes:
        return self._next()

    def close(self) -> None:
        self.response.close()


class PendingResponse:
    """A response that is still to come, without a greenlet that waits for it.

    `on_abort` is called when the client leaves before it has come.
    """

    __slots__ = ("_on_abort", "_then", "outcome")

    def __init__(self, on_abort: Callable[[], None]) -> None:
        self._on_abort: Callable[[], None] | None = on_abort
        self.outcome: Response | Exception | None = None
        self._then: Callable[[Response | Exception], None] | None = None

    def then(self, callback: Callable[[Response | Exception], None]) -> None:
        """Call `callback` once with the response, or the error in its place; now if it is there already."""
        if self.outcome is not None:
            callback(self.outcome)
        else:
            self._then = callback

    def resolve(self, outcome: Response | Exception) -> None:
        """The response is there, or there will be none."""
        self.outcome = outcome
        self._on_abort = None
        callback, self._then = self._then, None
        if callback is not None:
            callback(outcome)

    def abort(self) -> None:
        """The client has gone: nobody is called any more. Nothing happens when the response is there."""
        on_abort, self._on_abort, self._then = self._on_abort, None, None
        if on_abort is not None:
            on_abort()


def json_response(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer; `body` is encoded unless it is bytes already."""
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return Response(data, status, headers, JSON)


def event_of(item: object) -> bytes:
    """One server-sent event (WHATWG HTML 9.2) that carries `item` as JSON."""
    return b"data: " + msgspec.json.encode(item) + b"\n\n"


def error_event(error: ApiError) -> bytes:
    """The event of an error that came after the stream had begun."""
    return b"data: " + error.body() + b"\n\n"
