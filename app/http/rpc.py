"""gRPC calls as everything above the server sees them: a request context in, a response with a status out.

A call is a request like any other: its metadata are headers, its message is the body, and the same middleware
run around it. What it has besides is the status at the end, behind the last message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

from app.http.context import RequestContext
from app.http.errors import ApiError
from app.http.response import Response

PREFIX_BYTES = 5


class RpcCode(IntEnum):
    """How a call ended (grpc/doc/statuscodes.md)."""

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


CODES: Mapping[int, RpcCode] = MappingProxyType(
    {
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
)
"""The code of each HTTP status (simulator.md 2.14); others are unknown."""


@dataclass(slots=True)
class RpcOutcome:
    """The status behind the last message; a writer may change it until then."""

    code: RpcCode = RpcCode.OK
    message: str = ""

    def fail(self, error: ApiError) -> None:
        self.code, self.message = CODES.get(error.status, RpcCode.UNKNOWN), error.message


class RpcResponse(Response):
    """The answer to a call: messages, each behind its length, and how it ended.

    `headers` become metadata. `status` is that of HTTP, for metrics, traces and logs.
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
    """A message behind its length, not compressed."""
    return b"\0%b%b" % (len(message).to_bytes(4, "big"), message)


def error_response(error: ApiError) -> RpcResponse:
    """The call has ended with `error`, and has no message."""
    outcome = RpcOutcome()
    outcome.fail(error)
    return RpcResponse(b"", error.headers, outcome, error.status)


@dataclass(frozen=True, slots=True)
class RpcMethod:
    """Answers the calls of `path`, which is ``/PACKAGE.SERVICE/METHOD``.

    `handle` finds the message in the body of the context; it may wait, and raises what `app.api.errors`
    knows.
    With `each` it is asked for every message of a call by itself, and never waits.
    """

    path: str
    handle: Callable[[RequestContext], RpcResponse]
    each: bool = False

    @property
    def on_error(self) -> None:
        """Errors become a status."""
        return None


@dataclass(frozen=True, slots=True)
class RpcService:
    """All methods by their paths; messages of up to `most_message_bytes` are read."""

    methods: Mapping[str, RpcMethod]
    most_message_bytes: int
