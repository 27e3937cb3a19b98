"""API keys: answers 401 without a required key (docs/access.md)."""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from hmac import compare_digest

from msgspec import Struct

from app.core.server.http.context import RequestContext, bearer
from app.core.server.http.response import Response, json_response
from app.core.server.middleware.control_routes import ADMIN, FAKE_METRICS
from app.core.server.middleware.stack import Middleware
from config.settings import AccessSettings

GUARDED_PREFIXES = ("/v1", "/v2", "/inference", "/cohere", "/vllm.grpc.engine.")
"""Paths that need an API key if any is set, as in vLLM.

Health, metrics, /tokenize and others stay open.
"""
EXACT_SCHEME = "Bearer "
ADMIN_PREFIXES = (ADMIN, FAKE_METRICS)
UNAUTHORIZED = b'{"error":"Unauthorized"}'


class KeyRules(Struct, frozen=True, kw_only=True):
    """Rules of keys that differ between versions of vLLM; the defaults are the newest."""

    guarded_prefixes: tuple[str, ...] = GUARDED_PREFIXES
    """Paths that need a key."""
    reads_any_case: bool = True
    """The word `Bearer` may have small letters."""


class ApiKeys(Middleware):
    """Answers 401 without a required key.

    Hashes of equal length make a comparison take constant time.
    """

    rules = KeyRules()
    """Rules of the played version; set before the first request."""
    _guarded_paths: frozenset[str] = frozenset()
    _api_digests: tuple[bytes, ...] = ()
    _admin_digests: tuple[bytes, ...] = ()

    def on_access(self, access: AccessSettings) -> None:
        """Replaces the keys. Without an admin key, /admin needs an API key."""
        self._api_digests = tuple(sha256(key.encode()).digest() for key in access.api_key)
        self._admin_digests = self._api_digests
        if access.admin_key:
            self._admin_digests = (sha256(access.admin_key.encode()).digest(),)
        self.active = bool(self._admin_digests)

    def guard(self, paths: Iterable[str]) -> None:
        """Lets more paths need an API key, if any is set."""
        self._guarded_paths |= frozenset(paths)

    def needs_key(self, path: str) -> bool:
        """Returns True if requests for `path` need a key now."""
        return bool(self._digests_of(path))

    def _digests_of(self, path: str) -> tuple[bytes, ...]:
        """Returns the hashes of the keys that open `path`; none for an open path."""
        if path.startswith(ADMIN_PREFIXES):
            return self._admin_digests
        if path.startswith(self.rules.guarded_prefixes) or path in self._guarded_paths:
            return self._api_digests
        return ()

    def begin(self, context: RequestContext) -> Response | None:
        """Returns 401 unless the bearer key or, below /admin, X-Admin-Key opens the path."""
        headers = context.headers
        digests = self._digests_of(context.path)
        if not digests or context.method == "OPTIONS":
            return None
        keys = [self._key_of(headers)]
        if "x-admin-key" in headers and context.path.startswith(ADMIN_PREFIXES):
            keys.append(headers["x-admin-key"].encode("latin-1", "replace"))
        if _has_match(keys, digests):
            return None
        return json_response(UNAUTHORIZED, 401)

    def _key_of(self, headers: Mapping[str, str]) -> bytes | None:
        if not self.rules.reads_any_case and not headers.get("authorization", "").startswith(
            EXACT_SCHEME
        ):
            return None
        return bearer(headers)

    def bears_key(self, context: RequestContext) -> bool:
        """Returns True if the request bears an API key, or if the server has no keys."""
        return not self._api_digests or _has_match(
            [self._key_of(context.headers)], self._api_digests
        )


def _has_match(keys: Iterable[bytes | None], digests: Iterable[bytes]) -> bool:
    """Returns True if one of the keys has one of the `digests`."""
    is_match = False
    for key in keys:
        if key is not None:
            key_digest = sha256(key).digest()
            for digest in digests:  # compare all: the time must not reveal which key matched
                is_match |= compare_digest(key_digest, digest)
    return is_match
