"""API keys. Paths, header and answer are vLLM's; /admin has its own key (docs/access.md)."""

from __future__ import annotations

from hashlib import sha256
from hmac import compare_digest

from app.serving.http.context import RequestContext, bearer
from app.serving.http.response import Response, json_response
from app.serving.middleware.stack import Middleware
from config.settings import Settings

GUARDED = ("/v1", "/v2", "/inference", "/cohere", "/vllm.grpc.engine.")
"""Paths that need an API key if any is set; health, metrics, /tokenize ... stay open (vllm-api.md 9)."""
ADMIN = ("/admin", "/fake_metrics")
UNAUTHORIZED = b'{"error":"Unauthorized"}'


class ApiKeys(Middleware):
    """Answers 401 to requests without a required key. Changed keys take effect immediately.

    Keys are stored as hashes of equal length, so that a comparison takes constant time.
    """

    def __init__(self) -> None:
        self._api: tuple[bytes, ...] = ()
        self._admin: tuple[bytes, ...] = ()

    def on_settings(self, settings: Settings) -> None:
        """Replaces the keys. Without an admin key, /admin needs an API key."""
        access = settings.access
        self._api = tuple(_digest(key.encode()) for key in access.api_key)
        self._admin = (_digest(access.admin_key.encode()),) if access.admin_key else self._api
        self.active = bool(self._admin)

    def begin(self, context: RequestContext) -> Response | None:
        """Returns 401 unless the bearer key or, below /admin, X-Admin-Key opens the path."""
        is_admin, headers = context.path.startswith(ADMIN), context.headers
        keys = self._admin if is_admin else self._api if context.path.startswith(GUARDED) else ()
        if not keys or context.method == "OPTIONS":
            return None
        offered = [bearer(headers)]
        if is_admin and (admin_key := headers.get("x-admin-key")) is not None:
            offered.append(admin_key.encode("latin-1", "replace"))
        is_open = False
        for digest in (_digest(key) for key in offered if key is not None):
            for key in keys:  # compare all: the time must not reveal which key matched
                is_open |= compare_digest(digest, key)
        return None if is_open else json_response(UNAUTHORIZED, 401)


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()
