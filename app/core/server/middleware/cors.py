"""CORS: which web pages of other origins may read answers (docs/access.md)."""

from app.core.server.http.context import RequestContext
from app.core.server.http.response import TEXT, Response
from app.core.server.middleware.control_routes import is_control
from app.core.server.middleware.hosts import ANY
from app.core.server.middleware.stack import Middleware
from config.settings import AccessSettings

METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY")
"""Methods that `*` allows."""
SAFE_HEADERS = ("Accept", "Accept-Language", "Content-Language", "Content-Type")
"""Headers that are always allowed."""
MAX_AGE_S = 600
"""Time in seconds that a browser may cache a preflight."""
REQUESTED_METHOD = "Access-Control-Request-Method"
REQUESTED_HEADERS = "Access-Control-Request-Headers"
REQUESTED_NETWORK = "Access-Control-Request-Private-Network"
PREFLIGHT_VARY = f"Origin, {REQUESTED_METHOD}, {REQUESTED_HEADERS}, {REQUESTED_NETWORK}"
# As keys of a context's headers.
METHOD_KEY = REQUESTED_METHOD.lower()
HEADERS_KEY = REQUESTED_HEADERS.lower()
NETWORK_KEY = REQUESTED_NETWORK.lower()
ORIGIN = "Access-Control-Allow-Origin"
CREDENTIALS = "Access-Control-Allow-Credentials"


class Cors(Middleware):
    """Allows web pages of `allowed_origins`. Refuses every preflight if the list is empty.

    `*` opens the API alone: control paths are for origins that the list names.
    """

    header = METHOD_KEY

    def __init__(self, access: AccessSettings) -> None:
        self._allows_any_origin = ANY in access.allowed_origins
        self._origins = frozenset(access.allowed_origins) - {ANY}
        self._allows_any_header = ANY in access.allowed_headers
        self._methods = METHODS if ANY in access.allowed_methods else access.allowed_methods
        headers = sorted({*SAFE_HEADERS, *access.allowed_headers})
        self._headers = frozenset(name.lower() for name in headers)
        self._allows_credentials = access.allow_credentials
        self._preflight = {
            "Vary": PREFLIGHT_VARY,
            "Access-Control-Allow-Methods": ", ".join(self._methods),
            "Access-Control-Max-Age": str(MAX_AGE_S),
        }
        if not self._allows_any_header:
            self._preflight["Access-Control-Allow-Headers"] = ", ".join(headers)

    def begin(self, context: RequestContext) -> Response | None:
        """Answers a preflight: 200, or 400 with the list of refused parts."""
        request_headers = context.headers
        if context.method != "OPTIONS" or "origin" not in request_headers:
            return None
        headers = {**self._preflight, **self._origin_headers(context)}
        requested_headers = request_headers.get(HEADERS_KEY)
        names: list[str] = []
        if requested_headers is not None:
            names = requested_headers.lower().split(",")
            if self._allows_any_header:
                headers["Access-Control-Allow-Headers"] = requested_headers
        allowed_parts = {
            "origin": self._allows(context),
            "method": request_headers[METHOD_KEY] in self._methods,
            "headers": self._allows_any_header or self._headers.issuperset(map(str.strip, names)),
            "private-network": NETWORK_KEY not in request_headers,
        }
        refused_parts = [part for part, is_allowed in allowed_parts.items() if not is_allowed]
        if refused_parts:
            text = f"Disallowed CORS {', '.join(refused_parts)}"
            return Response(text.encode(), 400, headers, TEXT)
        return Response(b"OK", 200, headers, TEXT)

    def end(self, context: RequestContext, response: Response) -> None:
        """Adds the allowed origin to answers other than preflights and 401."""
        headers = response.headers
        vary = headers.get("Vary")
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
        return self._allows_any_origin and not is_control(context.path)

    def _origin_headers(self, context: RequestContext) -> dict[str, str]:
        """Returns the headers that open an answer to the request's origin.

        As in Starlette, an origin that is not allowed still gets the header for credentials. On a
        control path, such an origin gets no header at all.
        """
        is_allowed = self._allows(context)
        headers: dict[str, str] = {}
        if is_allowed:
            headers[ORIGIN] = self._allowed_origin(context)
        if self._allows_credentials and (is_allowed or not is_control(context.path)):
            headers[CREDENTIALS] = "true"
        return headers

    def _allowed_origin(self, context: RequestContext) -> str:
        if not self._allows_any_origin or self._allows_credentials or is_control(context.path):
            return context.headers["origin"]
        return ANY
