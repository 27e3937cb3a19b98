"""API keys: who may ask. Paths, header and answer are vLLM's; /admin has its own key (docs/access.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from hmac import compare_digest
from typing import Any

from flask import Flask, request

from app.http.response import Reply, json_reply
from config.live import LiveSettings
from config.settings import Settings

GUARDED = ("/v1", "/v2", "/inference", "/cohere")
"""What needs an API key once there is one; health, metrics, /tokenize ... stay open (vllm-api.md 9)."""
ADMIN = ("/admin", "/fake_metrics")
UNAUTHORIZED = b'{"error":"Unauthorized"}'


def init_access(app: Flask, live: LiveSettings) -> None:
    """Answer 401 to requests of `app` that need a key and do not bear it. Changed keys hold at once."""
    guard = Guard()
    live.subscribe(guard.follow)
    app.before_request(guard.check)


class Guard:
    """The keys of now, as hashes: equal in length, so that comparing them takes equally long."""

    def __init__(self) -> None:
        self._api: tuple[bytes, ...] = ()
        self._admin: tuple[bytes, ...] = ()

    def follow(self, settings: Settings) -> None:
        """Take over the keys. Without an admin key, /admin asks for what the API asks for."""
        access = settings.access
        self._api = tuple(_digest(key.encode()) for key in access.api_key)
        self._admin = (_digest(access.admin_key.encode()),) if access.admin_key else self._api

    def check(self) -> Reply | None:
        """The 401 of the current request, or None when it may go on."""
        if not self._admin:  # and so no API key
            return None
        environ = request.environ
        keys = self._keys_for(environ["PATH_INFO"])
        if not keys or request.method == "OPTIONS" or _is_among(_presented(environ), keys):
            return None
        reply = json_reply(UNAUTHORIZED, 401)
        if request.method == "HEAD":
            reply.response = ()
        return reply

    def _keys_for(self, path: str) -> tuple[bytes, ...]:
        if path.startswith(ADMIN):
            return self._admin
        return self._api if path.startswith(GUARDED) else ()


def bearer(environ: Mapping[str, Any]) -> bytes | None:
    """The key in the Authorization header of a request, as it was sent."""
    scheme, _, key = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
    return key.encode("latin-1", "replace") if scheme.lower() == "bearer" else None


def _presented(environ: Mapping[str, Any]) -> list[bytes]:
    """What a request offers: its bearer key, and below /admin also its X-Admin-Key."""
    offered = [key] if (key := bearer(environ)) is not None else []
    admin_key = environ.get("HTTP_X_ADMIN_KEY")
    if admin_key is not None and environ["PATH_INFO"].startswith(ADMIN):
        offered.append(admin_key.encode("latin-1", "replace"))
    return offered


def _is_among(offered: Iterable[bytes], keys: tuple[bytes, ...]) -> bool:
    found = False
    for digest in map(_digest, offered):
        for key in keys:  # all of them: the time taken must not tell which one it was
            found |= compare_digest(digest, key)
    return found


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()
