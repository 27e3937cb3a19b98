"""Reading a request's body, within a size and a time."""

from __future__ import annotations

from dataclasses import dataclass

import gevent
from gunicorn.http.errors import ParseException

from app.base.clock.pause import pause
from app.serving.http.context import RequestContext
from app.serving.http.errors import ApiError, malformed, too_large
from config.settings import ServerSettings

MOST_VALUES = 400_000
"""Default of `max-json-values`: decoding this many takes 50 to 150 ms and cannot be interrupted."""
STEP = 1 << 18
"""Bytes per read; other greenlets run between two reads."""
CHUNKED_STEP = 1 << 10
"""Bytes per read of a chunked body: each byte may be one chunk, which Python parses."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """`most_bytes` of body with `most_values` of JSON, delivered within `timeout_s`."""

    most_bytes: int
    timeout_s: float
    most_values: int = MOST_VALUES

    @classmethod
    def of(cls, server: ServerSettings) -> BodyLimits:
        return cls(server.max_request_body_size_mb << 20, server.client_timeout, server.max_json_values)

    def read(self, context: RequestContext) -> bytes:
        """Returns the whole body.

        ApiError 413: too large, or too many values; 408: no whole body in time; 400: the body is cut short.
        """
        if context.body is not None:
            return context.body
        declared = context.headers.get("content-length") or "0"
        length = int(declared) if declared.isdecimal() else 0
        body = self._receive(context) if length <= self.most_bytes else b""
        if max(length, len(body)) > self.most_bytes:
            raise too_large(f"The request body is larger than {self.most_bytes >> 20} MiB.")
        if len(body) < length:
            raise malformed(f"body: {len(body)} of {declared} bytes arrived", "body")
        # Commas and brackets within strings count, too.
        values = sum(map(body.count, (b",", b"[", b"{"))) if len(body) > self.most_values else 0
        if values > self.most_values:
            raise too_large(f"The request body has more than {self.most_values} values (--max-json-values).")
        context.body = body
        return body

    def _receive(self, context: RequestContext) -> bytes:
        """Returns at most one byte more than allowed; `context.part` keeps the bytes that arrived."""
        source = context.source
        if source is None:
            return b""
        step = STEP if "content-length" in context.headers else CHUNKED_STEP
        parts: list[bytes] = []
        received, ended = 0, False
        try:
            with gevent.Timeout(self.timeout_s, False):
                while not ended and received <= self.most_bytes:
                    # gunicorn copies its buffer at each read: small reads of a long chunk would take long.
                    buffer = getattr(getattr(source, "reader", None), "buf", None)
                    held = 0 if buffer is None else buffer.tell()
                    wanted = min(max(step, held), self.most_bytes + 1 - received)
                    parts.append(source.read(wanted))
                    received += len(parts[-1])
                    ended = len(parts[-1]) < wanted
                    if not ended:
                        pause()
        except (OSError, ParseException) as error:
            raise malformed(f"body: it broke off: {error}", "body") from error
        finally:
            context.part = b"".join(parts)
        if not ended and received <= self.most_bytes:
            raise ApiError(
                408, "Request Timeout", f"The request body did not arrive within {self.timeout_s:g} s."
            )
        return context.part
