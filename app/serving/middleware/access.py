"""Access: API keys, refusal of control requests from foreign pages, and CORS (docs/access.md).

A browser sends "simple" requests from any page to any server; CORS only protects the answer. A page
could pause an engine on localhost, or set its keys. A page whose host name resolves to this machine
(DNS rebinding) could read the answers, too. Start reading at `ForeignPages`.
"""

import re
from collections.abc import Iterable
from hashlib import sha256
from hmac import compare_digest

from app.serving.http.context import RequestContext, bearer
from app.serving.http.errors import ApiError, forbidden
from app.serving.http.response import TEXT, Response, json_response
from app.serving.middleware.hosts import ANY, HostNames, host_of
from app.serving.middleware.stack import Middleware
from app.serving.protocol.decoding import is_json
from config.settings import AccessSettings, Settings

GUARDED = ("/v1", "/v2", "/inference", "/cohere", "/vllm.grpc.engine.")
"""Paths that need an API key if any is set; health, metrics, /tokenize ...

stay open (vllm-api.md 9).
"""
ADMIN = ("/admin", "/fake_metrics")
UNAUTHORIZED = b'{"error":"Unauthorized"}'


class ApiKeys(Middleware):
    """Answers 401 without a required key.

    Hashes of equal length make a comparison take constant time.
    """

    _api: tuple[bytes, ...] = ()
    _admin: tuple[bytes, ...] = ()

    def on_settings(self, settings: Settings) -> None:
        """Replaces the keys. Without an admin key, /admin needs an API key."""
        access = settings.access
        self._api = tuple(sha256(key.encode()).digest() for key in access.api_key)
        self._admin = (
            (sha256(access.admin_key.encode()).digest(),) if access.admin_key else self._api
        )
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
        return None if _has_match(offered, keys) else json_response(UNAUTHORIZED, 401)

    def bears_key(self, context: RequestContext) -> bool:
        """Returns True if the request bears an API key, or if the server has no keys."""
        return not self._api or _has_match([bearer(context.headers)], self._api)


def _has_match(offered: Iterable[bytes | None], digests: Iterable[bytes]) -> bool:
    """Returns True if a key in `offered` has one of the `digests`."""
    is_known = False
    for key in offered:
        if key is not None:
            digest = sha256(key).digest()
            for known_digest in digests:  # compare all: the time must not reveal which key matched
                is_known |= compare_digest(digest, known_digest)
    return is_known


OURS = ("/admin", "/console", "/fake_metrics")
"""Prefixes of control and inspection paths that vLLM does not have."""
CONTROL = frozenset(
    (
        *("/sleep", "/wake_up", "/pause", "/resume", "/release_kv_cache_memory"),
        *("/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache"),
        *("/start_profile", "/stop_profile", "/scale_elastic_ep", "/collective_rpc"),
        *("/abort_requests", "/inference/v1/abort_requests"),
        *(
            "/v1/load_lora_adapter",
            "/v1/unload_lora_adapter",
            "/adapters",
            "/adapters/{adapter_name}",
        ),
        *(
            "/init_weight_transfer_engine",
            "/shutdown_weight_transfer_engine",
            "/start_weight_update",
        ),
        *("/start_draft_weight_update", "/update_weights", "/finish_weight_update"),
        *("/update_weight_version", "/weight_checker"),
    )
)
"""Control routes of vLLM."""
ADAPTERS = "/adapters/"
"""Prefix of the one control path with a variable part."""
READING = ("GET", "HEAD", "OPTIONS")
OWN_SITES = ("same-origin", "none")
"""Trusted values of Sec-Fetch-Site: a page of this server, or direct input by the user."""
SETTINGS_PATH = "/server_info"
"""Development route of vLLM that shows the settings, as GET /admin/config does."""


def _control_pattern() -> re.Pattern[str]:
    prefixes = [re.escape(path) for path in (*OURS, ADAPTERS)]
    whole_paths = [re.escape(path) + r"/*\Z" for path in (*CONTROL, SETTINGS_PATH)]
    return re.compile("|".join([*prefixes, *whole_paths]))


is_control = _control_pattern().match
"""Matches a path that steers this server, or that shows its settings or journal.

The path is that of a request or of a route, without `root-path`. A pattern takes no call of
Python's. """


