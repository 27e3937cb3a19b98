"""API keys of SGLang's native routes: all but the health check need a key, if any is set."""

from app.core.server.http.context import RequestContext
from app.core.server.http.response import Response, json_response
from app.core.server.middleware.api_keys import UNAUTHORIZED, ApiKeys
from app.core.server.middleware.stack import Middleware

GUARDED = frozenset(
    (
        *("/generate", "/abort_request", "/flush_cache", "/get_load"),
        *("/model_info", "/get_model_info", "/server_info", "/get_server_info"),
    )
)
"""Native paths that need a key; the core guards those below /v1."""


class NativeKeys(Middleware):
    """Answers 401 without a required key."""

    concerns_plain = False  # the fast path serves no native route

    def __init__(self, keys: ApiKeys) -> None:
        self._keys = keys

    def begin(self, context: RequestContext) -> Response | None:
        """Returns 401 for a native route unless the request bears a key."""
        if context.path not in GUARDED or self._keys.bears_key(context):
            return None
        return json_response(UNAUTHORIZED, 401)
