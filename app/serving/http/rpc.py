"""gRPC calls: a request context comes in, a response with a gRPC status goes out.

A call is handled as an HTTP request: metadata are headers, the message is the body, and the same middleware
run. The gRPC status follows the last message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from app.serving.http.context import MatchedRoute, RequestContext
from app.serving.http.errors import ApiError
from app.serving.http.response import Response

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
    `app.serving.api.errors` handles. With `each`, `handle` is called once per message, and never waits.
    """

    handle: Callable[[RequestContext], RpcResponse]
    each: bool = False


@dataclass(frozen=True, slots=True)
class RpcService:
    """Methods by path; messages above `most_message_bytes` are refused."""

    methods: Mapping[str, RpcMethod]
    most_message_bytes: int
