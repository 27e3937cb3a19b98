"""Who sends a request: the key that it bears, or its address."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from app.http.context import RequestContext


def bearer(headers: Mapping[str, str]) -> bytes | None:
    """The key in the Authorization header, as it was sent."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.encode("latin-1", "replace") if scheme.lower() == "bearer" else None


def client_name(context: RequestContext) -> str:
    """A short hash of the API key, or the address. The key itself is never shown."""
    headers = context.headers
    key = bearer(headers) or headers.get("x-api-key", "").encode("latin-1", "replace")
    if key:
        return "key:" + hashlib.sha256(key).hexdigest()[:12]
    return f"address:{context.client or 'unknown'}"
