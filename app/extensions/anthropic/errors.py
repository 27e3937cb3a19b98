"""Errors of the Anthropic family."""

from msgspec import UNSET

from app.core.api.errors import as_api_error, as_stream_error, forget_frames
from app.core.protocol.common import encode
from app.core.server.http.errors import ApiError
from app.core.server.http.response import Response, json_response
from app.extensions.anthropic.protocol import ErrorDetail, ErrorResponse

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""Anthropic's types of errors by status; see `anthropic_type` for other statuses."""


class ThreadNotFoundError(ApiError):
    """No stored conversation has this id.

    `details` make Anthropic's SDK send the whole conversation again.
    """

    details = {"error_code": "thread_not_found"}

    def __init__(self, message_id: str) -> None:
        super().__init__(
            404, "NotFoundError", f"There is no thread of the message {message_id[:80]!r} here."
        )


def anthropic_type(status: int) -> str:
    """Returns Anthropic's type of the errors with this status."""
    if status in ERROR_TYPES:
        return ERROR_TYPES[status]
    if status >= 500:
        return "api_error"
    return "invalid_request_error"


def message_error(error: Exception, *, has_anthropic_types: bool) -> Response:
    """Returns the response for `error`; a misfit to the schema keeps OpenAI's shape."""
    api_error = as_api_error(error)
    forget_frames(error)
    if api_error.type == "Bad Request":
        body = api_error.body()
    else:
        body = _error_body(api_error, has_anthropic_types)
    return json_response(body, api_error.status, api_error.headers)


def error_event(error: Exception, *, has_anthropic_types: bool) -> bytes:
    """Returns the event of a stream that ends with `error`."""
    api_error = as_api_error(error)
    if has_anthropic_types:
        api_error = as_stream_error(error)
    return b"event: error\ndata: " + _error_body(api_error, has_anthropic_types) + b"\n\n"


def _error_body(error: ApiError, has_anthropic_types: bool) -> bytes:
    """Returns `error` as JSON, in Anthropic's shape; its type is vLLM's or Anthropic's."""
    details = error.details if isinstance(error, ThreadNotFoundError) else UNSET
    error_type = error.type
    if has_anthropic_types:
        error_type = anthropic_type(error.status)
    return encode(ErrorResponse(ErrorDetail(error_type, error.message, details)))
