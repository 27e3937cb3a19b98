"""Reading a request's body, within a size and a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gevent
from gunicorn.http.errors import ParseException

from app.http.errors import ApiError, malformed, too_large
from config.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """`most_bytes` of body, delivered within `timeout_s`."""

    most_bytes: int
    timeout_s: float

    @classmethod
    def of(cls, server: ServerSettings) -> BodyLimits:
        """As the settings say."""
        return cls(server.max_request_body_size_mb << 20, server.read_timeout)

    def read(self, environ: Mapping[str, Any]) -> bytes:
        """The whole body. ApiError 413: too large, 408: it does not come, 400: it is cut short."""
        declared = environ.get("CONTENT_LENGTH") or "0"
        if declared.isdecimal() and int(declared) > self.most_bytes:
            raise self._too_large()
        body: bytes | None = None
        try:
            with gevent.Timeout(self.timeout_s, False):
                body = environ["wsgi.input"].read(self.most_bytes + 1)
        except (OSError, ParseException) as error:
            raise malformed(f"body: it broke off: {error}", "body") from error
        if body is None:
            raise self._too_slow()
        if declared.isdecimal() and len(body) < int(declared):
            raise malformed(f"body: {len(body)} of {declared} bytes arrived", "body")
        if len(body) > self.most_bytes:
            raise self._too_large()
        return body

    def _too_large(self) -> ApiError:
        return too_large(f"The request body is larger than {self.most_bytes >> 20} MiB.")

    def _too_slow(self) -> ApiError:
        return ApiError(
            408, "Request Timeout", f"The request body did not arrive within {self.timeout_s:g} s."
        )