class ForeignPages(Middleware):
    """Allows control to scripts, the server's own pages, and named origins of `allowed-origins`.

    Where no key protects a control route, its requests must also name this server as their Host.
    """

    concerns_plain = False
    _has_api_key = False
    _has_admin_key = False

    def __init__(self, access: AccessSettings, own_names: Iterable[str] = ()) -> None:
        """`own_names` are names of this server besides `allowed-hosts`; empty ones are ignored."""
        self._hosts = HostNames((*access.allowed_hosts, *own_names))
        self._page_hosts = frozenset(map(host_of, access.allowed_hosts))
        self._origins = frozenset(access.allowed_origins) - {ANY}

    def on_settings(self, settings: Settings) -> None:
        """Notes which keys there are."""
        access = settings.access
        self._has_api_key = bool(access.api_key)
        self._has_admin_key = bool(access.admin_key or access.api_key)

    def begin(self, context: RequestContext) -> None:
        """Raises ApiError:

        403 for a foreign page or an unknown host, 415 for a body that is not JSON.
        """
        path = "" if context.route is None else context.route.path
        if not is_control(path):
            return
        if not self._needs_key(path) and not self._hosts.accepts(context.host):
            raise forbidden(
                f"The Host header {context.host[:100]!r} names neither this server nor one of its "
                "allowed-hosts. Add the name to --allowed-hosts (SIM_ALLOWED_HOSTS), or set an API "
                "key or admin key."
            )
        if context.method in READING:
            return
        if self._is_foreign(context):
            raise forbidden("A web page of another origin may not do this.")
        headers = context.headers
        has_body = (
            headers.keys() & {"content-type", "transfer-encoding"}
            or headers.get("content-length", "0") != "0"
        )
        if path.startswith(OURS) and has_body and not is_json(context.content_type):
            raise ApiError(
                415, "Unsupported Media Type", "The content type must be application/json."
            )

    def _needs_key(self, path: str) -> bool:
        """Returns True if requests for `path` need a key, which no page of a stranger has.

        The console's own files need none, but show nothing without the key of /admin.
        """
        if path.startswith(OURS):
            return self._has_admin_key
        return self._has_api_key and path.startswith(GUARDED)

    def _is_foreign(self, context: RequestContext) -> bool:
        headers = context.headers
        origin = headers.get("origin")
        site = headers.get("sec-fetch-site")
        if origin in self._origins:
            return False
        if site is not None:
            return site not in OWN_SITES
        if origin is None:
            return False
        netloc = origin.partition("://")[2].lower()
        is_own = netloc == context.host.lower() or host_of(netloc) in self._page_hosts
        return not netloc or not is_own


METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY")
"""Methods that `*` allows."""
SAFE_HEADERS = ("Accept", "Accept-Language", "Content-Language", "Content-Type")
"""Headers that are always allowed."""
MAX_AGE_S = 600
"""Time in seconds that a browser may cache a preflight."""
ASKED = "Access-Control-Request-"
PREFLIGHT_VARY = f"Origin, {ASKED}Method, {ASKED}Headers, {ASKED}Private-Network"
METHOD, HEADERS, NETWORK = (
    f"{ASKED}{what}".lower() for what in ("Method", "Headers", "Private-Network")
)
ORIGIN, CREDENTIALS = "Access-Control-Allow-Origin", "Access-Control-Allow-Credentials"


class Cors(Middleware):
    """Allows web pages of `allowed_origins`. Refuses every preflight if the list is empty.

    `*` opens the API alone: control paths are for origins that the list names.
    """

    def __init__(self, access: AccessSettings) -> None:
        self._any_origin = ANY in access.allowed_origins
        self._origins = frozenset(access.allowed_origins) - {ANY}
        self._any_header = ANY in access.allowed_headers
        self._methods = METHODS if ANY in access.allowed_methods else access.allowed_methods
        headers = sorted({*SAFE_HEADERS, *access.allowed_headers})
        self._headers = frozenset(name.lower() for name in headers)
        self._has_credentials = access.allow_credentials
        self._preflight = {
            "Vary": PREFLIGHT_VARY,
            "Access-Control-Allow-Methods": ", ".join(self._methods),
            "Access-Control-Max-Age": str(MAX_AGE_S),
        }
        if not self._any_header:
            self._preflight["Access-Control-Allow-Headers"] = ", ".join(headers)

    def begin(self, context: RequestContext) -> Response | None:
        """Answers a preflight: 200, or 400 with the list of refused parts."""
        asked = context.headers
        if context.method != "OPTIONS" or "origin" not in asked or METHOD not in asked:
            return None
        headers = {**self._preflight, **self._origin_headers(context)}
        if self._any_header and HEADERS in asked:
            headers["Access-Control-Allow-Headers"] = asked[HEADERS]
        wanted = asked[HEADERS].lower().split(",") if HEADERS in asked else ()
        allowed = {
            "origin": self._allows(context),
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
        if "origin" in context.headers:
            headers.update(self._origin_headers(context))

    def _allows(self, context: RequestContext) -> bool:
        if context.headers["origin"] in self._origins:
            return True
        return self._any_origin and not is_control(context.path)

    def _origin_headers(self, context: RequestContext) -> dict[str, str]:
        """Returns the headers that open an answer to the request's origin.

        As in Starlette, an origin that is not allowed learns that credentials are. On a control
        path, such an origin gets no header at all.
        """
        is_allowed = self._allows(context)
        headers: dict[str, str] = {}
        if is_allowed:
            headers[ORIGIN] = self._allowed_origin(context)
        if self._has_credentials and (is_allowed or not is_control(context.path)):
            headers[CREDENTIALS] = "true"
        return headers

    def _allowed_origin(self, context: RequestContext) -> str:
        is_any = self._any_origin and not self._has_credentials and not is_control(context.path)
        return ANY if is_any else context.headers["origin"]
