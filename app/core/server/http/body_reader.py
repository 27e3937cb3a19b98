"""Receives bodies that have not arrived with the head of their requests."""

from contextlib import nullcontext
from typing import TYPE_CHECKING

import gevent
from gunicorn.http.errors import ParseException

from app.core.base.clock.pause import pause
from app.core.server.http.chunks import BodyTooLargeError, BoundedChunks
from app.core.server.http.context import SMALL_BODY_BYTES, RequestContext
from app.core.server.http.errors import ApiError, malformed, too_large_body

if TYPE_CHECKING:
    from _typeshed import SupportsRead

RECEIVED_FACTOR = 2
"""Bytes of memory that a byte of a body takes until its parts are joined."""
READ_BYTES = 1 << 16
"""Bytes per read, claimed before; other greenlets run between two reads."""
CHUNKED_READ_BYTES = 1 << 10
"""Bytes per read of a chunked body: each byte may be one chunk, which Python parses."""


def receive(
    context: RequestContext,
    source: "SupportsRead[bytes]",
    *,
    length: int,
    max_bytes: int,
    timeout_s: float,
) -> bytes:
    """Returns at most one byte more than allowed; `context.part` gets the bytes that arrived.

    `length` is the declared size of the body, if there is one.

    Raises:
        ApiError: as `BodyLimits.read`.
    """
    read_bytes = CHUNKED_READ_BYTES
    declared_bytes = max_bytes
    if "content-length" in context.headers:
        read_bytes = READ_BYTES
        declared_bytes = length
    reader = getattr(source, "reader", None)
    if isinstance(reader, BoundedChunks):
        reader.max_bytes = max_bytes
    parts: list[bytes] = []
    received = 0
    has_ended = False
    claim = context.claim if declared_bytes > SMALL_BODY_BYTES else None
    receiving = nullcontext() if claim is None else claim.receiving()
    try:
        with gevent.Timeout(timeout_s, False), receiving:
            while not has_ended and received <= max_bytes:
                # gunicorn copies its buffer at each read: small reads of a long chunk would
                # take long.
                buffer = getattr(reader, "buf", None)
                buffered = 0 if buffer is None else buffer.tell()
                size = min(max(read_bytes, buffered), max_bytes + 1 - received)
                if claim is not None:
                    claim.cover(RECEIVED_FACTOR * min(received + size, declared_bytes))
                part = source.read(size)
                parts.append(part)
                received += len(part)
                has_ended = len(part) < size
                if not has_ended:
                    pause()
    except (OSError, ParseException) as error:
        raise malformed(f"the body ended early: {error}", "body") from error
    except BodyTooLargeError:
        raise too_large_body(max_bytes) from None
    except BaseException:  # the request may wait for the end of its client
        parts.clear()
        raise
    finally:
        context.part = b"".join(parts)
    if not has_ended and received <= max_bytes:
        raise ApiError(
            408,
            "Request Timeout",
            f"The request body did not arrive within {timeout_s:g} s.",
        )
    return context.part
