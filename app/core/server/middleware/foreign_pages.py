"""Refuses control requests from foreign web pages: start with `ForeignPages` (docs/access.md).

A browser sends "simple" requests from any page to any server; CORS only protects the answer. A page
could pause an engine on localhost, or set its keys. A page whose host name resolves to this machine
(DNS rebinding) could read the answers, too.
"""

import re
from collections.abc import Iterable

from app.core.protocol.decoding import is_json
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import ApiError, forbidden
from app.core.server.middleware.api_keys import GUARDED_PREFIXES
from app.core.server.middleware.hosts import ANY, HostNames, host_of
from app.core.server.middleware.stack import Middleware
from config.settings import AccessSettings

OPERATOR_PREFIXES = ("/admin", "/console", "/fake_metrics")
"""Prefixes of control and inspection paths that vLLM does not have."""
CONTROL_PATHS = frozenset(
    (
        "/abort_requests",
        "/adapters",
        "/adapters/{adapter_name}",
        "/collective_rpc",
        "/finish_weight_update",
        "/inference/v1/abort_requests",
        "/init_weight_transfer_engine",
        "/pause",
        "/release_kv_cache_memory",
        "/reset_encoder_cache",
        "/reset_mm_cache",
        "/reset_prefix_cache",
        "/resume",
        "/scale_elastic_ep",
        "/shutdown_weight_transfer_engine",
        "/sleep",
        "/start_draft_weight_update",
        "/start_profile",
        "/start_weight_update",
        "/stop_profile",
        "/update_weight_version",
        "/update_weights",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/wake_up",
        "/weight_checker",
    )
)
"""Control routes of vLLM."""
ADAPTERS = "/adapters/"
"""Prefix of the one control path with a variable part."""
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
TRUSTED_SITES = ("same-origin", "none")
"""Trusted values of Sec-Fetch-Site: a page of this server, or direct input by the user."""
SETTINGS_PATH = "/server_info"
"""Development route of vLLM that shows the settings, as GET /admin/config does."""
MAX_QUOTED_LENGTH = 100
"""Most characters of a Host header in an error message."""


_PREFIXES = [re.escape(path) for path in (*OPERATOR_PREFIXES, ADAPTERS)]
_WHOLE_PATHS = [re.escape(path) + r"/*\Z" for path in (*CONTROL_PATHS, SETTINGS_PATH)]
CONTROL = re.compile("|".join([*_PREFIXES, *_WHOLE_PATHS]))
"""Matches a path that controls this server, or that shows its settings or journal.

The path is that of a request or of a route, without `root-path`.
"""
is_control = CONTROL.match


class ForeignPages(Middleware):
    """Allows control to scripts, the server's pages, and origins that `allowed-origins` names.

    Where no key protects a control route, its requests must also name this server as their Host.
    """

    concerns_plain = False
    route_paths = CONTROL
    _has_api_key = False
    _has_admin_key = False

    def __init__(self, access: AccessSettings, server_names: Iterable[str] = ()) -> None:
        """`server_names` extend `allowed-hosts`; empty ones are ignored."""
        self._hosts = HostNames((*access.allowed_hosts, *server_names))
        self._page_hosts = frozenset(map(host_of, access.allowed_hosts))
        self._origins = frozenset(access.allowed_origins) - {ANY}

    def on_access(self, access: AccessSettings) -> None:
        """Notes which keys are set."""
        self._has_api_key = bool(access.api_key)
        self._has_admin_key = bool(access.admin_key or access.api_key)

    def begin(self, context: RequestContext) -> None:
        """Checks a control request.

        Raises:
            ApiError: 403 for a foreign page or an unknown host; 415 for a body that is not JSON.
        """
        assert context.route is not None
        path = context.route.path
        if not self._needs_key(path) and not self._hosts.accepts(context.host):
            raise forbidden(
                f"The Host header {context.host[:MAX_QUOTED_LENGTH]!r} is not a name of this "
                "server or one of its allowed-hosts. Add the name to --allowed-hosts "
                "(SIM_ALLOWED_HOSTS), or set an API key or admin key."
            )
        if context.method in SAFE_METHODS:
            return
        if self._is_foreign(context):
            raise forbidden("Pages from other origins cannot send this request.")
        is_operator_path = path.startswith(OPERATOR_PREFIXES)
        if is_operator_path and _has_body(context) and not is_json(context.content_type):
            raise ApiError(
                415, "Unsupported Media Type", "The content type must be application/json."
            )

    def _needs_key(self, path: str) -> bool:
        """Returns True if requests for `path` need a key, which no page of a stranger has.

        The console's files need none, but show nothing without the key of /admin.
        """
        if path.startswith(OPERATOR_PREFIXES):
            return self._has_admin_key
        return self._has_api_key and path.startswith(GUARDED_PREFIXES)

    def _is_foreign(self, context: RequestContext) -> bool:
        headers = context.headers
        origin = headers.get("origin")
        site = headers.get("sec-fetch-site")
        if origin in self._origins:
            return False
        if site is not None:
            return site not in TRUSTED_SITES
        if origin is None:
            return False
        netloc = origin.partition("://")[2].lower()
        is_same = netloc == context.host.lower() or host_of(netloc) in self._page_hosts
        return not netloc or not is_same


def _has_body(context: RequestContext) -> bool:
    headers = context.headers
    if "content-type" in headers or "transfer-encoding" in headers:
        return True
    return headers.get("content-length", "0") != "0"
