"""Requests of web pages from other origins (CORS), answered as vLLM's framework answers them.

flask-cors writes the headers. Ours are the preflight, which no route of this application would take, and the
`Vary` that tells caches of the origin even where no header depends on it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from app.http.context import RequestContext
from app.http.response import TEXT, Response
from app.middleware.stack import Middleware
from config.settings import AccessSettings

ANY = "*"
METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
"""What `*` stands for."""
SAFE_HEADERS = ("accept", "accept-language", "content-language", "content-type")
"""Headers that may always be sent."""
MAX_AGE_S = 600
"""How long a browser may remember a preflight."""
PREFLIGHT_VARY = ("Access-Control-Request-Method", "Access-Control-Request-Headers")
REQUEST_METHOD, REQUEST_HEADERS = (name.lower() for name in PREFLIGHT_VARY)


HeadersOf = Callable[[Mapping[str, str], str], Mapping[str, object]]


def no_headers(headers: Mapping[str, str], method: str) -> Mapping[str, object]:
    """Those of a server that web pages of other origins may not use."""
    return {}


class Cors(Middleware):
    """Lets web pages of `allowed_origins` use the server. Without any, no header of CORS is ever sent."""

    def __init__(self, access: AccessSettings) -> None:
        self.active = bool(access.allowed_origins)
        self._any_origin = ANY in access.allowed_origins
        self._any_header = ANY in access.allowed_headers
        self._methods = METHODS if ANY in access.allowed_methods else access.allowed_methods
        self._headers = {*SAFE_HEADERS, *(name.lower() for name in access.allowed_headers)}
        self._origins = frozenset(access.allowed_origins)
        self._credentials = access.allow_credentials
        self._headers_of = self._header_writer() if self.active else no_headers
        """The headers of CORS for a request with these headers and this method."""

    def _header_writer(self) -> HeadersOf:
        # Which most servers never need. Now, not at the first request: the event loop itself may answer that,
        # and must not wait for what another thread is importing.
        from flask_cors.core import get_cors_headers, serialize_options
        from werkzeug.datastructures import Headers

        options = {
            "origins": ANY if self._any_origin else [_exactly(origin) for origin in self._origins],
            "methods": self._methods,
            "allow_headers": ANY if self._any_header else [_exactly(name, re.I) for name in self._headers],
            "supports_credentials": self._credentials,
            "send_wildcard": self._any_origin and not self._credentials,
            "always_send": True,
            "max_age": MAX_AGE_S,
        }
        served = serialize_options(options)
        return lambda headers, method: get_cors_headers(served, Headers([*headers.items()]), method)

    def begin(self, context: RequestContext) -> Response | None:
        """The answer to a browser that asks whether it may ask: 200, or 400 and what is not allowed."""
        headers = context.headers
        if context.method != "OPTIONS" or "origin" not in headers or REQUEST_METHOD not in headers:
            return None
        refused = self._refused(headers)
        text = f"Not allowed by CORS: {', '.join(refused)}" if refused else "OK"
        response = Response(text.encode(), 400 if refused else 200, content_type=TEXT)
        response.vary("Origin", *PREFLIGHT_VARY)
        return response

    def end(self, context: RequestContext, response: Response) -> None:
        response.vary("Origin")
        for name, value in self._headers_of(context.headers, context.method).items():
            response.headers[name] = str(value)

    def _refused(self, headers: Mapping[str, str]) -> list[str]:
        wanted = {name.strip().lower() for name in headers.get(REQUEST_HEADERS, "").split(",")} - {""}
        allowed = {
            "origin": self._any_origin or headers["origin"] in self._origins,
            "method": headers[REQUEST_METHOD] in self._methods,
            "headers": self._any_header or wanted <= self._headers,
        }
        return [what for what, is_allowed in allowed.items() if not is_allowed]


def _exactly(text: str, flags: int = 0) -> re.Pattern[str]:
    """A pattern of nothing but `text`: flask-cors takes strings with special characters for patterns."""
    return re.compile(re.escape(text) + r"\Z", flags)
