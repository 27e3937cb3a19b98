"""Errors without headers for browsers of other origins.

The exceptions of such errors have no handler in vLLM: Starlette answers them outside of CORS.
"""

from __future__ import annotations

import re

from msgspec import Struct

from app.core.server.http.context import RequestContext
from app.core.server.http.response import Response
from app.core.server.middleware.stack import Middleware

OF_ORIGINS = (
    "Vary",
    "Access-Control-Allow-Origin",
    "Access-Control-Allow-Credentials",
    "Access-Control-Expose-Headers",
)
FAULT = re.compile(
    rb'\{"error":\{"message":"(?!Internal server error"|").*'
    rb'"type":"InternalServerError","param":null,"code":500\}\}',
    re.DOTALL,
)
"""An error of vLLM's own code. Other faults of the engine have a handler."""
TEXT = re.compile(rb"Internal Server Error")
"""The same up to vLLM 0.17."""
RULE = re.compile(
    rb'\{"error":\{"message":"(?!suffix is not |Streaming is not |Chat template is passed |'
    rb"Cannot find suitable handler |generate_responses must not be ).*"
    rb'"type":"(?:BadRequestError|NotImplementedError)","param":null,"code":\d+\}\}',
    re.DOTALL,
)
"""The error of a rule that names no field. The errors that begin so are answers of the handlers."""
NAMED_RULE = re.compile(
    rb'\{"error":\{"message":.*"type":"BadRequestError","param":"[^"]*","code":400\}\}', re.DOTALL
)
"""The error of a rule that names a field."""


class OriginRules(Struct, frozen=True, kw_only=True):
    """The defaults are the rules of the newest version."""

    opens_rules: bool = True
    """Errors of rules that name no field have the headers."""
    opens_named_rules: bool = True
    """Errors of rules that name a field have the headers."""


class UnopenedErrors(Middleware):
    """Removes the headers for other origins from errors that vLLM raised."""

    concerns_plain = False

    def __init__(self, rules: OriginRules) -> None:
        self._patterns = [FAULT, TEXT]
        if not rules.opens_rules:
            self._patterns.append(RULE)
        if not rules.opens_named_rules:
            self._patterns.append(NAMED_RULE)

    def end(self, context: RequestContext, response: Response) -> None:
        """Removes the headers from an error."""
        body = response.body
        if response.status < 400 or not isinstance(body, bytes):
            return
        if any(pattern.fullmatch(body) for pattern in self._patterns):
            for name in OF_ORIGINS:
                response.headers.pop(name, None)
