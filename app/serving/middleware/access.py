"""Access: API keys, refusal of control requests from foreign pages, and CORS (docs/access.md).

A browser sends "simple" requests from any page to any server; CORS only protects the answer. A page could
pause an engine on localhost, or set its keys. A page whose host name resolves to this machine (DNS rebinding)
could read the answers, too.
"""

from hashlib import sha256
from hmac import compare_digest
from ipaddress import ip_address

from app.serving.http.context import RequestContext, bearer
from app.serving.http.errors import ApiError, forbidden
from app.serving.http.response import TEXT, Response, json_response
from app.serving.middleware.stack import Middleware
from app.serving.protocol.decoding import is_json
from config.settings import AccessSettings, Settings

GUARDED = ("/v1", "/v2", "/inference", "/cohere", "/vllm.grpc.engine.")
"""Paths that need an API key if any is set; health, metrics, /tokenize ... stay open (vllm-api.md 9)."""
ADMIN = ("/admin", "/fake_metrics")
UNAUTHORIZED = b'{"error":"Unauthorized"}'


class ApiKeys(Middleware):
    """Answers 401 without a required key. Hashes of equal length make a comparison take constant time."""

    _api: tuple[bytes, ...] = ()
    _admin: tuple[bytes, ...] = ()

    def on_settings(self, settings: Settings) -> None:
        """Replaces the keys. Without an admin key, /admin needs an API key."""
        access = settings.access
        self._api = tuple(sha256(key.encode()).digest() for key in access.api_key)
        self._admin = (sha256(access.admin_key.encode()).digest(),) if access.admin_key else self._api
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
        for digest in (sha256(key).digest() for key in offered if key is not None):
            for key in keys:  # compare all: the time must not reveal which key matched
                is_open |= compare_digest(digest, key)
        return None if is_open else json_response(UNAUTHORIZED, 401)


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
    """Allows control to scripts, the server's own pages, and named origins of `allowed-origins`."""

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
            raise forbidden("The Host header names neither this machine nor one of allowed-hosts.")
        if context.method in READING:
            return
        if self._is_foreign(context):
            raise forbidden("A web page of another origin may not do this.")
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


ANY = "*"
METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY")
"""Methods that `*` allows."""
SAFE_HEADERS = ("Accept", "Accept-Language", "Content-Language", "Content-Type")
"""Headers that are always allowed."""
MAX_AGE_S = 600
"""Time in seconds that a browser may cache a preflight."""
ASKED = "Access-Control-Request-"
PREFLIGHT_VARY = f"Origin, {ASKED}Method, {ASKED}Headers, {ASKED}Private-Network"
METHOD, HEADERS, NETWORK = (f"{ASKED}{what}".lower() for what in ("Method", "Headers", "Private-Network"))
ORIGIN, CREDENTIALS = "Access-Control-Allow-Origin", "Access-Control-Allow-Credentials"


class Cors(Middleware):
    """Allows web pages of `allowed_origins`. Refuses every preflight if the list is empty."""

    def __init__(self, access: AccessSettings) -> None:
        self._any_origin = ANY in access.allowed_origins
        self._origins = frozenset(access.allowed_origins)
        self._any_header = ANY in access.allowed_headers
        self._methods = METHODS if ANY in access.allowed_methods else access.allowed_methods
        headers = sorted({*SAFE_HEADERS, *access.allowed_headers})
        self._headers = frozenset(name.lower() for name in headers)
        self._names_origin = not self._any_origin or access.allow_credentials
        self._simple = {CREDENTIALS: "true"} if access.allow_credentials else {}
        self._preflight = {
            "Vary": PREFLIGHT_VARY,
            **({} if self._names_origin else {ORIGIN: ANY}),
            "Access-Control-Allow-Methods": ", ".join(self._methods),
            "Access-Control-Max-Age": str(MAX_AGE_S),
            **({} if self._any_header else {"Access-Control-Allow-Headers": ", ".join(headers)}),
            **self._simple,
        }

    def begin(self, context: RequestContext) -> Response | None:
        """Answers a preflight: 200, or 400 with the list of refused parts."""
        if context.method != "OPTIONS" or "origin" not in context.headers or METHOD not in context.headers:
            return None
        asked, headers = context.headers, dict(self._preflight)
        if self._names_origin and self._allows(asked["origin"]):
            headers[ORIGIN] = asked["origin"]
        if self._any_header and HEADERS in asked:
            headers["Access-Control-Allow-Headers"] = asked[HEADERS]
        wanted = asked[HEADERS].lower().split(",") if HEADERS in asked else ()
        allowed = {
            "origin": self._allows(asked["origin"]),
            "method": asked[METHOD] in self._methods,
            "headers": self._any_header or self._headers.issuperset(map(str.strip, wanted)),
            "private-network": NETWORK not in asked,
        }
        refused = [what for what, is_allowed in allowed.items() if not is_allowed]
        text = f"Disallowed CORS {', '.join(refused)}" if refused else "OK"
        return Response(text.encode(), 400 if refused else 200, headers, TEXT)

    def end(self, context: RequestContext, response: Response) -> None:
        """Adds the allowed origin to answers other than preflights and 401."""
        headers, vary = response.headers, response.headers.get("Vary")
        if response.status == 401 or vary == PREFLIGHT_VARY:
            return
        if vary is None:
            headers["Vary"] = "Origin"
        elif "origin" not in vary.lower():
            headers["Vary"] = f"{vary}, Origin"
        if (origin := context.headers.get("origin")) is not None:
            headers.update(self._simple)
            if self._allows(origin):
                headers[ORIGIN] = origin if self._names_origin else ANY

    def _allows(self, origin: str) -> bool:
        return self._any_origin or origin in self._origins
