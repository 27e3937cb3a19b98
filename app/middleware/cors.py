"""Requests of web pages from other origins (CORS), answered as vLLM's framework answers them.

flask-cors writes the headers. Ours are the preflight, which no route of this application would take, and the
`Vary` that tells caches of the origin even where no header depends on it.
"""

from __future__ import annotations

import re

from flask import Flask, request
from flask_cors import CORS
from werkzeug.datastructures import Headers

from app.http.response import Reply
from config.settings import AccessSettings

ANY = "*"
METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
"""What `*` stands for."""
SAFE_HEADERS = ("accept", "accept-language", "content-language", "content-type")
"""Headers that may always be sent."""
MAX_AGE_S = 600
"""How long a browser may remember a preflight."""
PREFLIGHT_VARY = ("Access-Control-Request-Method", "Access-Control-Request-Headers")


def init_cors(app: Flask, access: AccessSettings) -> None:
    """Let web pages of `allowed_origins` use `app`. Without any, no header of CORS is ever sent."""
    if not access.allowed_origins:
        return
    policy = Policy(access)
    CORS(
        app,
        origins=ANY if policy.any_origin else [_exactly(origin) for origin in access.allowed_origins],
        methods=policy.methods,
        allow_headers=ANY if policy.any_header else [_exactly(name, re.I) for name in policy.headers],
        supports_credentials=access.allow_credentials,
        send_wildcard=policy.any_origin and not access.allow_credentials,
        max_age=MAX_AGE_S,
        vary_header=False,
        allow_private_network=False,
        intercept_exceptions=False,
    )
    app.before_request(policy.preflight)
    app.after_request(_vary)


class Policy:
    """What is allowed, as the settings say."""

    def __init__(self, access: AccessSettings) -> None:
        self.any_origin = ANY in access.allowed_origins
        self.any_header = ANY in access.allowed_headers
        self.methods = METHODS if ANY in access.allowed_methods else access.allowed_methods
        self.headers = {*SAFE_HEADERS, *(name.lower() for name in access.allowed_headers)}
        self._origins = frozenset(access.allowed_origins)

    def preflight(self) -> Reply | None:
        """The answer to a browser that asks whether it may ask: 200, or 400 and what is not allowed.

        None for every other request.
        """
        headers = request.headers
        if request.method != "OPTIONS" or "Origin" not in headers or PREFLIGHT_VARY[0] not in headers:
            return None
        refused = self._refused(headers)
        text = f"Not allowed by CORS: {', '.join(refused)}" if refused else "OK"
        reply = Reply(text, 400 if refused else 200, content_type="text/plain; charset=utf-8")
        reply.vary.update(("Origin", *PREFLIGHT_VARY))
        return reply

    def _refused(self, headers: Headers) -> list[str]:
        asked = {name.strip().lower() for name in headers.get(PREFLIGHT_VARY[1], "").split(",")} - {""}
        allowed = {
            "origin": self.any_origin or headers["Origin"] in self._origins,
            "method": headers[PREFLIGHT_VARY[0]] in self.methods,
            "headers": self.any_header or asked <= self.headers,
        }
        return [what for what, is_allowed in allowed.items() if not is_allowed]


def _vary(reply: Reply) -> Reply:
    reply.vary.add("Origin")
    return reply


def _exactly(text: str, flags: int = 0) -> re.Pattern[str]:
    """A pattern of nothing but `text`: flask-cors takes strings with special characters for patterns."""
    return re.compile(re.escape(text) + r"\Z", flags)
