"""Errors without headers for browsers of other origins.

The exceptions of such errors have no handler in vLLM: Starlette answers them outside of CORS.
"""

from __future__ import annotations

from msgspec import Struct

from app.core.server.http.context import RequestContext
from app.core.server.http.response import Response
from app.core.server.middleware.stack import Middleware
from config.untrusted import UntrustedDataError, decode_untrusted

OF_ORIGINS = (
    "X-Request-Id",
    "Vary",
    "Access-Control-Allow-Origin",
    "Access-Control-Allow-Credentials",
    "Access-Control-Expose-Headers",
)
"""Headers that middleware adds; `X-Request-Id` only with `--enable-request-id-headers`."""
TEXT = b"Internal Server Error"
"""A fault of vLLM's own code up to vLLM 0.17."""
WITHOUT_WORDS = ("", "Internal server error")
"""Messages of faults of the engine, which have a handler."""
OF_HANDLERS = (
    "suffix is not ",
    "Streaming is not ",
    "Chat template is passed ",
    "Cannot find suitable handler ",
    "generate_responses must not be ",
)
"""How errors of rules begin that the handlers of routes answer themselves."""


class ErrorFields(Struct, forbid_unknown_fields=True):
    """The error in the body of an answer."""

    message: str
    type: str
    param: str | None
    code: int


class ErrorBody(Struct, forbid_unknown_fields=True):
    """The body of an answer with vLLM's form of an error."""

    error: ErrorFields


class OriginRules(Struct, frozen=True, kw_only=True):
    """The defaults are the rules of the newest version."""

    opens_rules: bool = True
    """Errors of rules that name no field have the headers."""
    opens_named_rules: bool = True
    """Errors of rules that name a field have the headers."""
    opens_faults: bool = True
    """Errors that no rule foresees have the headers."""


class UnopenedErrors(Middleware):
    """Removes the headers for other origins from errors that vLLM raised."""

    concerns_plain = False

    def __init__(self, rules: OriginRules) -> None:
        self._rules = rules

    def end(self, context: RequestContext, response: Response) -> None:
        """Removes the headers from an error."""
        body = response.body
        if response.status >= 400 and isinstance(body, bytes) and self._is_raised(body):
            for name in OF_ORIGINS:
                response.headers.pop(name, None)

    def _is_raised(self, body: bytes) -> bool:
        """Returns whether the error in a body is an exception without a handler in vLLM."""
        if body == TEXT:
            return True
        try:
            error = decode_untrusted(body, type=ErrorBody).error
        except UntrustedDataError:
            return False
        if error.type == "InternalServerError":
            has_words = error.message not in WITHOUT_WORDS
            return has_words and error.param is None and error.code == 500
        if error.param is not None:
            is_rule = error.type == "BadRequestError" and error.code == 400
            return is_rule and not self._rules.opens_named_rules
        is_rule = error.type in ("BadRequestError", "NotImplementedError")
        is_raised = is_rule and not error.message.startswith(OF_HANDLERS)
        return is_raised and not self._rules.opens_rules
