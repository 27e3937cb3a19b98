"""Reads the body of a request within limits of its size, its values, its time and its memory."""

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING

from msgspec import Struct

from app.core.base.clock.pause import paced, pause
from app.core.server.http.context import SMALL_BODY_BYTES, RequestContext
from app.core.server.http.errors import malformed, too_large, too_large_body
from config.json_text import MAX_WEIGHT, weights
from config.settings import ServerSettings

if TYPE_CHECKING:
    from app.core.base.request_memory import RequestMemory

WORK_FACTOR = 4
"""Bytes of memory that a byte of a long body takes: the body, its parsed text, and a prompt."""
VALUE_BYTES = 64
"""Memory of a JSON value in terms of its weight: an empty list with its place in another one."""


class BodyLimits(Struct, frozen=True):
    """At most `max_bytes` of body with JSON of the weight `max_values`, within `timeout_s`."""

    max_bytes: int
    timeout_s: float
    max_values: int = MAX_WEIGHT
    memory: "Callable[[], RequestMemory] | None" = None
    """Returns the memory of all requests; None where it is not counted."""

    @classmethod
    def from_settings(cls, server: ServerSettings) -> "BodyLimits":
        """Returns the limits of a server."""
        return cls(
            max_bytes=server.max_request_body_size_mb << 20,
            timeout_s=server.client_timeout,
            max_values=server.max_json_values,
            memory=cache(partial(_new_memory, server)),
        )

    def read(self, context: RequestContext) -> bytes:
        """Returns the whole body.

        Raises:
            ApiError: 413 for too many bytes or values; 408 for a body that does not arrive in time;
                400 for a body that is cut short.
            MemoryFullError, MemoryExceededError: as `RequestMemory.reserve`.
        """
        if context.body is not None:
            return context.body
        declared = context.headers.get("content-length") or "0"
        length = int(declared) if declared.isdecimal() else 0
        body = context.part
        if length > self.max_bytes:
            body = b""
        elif context.source is not None:
            # Most bodies have arrived.
            from app.core.server.http.body_reader import READ_BYTES, receive

            body = receive(
                context,
                context.source,
                length=length,
                max_bytes=self.max_bytes,
                timeout_s=self.timeout_s,
            )
            if len(body) > READ_BYTES:
                pause()  # decoding cannot be interrupted
        if max(length, len(body)) > self.max_bytes:
            raise too_large_body(self.max_bytes)
        if len(body) < length:
            raise malformed(f"body: only {len(body)} of {declared} bytes were received", "body")
        if len(body) > min(SMALL_BODY_BYTES, self.max_values):
            weight = sum(paced(weights(body, self.max_values)))
            if weight > self.max_values:
                raise too_large(
                    f"The request body contains more than {self.max_values} values "
                    "(--max-json-values)."
                )
            claim = context.claim
            if claim is not None:
                claim.cover(WORK_FACTOR * len(body) + VALUE_BYTES * weight)
        context.body = body
        return body


def _new_memory(server: ServerSettings) -> "RequestMemory":
    from app.core.base.request_memory import RequestMemory  # few bodies are long

    return RequestMemory.of(server)
