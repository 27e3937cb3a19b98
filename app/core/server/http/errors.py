"""Errors of the HTTP interface, with vLLM's error types.

`ApiError.body()` is the JSON that a client reads. Clients can distinguish two kinds of status 400:

* ``"Bad Request"``, ``param`` starts with ``body``: not JSON, or not in the schema (`malformed`);
* ``"BadRequestError"``, ``param`` is a field name or null: a rule forbids the request
  (`bad_request`).
"""

from collections.abc import Mapping
from functools import partial

import msgspec

_encoder = msgspec.json.Encoder()
MAX_SHOWN_CHARS = 1000
"""Longest text of a client that an error message quotes."""


class ApiError(Exception):
    """An error response.

    Attributes:
        status: HTTP status.
        code: ``code`` of the body: the status, except in injected errors.
        type: Error type that clients match.
        param: Offending field, or None.
        headers: Extra response headers.
    """

    def __init__(
        self,
        status: int,
        type: str,
        message: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code: int | str | None = status
        self.type = type
        # Both may quote a lone surrogate of the request, which no answer can contain.
        self.message = message.encode("utf-8", "replace").decode()
        self.param = param and param.encode("utf-8", "replace").decode()
        self.headers = headers or {}

    def body(self) -> bytes:
        """The compact JSON body: ``{"error":{"message","type","param","code"}}``."""
        error = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return _encoder.encode({"error": error})


def too_many(message: str, retry_after_s: int | None = None) -> ApiError:
    """Returns an error 429: the waiting queue is full, or a rate limit is exceeded.

    `retry_after_s` becomes a ``Retry-After`` header in seconds.
    """
    headers = None
    if retry_after_s is not None:
        headers = {"Retry-After": str(retry_after_s)}
    return ApiError(429, "RateLimitError", message, headers=headers)


bad_request = partial(ApiError, 400, "BadRequestError")
"""Well-formed, but against a rule."""
malformed = partial(ApiError, 400, "Bad Request")
"""Not JSON, or JSON that does not fit the schema; `param` is ``body`` or ``body.<path>``."""
forbidden = partial(ApiError, 403, "PermissionDeniedError")
not_found = partial(ApiError, 404, "NotFoundError")
"""The model (param ``model``) or stored object does not exist."""
too_large = partial(ApiError, 413, "Request Entity Too Large")
internal = partial(ApiError, 500, "InternalServerError")
not_implemented = partial(ApiError, 501, "NotImplementedError")
"""The served model cannot do this."""
unavailable = partial(ApiError, 503, "Service Unavailable")
"""The server does not admit requests now (queue limit reached, draining)."""
timed_out = partial(ApiError, 504, "GatewayTimeoutError")


def invalid_value(message: str, param: str, value: object) -> ApiError:
    """Returns an error 400 whose message ends with the field and its value, as in vLLM.

    Both texts are cut: a client can send megabytes that they quote.
    """
    shown_value = _shorten(str(value))
    return bad_request(f"{_shorten(message)} (parameter={param}, value={shown_value})", param)


def _shorten(text: str) -> str:
    if len(text) <= MAX_SHOWN_CHARS:
        return text
    return f"{text[:MAX_SHOWN_CHARS]}..."


def invalid_field(kind: str, param: str, problem: str) -> ApiError:
    """Returns an error 400 for a body that does not fit the schema, as vLLM words it.

    `kind` is pydantic's name of the error type, such as ``literal_error``.
    """
    error = {"type": kind, "loc": param, "msg": problem}
    return malformed(f"1 validation error:\n  {error}", param)
