"""gRPC methods, responses and status codes.

A call is an HTTP request with metadata as headers and the message as body.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from app.core.server.http.context import MatchedRoute, RequestContext
from app.core.server.http.errors import ApiError
from app.core.server.http.response import Response

PREFIX_BYTES = 5
"""Size of a message's prefix: a flag for compression and the message's size."""
RpcHandlers = Callable[[], Mapping[str, Callable[[Any, RequestContext], Any]]]
"""Returns handlers by name (PACKAGE.SERVICE/METHOD), from the request's message to the answer's."""
Upgrade = Callable[[Any, Any, tuple[str, int], bytes], object]
"""Takes the worker's `FastPath`, a socket, the client's address, and the bytes read so far."""
CODE_NAMES: Mapping[int, str] = {
    200: "OK",
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    412: "FAILED_PRECONDITION",
    413: "RESOURCE_EXHAUSTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""gRPC code of each HTTP status; UNKNOWN for all others."""


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


@dataclass(slots=True)
class RpcOutcome:
    """The status after the last message; may change until sent."""

    code: RpcCode = RpcCode.OK
    message: str = ""

    def fail(self, error: ApiError) -> None:
        """Sets the code and the message of `error`."""
        self.code = RpcCode[CODE_NAMES.get(error.status, "UNKNOWN")]
        self.message = error.message


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
    """Returns an uncompressed message with its prefix."""
    return b"\0%b%b" % (len(message).to_bytes(4, "big"), message)


class RpcMethod(MatchedRoute, frozen=True, kw_only=True):
    """A handler for calls of `path` (``/PACKAGE.SERVICE/METHOD``).

    `handle` reads the message from the context's body, may wait, and raises errors that
    `app.core.api.errors` handles. With `answers_each`, `handle` is called once per message.
    """

    handle: Callable[[RequestContext], RpcResponse]
    answers_each: bool = False


@dataclass(frozen=True, slots=True)
class RpcService:
    """Methods by path; messages above `max_message_bytes` are refused.

    `upgrade` continues a connection that begins with HTTP/2's preface.
    """

    methods: Mapping[str, RpcMethod]
    max_message_bytes: int
    upgrade: Upgrade
