"""Errors as clients of the Anthropic family know them (vllm-api.md section 7)."""

from __future__ import annotations

from app.api.errors import as_api_error, forget_frames
from app.http.errors import ApiError, bad_request
from app.http.response import Response, json_response
from app.protocol.anthropic_response import ErrorDetail, ErrorResponse
from app.protocol.common import encode

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""What an error is called by its status; others are the server's from 500 on, else the request's."""

SCHEMA = "Bad Request"
"""Type of what does not fit the schema: it is refused before this family begins, in OpenAI's shape."""


def error_body(error: ApiError) -> bytes:
    """The compact JSON body: ``{"type":"error","error":{"type","message"}}``."""
    kind = TYPES.get(error.status) or ("api_error" if error.status >= 500 else TYPES[400])
    # A message may quote a lone surrogate of the client.
    message = error.message.encode("utf-8", "replace").decode()
    return encode(ErrorResponse(ErrorDetail(kind, message)))


def error_event(error: Exception) -> bytes:
    """The event of an error that came after the stream had begun."""
    return b"event: error\ndata: " + error_body(_known(error)) + b"\n\n"


def message_error(error: Exception) -> Response:
    """The answer to a request of this family that raised `error`; the schema's errors keep OpenAI's shape."""
    known = _known(error)
    forget_frames(error)
    body = known.body() if known.type == SCHEMA else error_body(known)
    return json_response(body, known.status, known.headers)


def _known(error: Exception) -> ApiError:
    if isinstance(error, RecursionError):  # the input of a tool, one level below what cannot be parsed
        return bad_request("The request is nested too deeply.")
    return as_api_error(error)
