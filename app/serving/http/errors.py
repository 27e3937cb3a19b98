"""Errors of the HTTP interface, with vLLM's error types.

`ApiError.body()` is the JSON that a client reads. Clients can distinguish two kinds of status 400:

* ``"Bad Request"``, ``param`` starts with ``body``: not JSON, or not in the schema (`malformed`);
* ``"BadRequestError"``, ``param`` is a field name or null: a rule forbids the request (`bad_request`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_encoder = msgspec.json.Encoder()


class ApiError(Exception):
    """An error response.

    `status` is the HTTP status (also the body's ``code``), `type` the error class that clients match,
    `param` the offending field or None, `headers` extra response headers.
    """

    def __init__(
        self,
        status: int,
        type: str,
        message: str,
        param: str | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.type = type
        self.message = message
        self.param = param
        self.headers = headers

    def body(self) -> bytes:
        """The compact JSON body: ``{"error":{"message","type","param","code"}}``."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.status}
        try:
            return _encoder.encode({"error": error})
        except UnicodeEncodeError:  # the message quotes a lone surrogate from the request
            error["message"] = self.message.encode("utf-8", "replace").decode()
            error["param"] = self.param and self.param.encode("utf-8", "replace").decode()
            return _encoder.encode({"error": error})

    def __repr__(self) -> str:
        return f"ApiError({self.status}, {self.type!r}, {self.message!r}, param={self.param!r})"


def bad_request(message: str, param: str | None = None) -> ApiError:
    """400: well-formed, but against a rule."""
    return ApiError(400, "BadRequestError", message, param)


def malformed(message: str, param: str | None = None) -> ApiError:
    """400: not JSON, or JSON that does not fit the schema; `param` is ``body`` or ``body.<path>``."""
    return ApiError(400, "Bad Request", message, param)


def not_found(message: str, param: str | None = None) -> ApiError:
    """404: the model (param ``model``) or stored object does not exist."""
    return ApiError(404, "NotFoundError", message, param)


def too_large(message: str) -> ApiError:
    """413: the body is larger than the server accepts."""
    return ApiError(413, "Request Entity Too Large", message)


def too_many(message: str, retry_after_s: int | None = None) -> ApiError:
    """429: the waiting list is full; `retry_after_s` becomes a ``Retry-After`` header in seconds."""
    headers = _NO_HEADERS if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    return ApiError(429, "RateLimitError", message, None, headers)


def unavailable(message: str) -> ApiError:
    """503: the server does not admit requests now (queue limit reached, draining)."""
    return ApiError(503, "Service Unavailable", message)


def retryable(message: str) -> ApiError:
    """503: the request failed in transit; the client may retry."""
    return ApiError(503, "ServiceUnavailableError", message)


def timed_out(message: str) -> ApiError:
    """504: the request took too long."""
    return ApiError(504, "GatewayTimeoutError", message)


def not_implemented(message: str) -> ApiError:
    """501: the served model cannot do this."""
    return ApiError(501, "NotImplementedError", message)


def internal(message: str) -> ApiError:
    """500: the server's own fault."""
    return ApiError(500, "InternalServerError", message)
