"""Server-sent events (WHATWG HTML 9.2) as vLLM frames them."""

from __future__ import annotations

from typing import Any

import msgspec

from app.http.errors import ApiError

MEDIA_TYPE = "text/event-stream; charset=utf-8"
DONE = b"data: [DONE]\n\n"


def event_of(item: Any) -> bytes:
    """One event that carries `item` as JSON."""
    return b"data: " + msgspec.json.encode(item) + b"\n\n"


def error_event(error: ApiError) -> bytes:
    """The event of an error that came after the stream had begun."""
    return b"data: " + error.body() + b"\n\n"
