"""CORS: requests of web pages from other origins, answered like Starlette 1.10 below vLLM."""

from __future__ import annotations

from app.serving.http.context import RequestContext
from app.serving.http.response import TEXT, Response
from app.serving.middleware.stack import Middleware
from config.settings import AccessSettings

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
        if response.status == 401 or response.headers.get("Vary") == PREFLIGHT_VARY:
            return
        headers = response.headers
        vary = headers.get("Vary")
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
