"""API keys. Paths, header and answer are vLLM's; /admin has its own key (docs/access.md)."""

from __future__ import annotations

from collections.abc import Iterable
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
        keys = self._keys_for(context.path)
        if not keys or context.method == "OPTIONS" or _is_among(_presented(context), keys):
            return None
        return json_response(UNAUTHORIZED, 401)

    def _keys_for(self, path: str) -> tuple[bytes, ...]:
        if path.startswith(ADMIN):
            return self._admin
        return self._api if path.startswith(GUARDED) else ()


def _presented(context: RequestContext) -> list[bytes]:
    """Returns the keys of a request: its bearer key and, below /admin, its X-Admin-Key."""
    offered = [key] if (key := bearer(context.headers)) is not None else []
    admin_key = context.headers.get("x-admin-key")
    if admin_key is not None and context.path.startswith(ADMIN):
        offered.append(admin_key.encode("latin-1", "replace"))
    return offered


def _is_among(offered: Iterable[bytes], keys: tuple[bytes, ...]) -> bool:
    found = False
    for digest in map(_digest, offered):
        for key in keys:  # compare all: the time must not reveal which key matched
            found |= compare_digest(digest, key)
    return found


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()
