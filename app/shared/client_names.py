"""Names of clients that show no secrets."""

import hashlib

from app.core.server.http.context import RequestContext, bearer


def client_name(context: RequestContext) -> str:
    """Returns a short hash of the API key, or else the client's address."""
    headers = context.headers
    key = bearer(headers) or headers.get("x-api-key", "").encode("latin-1", "replace")
    if key:
        return "key:" + hashlib.sha256(key).hexdigest()[:12]
    return f"address:{context.client or 'unknown'}"
