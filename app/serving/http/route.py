"""Routes of HTTP and methods of gRPC: path, handler and error format."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol

from msgspec import Struct

from app.serving.http.context import MatchedRoute, RequestContext
from app.serving.http.errors import ApiError
from app.serving.http.response import PendingResponse, Response, StreamingBody

Handler = Callable[[RequestContext], Response]
ErrorHandler = Callable[[Exception], Response]


class PlainHandler(Protocol):
    """Answers plain requests without ever waiting."""

    special_headers: frozenset[str]
    """Names, in lower case, of headers that no plain request has."""

    def recognise(self, body: bytes) -> object | None:
        """Returns the input of `answer` for a plain request; None, with nothing drawn, for any
        other.
        """

    def answer(self, context: RequestContext, request: Any) -> Response | PendingResponse:
        """Answers a recognised request. Raises errors that `Route.on_error` handles."""


JSON_MEDIA = "application/json"
STREAM_MEDIA = (JSON_MEDIA, "text/event-stream")
"""Media types of a route that streams on demand."""
BINARY_MEDIA = (JSON_MEDIA, "application/octet-stream")
"""Media types of a route that sends vectors as bytes on demand."""
NO_MEDIA: tuple[str, ...] = ()
"""Media types of a route that answers without a body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteDocs:
    """Types of a route's requests and responses, from which /openapi.json is made.

    Each attribute has a default, so a route without docs takes no body and answers any JSON or
    text.
    """

    body: tuple[Any, ...] = ()
    """Types of the body; it has to fit one."""
    example: Mapping[str, object] = field(default_factory=dict)
    """A body that succeeds; a `model` in it stands for the served one."""
    body_is_optional: bool = False
    query: type[Struct] | None = None
    """Struct with the parameters of the query."""
    answer: Any = None
    """Type of the JSON of a success."""
    media: tuple[str, ...] | None = None
    """Media types of a success; None for JSON, or for any text where `answer` is not set."""
    errors: tuple[type[Struct], ...] = ()
    """Types of errors besides the usual ones."""
    status: int = 200
    """Status of a success."""


NO_DOCS = RouteDocs()


@dataclass(frozen=True, slots=True, kw_only=True)
class Route(MatchedRoute):
    """A handler for `methods` of `path`, whose variable parts are in braces, as in vLLM.

    `handle` may wait, and raises errors that `on_error` turns into a response. `plain` answers the
    first of `methods`.
    """

    methods: tuple[str, ...]
    handle: Handler
    plain: PlainHandler | None = None
    docs: RouteDocs = NO_DOCS


class Probe:
    """Answers a GET request by `handle`, which never waits:

    without a greenlet and without Flask.
    """

    special_headers = frozenset(("content-length", "content-type"))
    """Headers of requests with a body: a probe reads none."""

    def __init__(self, handle: Handler) -> None:
        self._handle = handle

    def recognise(self, body: bytes) -> object:
        return self

    def answer(self, context: RequestContext, request: object) -> Response:
        return self._handle(context)


def get(path: str, handle: Handler, docs: RouteDocs = NO_DOCS) -> Route:
    return Route(methods=("GET",), path=path, handle=handle, docs=docs)


def probe(path: str, handle: Handler, *more_methods: str, docs: RouteDocs = NO_DOCS) -> Route:
    """Returns a route for GET and `more_methods`; `handle` never waits, and plain GET requests skip
    Flask.
    """
    return Route(
        methods=("GET", *more_methods),
        path=path,
        handle=handle,
        plain=Probe(handle),
        docs=docs,
    )


def post(
    path: str,
    handle: Handler,
    on_error: ErrorHandler | None = None,
    plain: PlainHandler | None = None,
    docs: RouteDocs = NO_DOCS,
) -> Route:
    return Route(
        methods=("POST",),
        path=path,
        handle=handle,
        on_error=on_error,
        plain=plain,
        docs=docs,
    )


# gRPC: a call is an HTTP request with metadata as headers and the message as body.

PREFIX_BYTES = 5


class RpcCode(IntEnum):
    """Status codes of gRPC (grpc/doc/statuscodes.md)."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


CODES: Mapping[int, RpcCode] = {
    200: RpcCode.OK,
    400: RpcCode.INVALID_ARGUMENT,
    401: RpcCode.UNAUTHENTICATED,
    403: RpcCode.PERMISSION_DENIED,
    404: RpcCode.NOT_FOUND,
    409: RpcCode.ABORTED,
    412: RpcCode.FAILED_PRECONDITION,
    413: RpcCode.RESOURCE_EXHAUSTED,
    429: RpcCode.RESOURCE_EXHAUSTED,
    499: RpcCode.CANCELLED,
    500: RpcCode.INTERNAL,
    501: RpcCode.UNIMPLEMENTED,
    503: RpcCode.UNAVAILABLE,
    504: RpcCode.DEADLINE_EXCEEDED,
}
"""gRPC code of each HTTP status (simulator.md 2.14); UNKNOWN for all others."""


@dataclass(slots=True)
class RpcOutcome:
    """The status after the last message; may change until sent."""

    code: RpcCode = RpcCode.OK
    message: str = ""

    def fail(self, error: ApiError) -> None:
        self.code, self.message = CODES.get(error.status, RpcCode.UNKNOWN), error.message


class RpcResponse(Response):
    """The answer to a call: length-prefixed messages and an outcome.

    `headers` become metadata. `status` is an HTTP status, for metrics, traces and logs.
    """

    __slots__ = ("outcome",)

    def __init__(
        self,
        body: bytes | Iterable[bytes] = b"",
        headers: Mapping[str, str] | None = None,
        outcome: RpcOutcome | None = None,
        status: int = 200,
    ) -> None:
        super().__init__(body, status, headers)
        self.outcome = outcome or RpcOutcome()


class MessageFeed(StreamingBody):
    """Messages with their prefixes; `endless` ones go on until the client or the server leaves."""

    def __init__(self, messages: Iterator[bytes], endless: bool = False) -> None:
        super().__init__()
        self._messages, self.endless = messages, endless

    def __iter__(self) -> Iterator[bytes]:
        for data in self._messages:
            self.bytes_sent += len(data)
            yield data


def framed(message: bytes) -> bytes:
    return b"\0%b%b" % (len(message).to_bytes(4, "big"), message)


def error_response(error: ApiError) -> RpcResponse:
    outcome = RpcOutcome()
    outcome.fail(error)
    return RpcResponse(b"", error.headers, outcome, error.status)


@dataclass(frozen=True, slots=True)
class RpcMethod(MatchedRoute):
    """A handler for calls of `path` (``/PACKAGE.SERVICE/METHOD``).

    `handle` reads the message from the context's body, may wait, and raises errors that
    `app.serving.api.errors` handles. With `answers_each`, `handle` is called once per message.
    """

    handle: Callable[[RequestContext], RpcResponse]
    answers_each: bool = False


@dataclass(frozen=True, slots=True)
class RpcService:
    """Methods by path; messages above `max_message_bytes` are refused."""

    methods: Mapping[str, RpcMethod]
    max_message_bytes: int
