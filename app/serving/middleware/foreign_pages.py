"""Refuses control requests from foreign web pages, by the rules of docs/access.md.

A browser sends "simple" requests from any page to any server; CORS only protects the answer. A page could
pause an engine on localhost, or set its keys. A page whose host name resolves to this machine (DNS rebinding)
could read the answers, too.
"""

from __future__ import annotations

from ipaddress import ip_address

from app.serving.http.context import RequestContext
from app.serving.http.errors import ApiError
from app.serving.middleware.stack import Middleware
from app.serving.protocol.decoding import is_json
from config.settings import AccessSettings

OURS = ("/admin", "/console", "/fake_metrics")
"""Prefixes of control and inspection paths that vLLM does not have."""
CONTROL = frozenset(
    (
        *("/sleep", "/wake_up", "/pause", "/resume", "/release_kv_cache_memory"),
        *("/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache"),
        *("/start_profile", "/stop_profile", "/scale_elastic_ep", "/collective_rpc"),
        *("/abort_requests", "/inference/v1/abort_requests"),
        *("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/adapters", "/adapters/{adapter_name}"),
        *("/init_weight_transfer_engine", "/shutdown_weight_transfer_engine", "/start_weight_update"),
        *("/start_draft_weight_update", "/update_weights", "/finish_weight_update"),
        *("/update_weight_version", "/weight_checker"),
    )
)
"""Control routes of vLLM."""
READING = ("GET", "HEAD", "OPTIONS")
OWN_SITES = ("same-origin", "none")
"""Trusted values of Sec-Fetch-Site: a page of this server, or direct input by the user."""


class ForeignPages(Middleware):
    """Protects control routes. Allows scripts, the server's own pages, and named origins of
    `allowed-origins`.
    """

    concerns_plain = False

    def __init__(self, access: AccessSettings) -> None:
        self._hosts = frozenset(map(host_of, access.allowed_hosts))
        self._origins = frozenset(access.allowed_origins) - {"*"}

    def begin(self, context: RequestContext) -> None:
        """Raises ApiError: 403 for a foreign page or an unknown host, 415 for a body that is not JSON."""
        path = "" if context.route is None else context.route.path
        is_ours, headers = path.startswith(OURS), context.headers
        if not is_ours and (path not in CONTROL or not headers.keys() & {"origin", "sec-fetch-site"}):
            return
        host = host_of(headers.get("host", ""))
        is_own_host = not host or host in self._hosts or is_loopback(host)
        if is_loopback(context.bound_to) and not is_own_host:
            raise _refused("The Host header names neither this machine nor one of allowed-hosts.")
        if context.method in READING:
            return
        if self._is_foreign(context):
            raise _refused("A web page of another origin may not do this.")
        has_body = (
            headers.keys() & {"content-type", "transfer-encoding"}
            or headers.get("content-length", "0") != "0"
        )
        if is_ours and has_body and not is_json(context.content_type):
            raise ApiError(415, "Unsupported Media Type", "The content type must be application/json.")

    def _is_foreign(self, context: RequestContext) -> bool:
        headers = context.headers
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin in self._origins:
            return False
        if site is not None:
            return site not in OWN_SITES
        if origin is None:
            return False
        netloc = origin.partition("://")[2].lower()
        is_own = netloc == headers.get("host", "").lower() or host_of(netloc) in self._hosts
        return not netloc or not is_own


def host_of(netloc: str) -> str:
    """Returns the name or address of a Host header, without port and brackets. Both are optional."""
    if netloc.startswith("["):
        return netloc[1:].partition("]")[0].lower()
    name = netloc.partition(":")[0] if netloc.count(":") == 1 else netloc
    return name.lower().rstrip(".")


def is_loopback(host: str) -> bool:
    """Returns True for a name or address of this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _refused(message: str) -> ApiError:
    return ApiError(403, "PermissionDeniedError", message)
